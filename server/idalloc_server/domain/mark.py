"""What this process saw of each sequence: how a store that went backwards is noticed (P3)."""

from idalloc_server.domain.errors import StoreWentBackwards
from idalloc_server.domain.store import Grant


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
                raise StoreWentBackwards(
                    name,
                    seen=f"value {value} in generation {generation}",
                    found=f"value {grant.value_before} in generation {grant.generation}",
                )
        self._marks[name] = (grant.generation, grant.last_value, _direction(grant.step))

    def missing(self, name: str) -> StoreWentBackwards:
        """Returns the error for a sequence that was seen and is not in the store any more."""
        generation, value, _ = self._marks[name]
        return StoreWentBackwards(name, seen=f"value {value} in generation {generation}", found="no such sequence")

    def give_back(self, name: str, generation: int, end: int, value: int) -> None:
        """Lets the counter be as low as ``value``, where a tail that ends at ``end`` starts.

        A mark that stands elsewhere by now, since a newer lane of the name went on, stays where it is.
        """
        marked_generation, marked_value, direction = self._marks[name]
        if (marked_generation, marked_value) == (generation, end):
            self._marks[name] = (generation, value, direction)


def _direction(step: int) -> int:
    return 1 if step > 0 else -1
