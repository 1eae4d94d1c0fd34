"""The names that ids belong to, as numbers."""

from idalloc._log import PERIOD_MARK


class Names:
    """Numbers names: of sequences, each period for itself, and of what a run of document ids shares."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def __len__(self) -> int:
        """One more than the largest number."""
        return 2 * len(self._texts)

    def number(self, text: str, *, doc_ids: bool = False) -> int:
        """The number of a name; it is odd for document ids."""
        number = self._numbers.setdefault(text, len(self._texts))
        if number == len(self._texts):
            self._texts.append(text)
        return 2 * number + doc_ids

    def text(self, number: int) -> str:
        """The name with its period, or the 12 characters of document ids."""
        return self._texts[number // 2]

    def parts(self, number: int) -> tuple[str, str]:
        """The sequence and its period, which may be empty."""
        sequence, _, period = self.text(number).partition(PERIOD_MARK)
        return sequence, period

    def called(self, number: int) -> str:
        """The name of a sequence for people."""
        sequence, period = self.parts(number)
        return f"{sequence} of {period}" if period else sequence
