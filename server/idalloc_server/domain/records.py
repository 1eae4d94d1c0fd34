"""What a store takes and returns: rows, grants, changes, recorded answers and claims."""

from typing import NamedTuple

from idalloc_server.domain.sequences.model import Sequence


class Grant(NamedTuple):
    """What one write returned: the ids in (last_value - granted * step, last_value] are this process's alone.

    Attributes:
        last_value: The counter after the write.
        granted: How many ids were granted: what was wanted, or 0; of timestamps also fewer.
        sequence: The settings of the sequence. Equal settings of one process are one object.
        remaining: How many ids the sequence has left after the write.
        generation: The sequence's generation, which never falls.
        version: Which state of the row the write left behind, for ``Store.give_back``: two numbers, of which every
            write of the row makes the first one larger, by one at least; and the generation, since a restored store
            may come to the same two once more.
        writes: How many writes of the row idalloc has made, this one included. In CrateDB ``version`` also grows with
            writes of other rows; this count does not.
    """

    last_value: int
    granted: int
    sequence: Sequence
    remaining: int
    generation: int
    version: tuple[int, int, int]
    writes: int

    @property
    def step(self) -> int:
        """The distance from one id to the next."""
        return self.sequence.step

    @property
    def value_before(self) -> int:
        """The counter right before the first id that was granted."""
        return self.last_value - self.granted * self.step


class GrantFloor(NamedTuple):
    """What a counter must not be behind of, for anything to be granted.

    Attributes:
        generation: Its generation is at least that.
        least: It is at least there.
        most: It is at most there.
    """

    generation: int = 0
    least: int = -(2**63)
    most: int = 2**63 - 1

    def is_ahead_of(self, last_value: int, generation: int) -> bool:
        """Whether a counter is behind."""
        return generation < self.generation or not self.least <= last_value <= self.most


NO_FLOOR = GrantFloor()


class Row(NamedTuple):
    """A sequence, or the counter of one of its periods, as it lies in the store.

    Attributes:
        name: The sequence's name; of a period's counter ``name_of_period``.
        last_value: The counter: the last value handed out. None in an adopted row that has none.
        sequence: The settings.
        generation: Which generation of leases is valid.
        lease_ms: How long leases may live that were granted up to now, in milliseconds; 0 where there was none.
        revision: How often the settings were changed; not moved by grants.
        revised_by: Who made the last of these changes: the ``by`` of it. Empty where there was none.
        created_at: When it was created, in seconds since 1970; None where that is not known.
        changed_at: When it was last revised, likewise.
        deleted: Whether it is a tombstone.
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
        sequence: The settings from now on.
        at_least: The counter goes on to here (in the direction of the step), if it is not past it, and then on to the
            lattice of the settings. Never before ``sequence.before_start``.
        by: Who makes the change; no two changes share it, unless one is the repetition of the other.
        at: When, in seconds since 1970.
        ends_leases: Whether the generation grows, so that leases of the older one end.
        generation: The least generation from now on.
        limit: The change is refused where the counter is past this value.
        deleted: Whether the sequence is a tombstone from now on.
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
    """What was answered, or is to be answered, to a request with a request id.

    Attributes:
        request_id: The request's own.
        sequence: The sequence's name.
        first_id: The first id.
        id_count: How many ids.
        step: The distance from one id to the next.
        generation: The sequence's generation that they were taken in.
        period: The period, or the date, of the ids' texts; empty where they have none.
        prefix: The node's prefix, for the ids' texts.
        node: Which node took them, for people.
        window_ms: How long the answer is kept, in milliseconds; None in a row of an older version.
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
    """The answer to a claim of a start timestamp.

    Attributes:
        start_timestamp: Seconds since 1970; this process's alone under its prefix.
        holder: Who holds the prefix now: the one who asked, or another who was seen within ``stale_after``.
        seen_at: When that holder was last seen, in seconds since 1970 by the store's clock.
    """

    start_timestamp: int
    holder: str
    seen_at: float
