"""The number of the last acknowledged write of a table or index of one shard.

CrateDB and OpenSearch number the writes of a shard (``_seq_no``). An acknowledged write is on every
copy that may become the primary, so no later write gets its number or a lower one: not through
crashes, failovers and relocations. A table that was made again, or restored, repeats numbers.
"""

from dataclasses import dataclass, field

from idalloc_server.domain.errors import StoreExchanged


@dataclass(eq=False)
class WriteMark:
    """The highest number of a write that this process saw acknowledged.

    Once a number was repeated, every call is refused until the process ends: the refused writes
    raise the numbers past the mark.
    """

    what: str  # the table or index, for people
    highest: int = field(default=-1, init=False)
    _repeated: tuple[int, int] | None = field(default=None, init=False)

    def floor(self) -> int:
        """Return what the number of a write must be past that is sent now.

        Raises:
            StoreExchanged: A number was repeated before.
        """
        if self._repeated:
            floor, number = self._repeated
            raise StoreExchanged(f"{self.what} up to its write {floor}", f"its next write numbered {number}")
        return self.highest

    def accept(self, number: int, floor: int) -> None:
        """Check the number of an acknowledged write; ``floor`` is from when it was sent.

        Raises:
            StoreExchanged: It is not past the floor, so earlier writes are lost.
        """
        if number <= floor:
            self._repeated = floor, number
        self.floor()
        self.highest = max(self.highest, number)
