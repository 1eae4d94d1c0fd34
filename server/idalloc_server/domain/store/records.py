"""The records that a store reads and writes: rows, grants, revisions, recorded allocations and claims."""

from typing import NamedTuple

from idalloc_server.domain.sequences.model import Sequence


class Demand(NamedTuple):
    """What the callers of one node need of a counter.

    The row carries it to nodes that start or take over (P10). A node that reads it uses it as a
    first estimate, never for safety.

    Attributes:
        rate: Ids a second, above 0; a store keeps 6 significant digits.
        largest_call: The largest call, in ids; at least 1.
        at: When it was measured, in seconds since 1970 by that node's clock; a store keeps whole
            seconds.
    """

    rate: float
    largest_call: int
    at: float

    def is_current(self, wall: float, lifetime: float) -> bool:
        """Return whether it was measured within ``lifetime`` seconds of ``wall``, in seconds since 1970.

        One from the future, which a wrong clock wrote, is not current either.
        """
        return abs(wall - self.at) < lifetime


# The state of a row after a write, for ``Store.give_back``: two numbers and the generation. The
# first number increases with every write of the row. A restored store may repeat the two numbers. A
# wrapper of a store may add numbers.
RowVersion = tuple[int, ...]
# The change token of a row that its first use created: this and random hexadecimal digits.
FIRST_USE = "first use "


class Grant(NamedTuple):
    """The result of one write: the ids in (last_value - granted * step, last_value] belong to this process.

    Attributes:
        last_value: The counter after the write.
        granted: The number of ids granted: as requested or 0; for timestamps any number up to the
            request.
        sequence: The settings. Within a process equal settings are the same object.
        remaining: The number of ids that the sequence has left after the write.
        generation: The sequence's generation, which never decreases.
        version: The state of the row after the write.
        writes: The number of writes to the row by idalloc, including this one. In CrateDB writes of
            other rows increase ``version``, but not this.
        demand: The demand in the row after the write. None if the row has none, or none that can be
            read; if the store cannot keep it; and always of a grant of timestamps.
    """

    last_value: int
    granted: int
    sequence: Sequence
    remaining: int
    generation: int
    version: RowVersion
    writes: int
    demand: Demand | None = None

    @property
    def step(self) -> int:
        """The distance from one id to the next."""
        return self.sequence.step

    @property
    def value_before(self) -> int:
        """The counter before the first granted id."""
        return self.last_value - self.granted * self.sequence.step


class GrantFloor(NamedTuple):
    """The state that a counter must have reached; a counter behind it is granted nothing.

    Attributes:
        generation: The least generation.
        least: The least value, for a counter that rises.
        most: The largest value, for a counter that falls.
    """

    generation: int = 0
    least: int = -(2**63)
    most: int = 2**63 - 1

    def is_ahead_of(self, last_value: int, generation: int) -> bool:
        """Whether a counter is behind this state."""
        return generation < self.generation or not self.least <= last_value <= self.most


NO_FLOOR = GrantFloor()


class Row(NamedTuple):
    """A stored sequence, or the stored counter of one of its periods.

    Attributes:
        name: The sequence's name, or ``name_of_period`` for a period's counter.
        last_value: The counter: the last granted value. May be None in an adopted row.
        sequence: The settings.
        generation: The generation of the valid leases.
        lease_ms: The longest TTL of any lease granted so far, in milliseconds; 0 without one.
        revision: The number of changes of the settings; grants do not count.
        revised_by: The change token of the last change (``Revision.by``); empty without one.
        created_at: Seconds since 1970; None if unknown.
        changed_at: When the settings were last changed, in seconds since 1970; None if unknown.
        deleted: Whether the row is a tombstone.
    """

    name: str
    last_value: int | None
    sequence: Sequence
    generation: int = 1
    lease_ms: int = 0
    revision: int = 0
    revised_by: str = ""
    created_at: float | None = None
    changed_at: float | None = None
    deleted: bool = False


class Revision(NamedTuple):
    """A change of a sequence.

    Attributes:
        sequence: The new settings.
        at_least: The counter advances to this value unless it is past it, then to the next value
            that the settings allow (start + k * step). Never before ``sequence.before_start``.
        by: The change token, unique for each change; a repeat of the change has the same one.
        at: The time of the change, in seconds since 1970.
        ends_leases: Whether the generation increases, which ends all leases.
        generation: The least new generation.
        limit: The change is rejected if the counter is past this value.
        deleted: Whether the row becomes a tombstone.
    """

    sequence: Sequence
    at_least: int
    by: str
    at: float
    ends_leases: bool = True
    generation: int = 1
    limit: int | None = None
    deleted: bool = False


class RecordedAllocation(NamedTuple):
    """The allocation for a request id, which retries get again (P7).

    Attributes:
        request_id: The request id.
        sequence: The sequence's name.
        first_id: The first id.
        id_count: The number of ids.
        step: The distance from one id to the next.
        generation: The sequence's generation at the time of the allocation.
        period: The period or date in the ids' texts; empty without one.
        prefix: The node's prefix in the ids' texts.
        node: The node that allocated them, for people.
        window_ms: How long the record is kept, in milliseconds; None in rows of older versions.
    """

    request_id: str
    sequence: str
    first_id: int
    id_count: int
    step: int
    generation: int
    period: str
    prefix: int
    node: str
    window_ms: int | None = None


class Claim(NamedTuple):
    """The result of a claim of a start timestamp (P6).

    Attributes:
        start_timestamp: Seconds since 1970; unique under its prefix.
        holder: The holder of the prefix: the caller, or another node seen within ``stale_after``.
        seen_at: When the holder was last seen, in seconds since 1970 by the store's clock.
    """

    start_timestamp: int
    holder: str
    seen_at: float
