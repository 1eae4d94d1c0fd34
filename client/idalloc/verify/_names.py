"""The names that ids belong to, as numbers."""

import re
from functools import lru_cache

from idalloc._issued_log.format import HEAD, PERIOD_MARK

# What the server accepts and issues: a sequence's name, a period, and what a run of document ids shares.
_MOST_BYTES = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PERIOD = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}")
_HEAD = re.compile(f"[0-9a-f]{{{HEAD}}}")


@lru_cache(maxsize=2**16)
def sequence_name(sequence: object, period: object = "") -> str:
    """Returns the name of a sequence or of its period.

    Raises:
        ValueError: There can be no such name.
        TypeError: One of them has no hash.
    """
    if not isinstance(sequence, str) or not isinstance(period, str):
        raise ValueError("a name is no text")
    if not 0 < len(sequence.encode()) <= _MOST_BYTES or _CONTROL.search(sequence):
        raise ValueError(f"a name is empty, longer than {_MOST_BYTES} bytes, or has control characters")
    if period and not _PERIOD.fullmatch(period):
        raise ValueError("there can be no such period")
    return f"{sequence}{PERIOD_MARK}{period}" if period else sequence


def is_name(text: str) -> bool:
    """Whether a text can be the name of a sequence, or of a period as a log has it."""
    sequence, mark, period = text.partition(PERIOD_MARK)
    try:
        sequence_name(sequence, period)
    except ValueError:
        return False
    return bool(period) == bool(mark)


def begins_name(text: str) -> bool:
    """Whether a text can be the beginning of the name of a sequence, or of a period."""
    return _CONTROL.search(text.replace(PERIOD_MARK, "", 1)) is None


def is_head(text: str) -> bool:
    """Whether document ids can begin with a text."""
    return _HEAD.fullmatch(text) is not None


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
