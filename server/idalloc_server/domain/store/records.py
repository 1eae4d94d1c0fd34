"""The records of a store: rows, grants, revisions, recorded allocations and claims."""

from typing import NamedTuple

from idalloc_server.domain.sequences.sequence import MAX_ID, Sequence

_DEFAULTS = Sequence()


class Demand(NamedTuple):
    """What the callers of one node need of a counter.

    The row carries it to nodes that start or take over (P10). A node that reads it uses it as a
    first estimate, never for safety.
    """

    rate: float  # ids a second, above 0; a store keeps 6 significant digits
    largest_call: int  # the largest call, in ids; at least 1
    # When it was measured, in seconds since 1970 by that node's clock; a store keeps whole seconds.
    at: float

    def is_current(self, wall: float, lifetime: float) -> bool:
        """Return whether it was measured within ``lifetime`` seconds of ``wall``.

        ``wall`` is in seconds since 1970. One from the future, which a wrong clock wrote, is not
        current either.
        """
        return abs(wall - self.at) < lifetime


# The state of a row after a write, for ``Store.give_back``: two numbers and the generation. The
# first number increases with every write of the row. A restored store may repeat the two numbers. A
# wrapper of a store may add numbers.
RowVersion = tuple[int, ...]
# The change key of a row that its first use created: this and random hexadecimal digits.
FIRST_USE = "first use "


class Grant(NamedTuple):
    """The result of one write.

    The ids in (last_value - granted * step, last_value] belong to this process.
    """

    last_value: int  # the counter after the write
    # The number of ids granted: as requested or 0; for timestamps any number up to the request.
    granted: int
    sequence: Sequence  # within a process equal settings are the same object
    remaining: int  # the number of ids that the sequence has left after the write
    generation: int  # the sequence's generation, which never decreases
    version: RowVersion  # the state of the row after the write
    # The number of writes to the row by idalloc, including this one. In CrateDB writes of other
    # rows increase ``version``, but not this.
    writes: int
    # The demand in the row after the write. None if the row has none, or none that can be read; if
    # the store cannot keep it; and always of a grant of timestamps.
    demand: Demand | None = None

    @property
    def step(self) -> int:
        """The distance from one id to the next."""
        return self.sequence.step

    @property
    def value_before(self) -> int:
        """The counter before the first granted id."""
        return self.last_value - self.granted * self.sequence.step


class Mark(NamedTuple):
    """What a counter has reached: a row behind it is of an older copy of the store.

    A process keeps one of what its own writes returned, passes it to the store as the floor of a
    grant, and has one in a witness.
    """

    generation: int = 0  # the least generation; 0 of a start timestamp in a witness
    # The last value that may be issued: of a counter, or the last start timestamp of a prefix. The
    # default is behind every counter.
    value: int = -(2**63)
    step: int = 1  # its sign is the direction of the counter; never 0
    # Those of a witness have a random text of the write that set the mark, and the ids before
    # ``value`` that no grant has confirmed yet, see ``gaps.py``.
    token: str = ""
    gaps: str = ""

    def is_past(self, value: int) -> bool:
        """Return whether the mark is past ``value`` in its direction."""
        return self.is_ahead_of(self.generation, value)

    def is_ahead_of(self, generation: int, value: int | None) -> bool:
        """Return whether a counter is behind the mark; its value is None if it counts no ids."""
        if generation < self.generation or value is None:
            return generation < self.generation
        return self.value > value if self.step > 0 else self.value < value


NO_MARK = Mark()


class Row(NamedTuple):
    """A stored sequence, or the stored counter of one of its periods."""

    name: str  # the sequence's name, or ``name_of_period`` for a period's counter
    last_value: int | None  # the counter: the last granted value. May be None in an adopted row.
    sequence: Sequence  # the settings
    generation: int = 1  # the generation of the valid leases
    lease_ms: int = 0  # the longest TTL of any lease granted so far, in milliseconds; 0 without one
    revision: int = 0  # the number of changes of the settings; grants do not count
    revised_by: str = ""  # the change key of the last change (``RowChange.by``); empty without one
    created_at: float | None = None  # seconds since 1970; None if unknown
    # When the settings were last changed, in seconds since 1970; None if unknown.
    changed_at: float | None = None
    deleted: bool = False  # whether the row is a tombstone


class RowChange(NamedTuple):
    """A change of a sequence."""

    sequence: Sequence  # the new settings
    # The counter advances to this value unless it is past it, then to the next value that the
    # settings allow (start + k * step). Never before ``sequence.before_start``.
    at_least: int
    by: str  # the change key, unique for each change; a repeat of the change has the same one
    at: float  # the time of the change, in seconds since 1970
    ends_leases: bool = True  # whether the generation increases, which ends all leases
    generation: int = 1  # the least new generation
    limit: int | None = None  # the change is rejected if the counter is past this value
    deleted: bool = False  # whether the row becomes a tombstone


class RecordedAllocation(NamedTuple):
    """The allocation for a request id, which retries get again (P7)."""

    request_id: str
    sequence: str  # the sequence's name
    first_id: int
    id_count: int  # the number of ids
    step: int  # the distance from one id to the next
    generation: int  # the sequence's generation at the time of the allocation
    period: str  # the period or date in the ids' texts; empty without one
    prefix: int  # the node's prefix in the ids' texts
    node: str  # the node that allocated them, for people
    # How long the record is kept, in milliseconds; None in rows of older versions.
    window_ms: int | None = None


class RecordedEnd(NamedTuple):
    """The last id of the recorded allocations of a sequence, or of one of its periods."""

    sequence: str
    period: str
    step: int
    last_id: int


class Claim(NamedTuple):
    """The result of a claim of a start timestamp (P6)."""

    start_timestamp: int  # seconds since 1970; unique under its prefix
    holder: str  # the holder of the prefix: the caller, or another node seen within ``stale_after``
    seen_at: float  # when the holder was last seen, in seconds since 1970 by the store's clock


def ids_left(last_value: int, step: int, min_value: int | None, max_value: int | None) -> int:
    """Return the number of steps before the counter's bound; 0 at or past the bound.

    A setting that is None (NULL in an adopted table) has its default. Only the bound in the
    direction of ``step`` matters. The result may exceed 2^63 if ``last_value`` and the bound differ
    in sign.
    """
    if step > 0:
        distance = min(MAX_ID, MAX_ID if max_value is None else max_value) - last_value
    else:
        distance = last_value - (_DEFAULTS.min_value if min_value is None else min_value)
    return max(0, distance) // abs(step)
