"""What the domain asks of a store, and what every store promises."""

import asyncio
from collections.abc import Awaitable
from collections.abc import Sequence as Many
from typing import NamedTuple, Protocol, TypeVar

from idalloc_server.domain.errors import StoreOutcomeUnknown
from idalloc_server.domain.idempotency.retention import Recorded, Retention
from idalloc_server.domain.sequences.model import Sequence

_T = TypeVar("_T")


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


class Seen(NamedTuple):
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


NOTHING = Seen()


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


class Allocation(NamedTuple):
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


class Store(Protocol):
    """A durable home of counters and start timestamps, shared by any number of processes.

    Every write is sent once. A write whose answer did not come may have been applied, once or more often, and may
    still be: all are made so that this burns ids at worst.

    Every method raises ``StoreFailure``: ``StoreUnreachable`` or ``StoreRejected`` where nothing was applied,
    ``StoreOutcomeUnknown`` where that is not certain, ``StoreRefused`` where it fails until an operator
    acts. Calls may run concurrently; none blocks the event loop.
    """

    @property
    def address(self) -> str:
        """The store's address for people, without passwords or tokens."""
        ...

    async def open(self) -> None:
        """Connects and makes the tables where they are missing; a two-column table of CrateDB's guide is adopted.

        Raises:
            StartRefused: The store cannot be used: too old, not ours, a privilege is missing.
        """
        ...

    async def grant(self, name: str, wanted: int, lease_ms: int, seen: Seen = NOTHING) -> Grant | None:
        """Moves a sequence's counter by ``wanted`` steps, in one atomic write; not at all where its bound is nearer.

        With ``wanted`` 0 the counter stays, and the answer tells the generation: this renews a lease. Of a sequence of
        timestamps, and of one with a reset, none are granted: ``grant_timestamps`` and the periods' counters do that.

        Args:
            name: The sequence's name.
            wanted: How many ids, at least 0.
            lease_ms: How long the ids will be kept in memory; the row remembers the longest of all.
            seen: Where the counter is behind that, none are granted and it stays: or else it would be moved past what
                another node saw, which then could not tell.

        Returns:
            What was granted, or None where there is no such sequence.

        Raises:
            SequenceInvalid: The row has no last_value.
            SequenceDeleted: It is a tombstone. Nothing was granted. StoreRetired where the store is retired.
            StoreWentBackwards: The store was replaced by another one since it was opened.
        """
        ...

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, seen: Seen = NOTHING
    ) -> Grant | None:
        """Grants timestamps: values of the clock that nobody had, in one atomic write.

        The first one is ``now``, or the one behind the counter where that is later; the last one lies at most
        ``ahead`` behind ``now``: fewer than ``wanted`` are granted where that, or max_value, does not allow more. Where
        the store has a clock of its own, that one counts in place of a ``now`` that lies more than ``ahead`` behind it,
        so that no node with a wrong clock spoils the sequence for the others.

        Args:
            name: The sequence's name; its kind is one of timestamps.
            wanted: How many, at least 0.
            lease_ms: As for ``grant``.
            now: The clock, in the unit of the sequence's kind.
            ahead: In the same unit.
            seen: As for ``grant``.

        Returns:
            As ``grant``. ``remaining`` is what is left before max_value.

        Raises:
            SequenceInvalid, SequenceDeleted, StoreWentBackwards: As ``grant``.
        """
        ...

    async def create(self, row: Row) -> Row:
        """Makes a row, with all that it says, where there is none of that name. One that exists stays as it is.

        Returns:
            The row that stands: the caller's own where ``revised_by`` is what it gave.

        Raises:
            StoreRetired: The store has the mark of ``retirement``. No id is ever granted from the row.
        """
        ...

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        """Sees that the counter of a period is there, and is of at least this generation.

        One of an older generation takes the settings over, and goes on to ``at_least`` if it is not past it, and then
        on to the lattice, as in ``Revision``. One of this generation or a newer one stays as it is.

        Args:
            name: ``name_of_period``.
            sequence: The settings of the sequence.
            at_least: Where a new counter starts; ``sequence.before_start`` for the beginning.
            generation: The sequence's generation.
        """
        ...

    async def get(self, name: str) -> Row | None:
        """Returns a row as the last acknowledged write left it, also a tombstone; None where there is none.

        Raises:
            SequenceInvalid: Its settings cannot be read.
        """
        ...

    async def list(self, prefix: str, after: str, most: int, *, deleted: bool, periods: bool) -> list[Row]:
        """Returns rows in the order of their names' bytes; every write that was acknowledged before the call shows.

        Args:
            prefix: What the names begin with.
            after: Only names behind this one; empty for all.
            most: The most rows to return.
            deleted: Whether tombstones are among them.
            periods: Whether the counters of periods are among them.

        Raises:
            SequenceInvalid: A row's settings cannot be read.
        """
        ...

    async def revise(self, name: str, revision: int, change: Revision) -> Row | None:
        """Changes a row in one atomic write, if its revision is this one and its counter not past the limit.

        It is safe to be applied again: it then finds another revision. The revision grows by one.

        Returns:
            The row after the write; the change was made, now or before, where ``revised_by`` is ``change.by``. None
            where there is no such row.

        Raises:
            SequenceInvalid: The row has no last_value, or its settings cannot be read.
            StoreRetired: The store has the mark of ``retirement``, and the change makes no tombstone.
        """
        ...

    async def record(self, allocations: Many[Allocation]) -> dict[str, Allocation]:
        """Writes down what is to be answered, where nothing is written down under that request id; in one statement.

        Args:
            allocations: With request ids that are all different; at least one.

        Returns:
            By request id, the allocation that stands: the caller's own or an earlier one. One that is missing may have
            been written down or not.
        """
        ...

    async def recorded(self, request_id: str) -> Allocation | None:
        """Returns what is written down under a request id, as the last acknowledged write left it."""
        ...

    async def newest_recorded(self) -> Recorded | None:
        """Returns the newest point in the order of recorded allocations; None where there is no allocation.

        Every allocation that is recorded after this call comes later in that order, whatever any clock says.
        """
        ...

    async def count_recorded(self, most: int) -> int:
        """Returns how many allocations are recorded; a store that has to count them one by one stops at ``most``."""
        ...

    async def forget_recorded(self, retention: Retention, most: int) -> int:
        """Removes allocations whose window has passed.

        Only the ``most`` oldest are looked at: behind so many with a longer window, others wait. A store may keep the
        newest allocation, which the order goes on from, and for longer one that was recorded again.

        Args:
            retention: Whose window has passed.
            most: How many to look at.

        Returns:
            How many were removed; 0 where no more can be removed now.
        """
        ...

    async def give_back(self, name: str, count: int, version: tuple[int, int, int]) -> bool:
        """Moves a counter back by an unused tail of ``count`` ids, if nobody wrote the row since ``version``.

        Returns:
            Whether it was given back. Otherwise the tail is burned.
        """
        ...

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        """Claims a start timestamp that no process ever had, or will have, under this prefix.

        The prefix's holder becomes ``holder`` where there is none, or it is that already, or the one that there is
        was not seen for ``stale_after`` seconds by the store's clock.

        Args:
            prefix: 0 to 65535.
            at_least: The lowest start timestamp wanted, in seconds since 1970.
            holder: Who claims.
            stale_after: Seconds.

        Raises:
            StoreRetired: The store has the mark of ``retirement``.
        """
        ...

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        """Notes that ``holder`` was seen now, under the same rule as ``claim_start``; claims nothing."""
        ...

    async def release_prefix(self, prefix: int, holder: str) -> None:
        """Notes that ``holder``, if it holds the prefix, does so no more."""
        ...

    async def claimed_starts(self) -> dict[int, int]:
        """Returns the last start timestamp that was claimed, by prefix; every acknowledged claim shows."""
        ...

    async def raise_start(self, prefix: int, last_start: int) -> None:
        """Sees that no start timestamp at or below ``last_start`` is ever claimed under this prefix."""
        ...

    async def now(self) -> float | None:
        """Returns the store's clock in seconds since 1970, or None where it has no clock but this machine's."""
        ...

    async def close(self) -> None:
        """Ends all connections. Further calls fail."""
        ...


async def within(timeout: float, call: Awaitable[_T]) -> _T:
    """Awaits a store call for ``timeout`` seconds.

    Raises:
        StoreOutcomeUnknown: It did not answer in time; it may have been applied, or may be later.
    """
    try:
        async with asyncio.timeout(timeout):
            return await call
    except TimeoutError:
        raise StoreOutcomeUnknown(f"the store did not answer within {timeout:g} s") from None
