"""What this process saw of each sequence: how a store that went backwards is noticed (P3)."""

from idalloc_server.domain.errors import StoreWentBackwards
from idalloc_server.domain.store import Grant


class Marks:
    """By name, the generation and the last value that this process's own writes returned.

    A mark outlives its lane: a process that saw a name never takes it for new again. Reads never move it.
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int]] = {}

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
            generation, value = mark
            behind = (value - grant.value_before) * (1 if grant.step > 0 else -1) > 0
            if grant.generation < generation or (grant.generation == generation and behind):
                raise StoreWentBackwards(
                    name,
                    seen=f"value {value} in generation {generation}",
                    found=f"value {grant.value_before} in generation {grant.generation}",
                )
        self._marks[name] = (grant.generation, grant.last_value)

    def missing(self, name: str) -> StoreWentBackwards:
        """Returns the error for a sequence that was seen and is not in the store any more."""
        generation, value = self._marks[name]
        return StoreWentBackwards(name, seen=f"value {value} in generation {generation}", found="no such sequence")

    def give_back(self, name: str, value: int) -> None:
        """Lets the counter be as low as ``value``, where a returned tail starts, whether or not it gets there."""
        generation, _ = self._marks[name]
        self._marks[name] = (generation, value)
