"""What the domain asks of a store, and what every store promises."""

import asyncio
from collections.abc import Awaitable
from collections.abc import Sequence as Many
from typing import Protocol, TypeVar

from idalloc_server.domain.errors import StoreOutcomeUnknown
from idalloc_server.domain.records import NO_FLOOR, Claim, Grant, GrantFloor, RecordedAllocation, Revision, Row
from idalloc_server.domain.retention import RecordPosition, Retention
from idalloc_server.domain.sequences.model import Sequence

_T = TypeVar("_T")


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

    async def grant(self, name: str, wanted: int, lease_ms: int, seen: GrantFloor = NO_FLOOR) -> Grant | None:
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
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, seen: GrantFloor = NO_FLOOR
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

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        """Writes down what is to be answered, where nothing is written down under that request id; in one statement.

        Args:
            allocations: With request ids that are all different; at least one.

        Returns:
            By request id, the allocation that stands: the caller's own or an earlier one. One that is missing may have
            been written down or not.
        """
        ...

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        """Returns what is written down under a request id, as the last acknowledged write left it."""
        ...

    async def newest_recorded(self) -> RecordPosition | None:
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


async def within_timeout(timeout: float, call: Awaitable[_T]) -> _T:
    """Awaits a store call for ``timeout`` seconds.

    Raises:
        StoreOutcomeUnknown: It did not answer in time; it may have been applied, or may be later.
    """
    try:
        async with asyncio.timeout(timeout):
            return await call
    except TimeoutError:
        raise StoreOutcomeUnknown(f"the store did not answer within {timeout:g} s") from None
