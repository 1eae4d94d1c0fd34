"""What this process saw of each sequence: how a store that went backwards is noticed (P3)."""

from idalloc_server.domain.errors import StoreWentBackwards
from idalloc_server.domain.sequence import PERIOD_MARK
from idalloc_server.domain.store import NOTHING, Grant, Row, Seen


class Marks:
    """By name, the generation, the last value and its direction, as this process's own writes returned them.

    A mark outlives its lane: a process that saw a name never takes it for new again. Reads never move it.
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int, int]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a write of this process ever returned something of this sequence."""
        return name in self._marks

    def advance(self, name: str, grant: Grant) -> None:
        """Moves the mark to what a write returned.

        Raises:
            StoreWentBackwards: Before that write the store was behind the mark. The mark stays.
        """
        mark = self._marks.get(name)
        if mark is not None:
            generation, value, direction = mark
            behind = direction == _direction(grant.step) and (value - grant.value_before) * direction > 0
            if grant.generation < generation or behind:
                raise self._backwards(name, f"value {grant.value_before} in generation {grant.generation}")
        self._marks[name] = (grant.generation, grant.last_value, _direction(grant.step))

    def seen(self, name: str) -> Seen:
        """Returns what the store must not be behind of."""
        mark = self._marks.get(name)
        if mark is None:
            return NOTHING
        generation, value, direction = mark
        return Seen(generation, least=value) if direction > 0 else Seen(generation, most=value)

    def missing(self, name: str) -> StoreWentBackwards:
        """Returns the error for a sequence that was seen and is not in the store any more."""
        return self._backwards(name, "no such row")

    def is_mended_by(self, row: Row | None) -> bool:
        """Whether a row that was behind its mark has been advanced on purpose: in a new generation, up to the mark."""
        if row is None or row.last_value is None:
            return False
        mark = self._marks.get(row.name)
        if mark is None:
            return True
        generation, value, direction = mark
        return row.generation > generation and (row.last_value - value) * direction >= 0

    def generation(self, name: str) -> int:
        """Returns the generation that was seen last; 0 where none was."""
        mark = self._marks.get(name)
        return mark[0] if mark else 0

    def forget(self, name: str) -> None:
        """Forgets a counter that is of no use any more: that of a period that is over."""
        self._marks.pop(name, None)

    def give_back(self, name: str, generation: int, end: int, value: int) -> None:
        """Lets the counter be as low as ``value``, where a tail that ends at ``end`` starts.

        A mark that stands elsewhere by now, since a newer lane of the name went on, stays where it is.
        """
        mark = self._marks.get(name)
        if mark is not None and mark[:2] == (generation, end):
            self._marks[name] = (generation, value, mark[2])

    def _backwards(self, name: str, found: str) -> StoreWentBackwards:
        generation, value, _ = self._marks[name]
        sequence, _, period = name.partition(PERIOD_MARK)
        of_period = f" of {period}" if period else ""
        seen = f"value {value} in generation {generation}"
        return StoreWentBackwards(sequence, seen=seen + of_period, found=found + of_period)


def _direction(step: int) -> int:
    return 1 if step > 0 else -1
