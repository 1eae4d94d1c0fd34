"""The interface of a store, and the guarantees that every store gives."""

from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Many
from typing import Protocol, TypeVar

from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.domain.store.records import (
    NO_MARK,
    Claim,
    Demand,
    Grant,
    Mark,
    RecordedAllocation,
    RecordedEnd,
    Row,
    RowChange,
    RowVersion,
)
from idalloc_server.domain.store.retention import RecordPosition, Retention

_T = TypeVar("_T")
_PAGE_ROWS = 500

# The methods of a store that write.
WRITES = (
    "grant",
    "grant_timestamps",
    "create",
    "open_period",
    "revise",
    "record",
    "forget_recorded",
    "give_back",
    "claim_start",
    "keep_prefix",
    "release_prefix",
    "raise_start",
)


class Store(Protocol):
    """Durable counters, start timestamps and recorded allocations, shared by many processes.

    Every write is sent once. A write without an answer may have been applied any number of times,
    or may be applied later; every write is designed so that this only burns ids.

    Every method raises ``StoreFailure``: ``StoreUnreachable`` or ``StoreAnsweredError`` if nothing
    was applied, ``StoreOutcomeUnknown`` if that is uncertain, ``StoreRefused`` if an operator must
    act. Calls may run concurrently and do not block the event loop.
    """

    @property
    def address(self) -> str:
        """The store's address, without passwords or tokens."""

    @property
    def opened(self) -> Mapping[str, str]:
        """What ``open`` found: the store's name, and what identifies its files or tables."""

    async def open(self, opening: Opening = ANY_STORE) -> None:
        """Connect, create missing tables, and name a store that has no name.

        Adopts the two-column table of CrateDB's guide. Safe for concurrent calls of several
        processes, which agree on the name.

        Raises:
            StartRefused: The store is too old, has tables of another program, lacks a privilege,
                was lost in part, or is another one than expected.
        """

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mark = NO_MARK, demand: Demand | None = None
    ) -> Grant | None:
        """Advance a counter by ``wanted`` steps in one atomic write, or not if fewer ids are left.

        ``wanted`` 0 renews a lease: the counter stays, the result has the generation. A timestamp
        sequence and one with a reset are granted nothing here: see ``grant_timestamps`` and
        ``open_period``.

        Args:
            name: The name of the row.
            wanted: At least 0.
            lease_ms: The TTL of the lease, in milliseconds. The row keeps the longest one.
            floor: If the counter is behind this, it stays and nothing is granted. Otherwise it
                could pass the value that another node saw, which then could not detect that the
                store went backwards.
            demand: Replaces the row's demand, also if nothing is granted; None keeps it. No other
                method changes it.

        Returns:
            The grant, or None if there is no such row.

        Raises:
            SequenceInvalid: The row has no last_value.
            SequenceDeleted: The row is a tombstone; StoreRetired if the store is retired. Nothing
                was granted.
            StoreWentBackwards: The store was replaced by another one since it was opened.
        """

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark = NO_MARK
    ) -> Grant | None:
        """Grant unused clock values in one atomic write.

        The first one is ``now``, or the value after the counter if that is larger. The last one is
        at most ``now`` + ``ahead`` and ``max_value``, so fewer than ``wanted`` may be granted. If
        ``now`` is more than ``ahead`` past the store's own clock, the store uses its clock instead:
        a wrong clock must not use up the sequence.

        ``now`` is the node's clock, ``ahead`` how far the counter may be past it, both in the unit
        of the sequence's kind. The other arguments are those of ``grant``.

        Returns:
            As ``grant``; ``remaining`` is the number of values up to max_value.

        Raises:
            SequenceInvalid, SequenceDeleted, StoreWentBackwards: As ``grant``.
        """

    async def create(self, row: Row) -> Row:
        """Insert a row unless one with its name exists.

        A row whose ``last_value`` is past its start grants the ids up to there to the caller, if it
        is inserted.

        Returns:
            The stored row: the caller's own if it has the caller's ``revised_by``. Its counter may
            have advanced since.

        Raises:
            StoreRetired: The store is retired. No id is ever granted from the row.
            StoreOutcomeUnknown: As every write, or the row was inserted with ids in a retired
                store, and then ended.
        """

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        """Create the counter of a period, or move it to a newer generation of its sequence.

        ``name`` is that of ``name_of_period``. A new counter starts at the first lattice value at
        or past ``at_least``. A counter of an older generation gets the settings and advances to
        ``at_least``, as in ``RowChange``. One of this or a newer generation is unchanged.
        """

    async def get(self, name: str) -> Row | None:
        """Return a row after the last acknowledged write, or None. The row may be a tombstone.

        Raises:
            SequenceInvalid: The stored settings are corrupt.
        """

    async def list(self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool) -> list[Row]:
        """Return rows in byte order of their names, with every write acknowledged before the call.

        Args:
            prefix: Only names with this prefix.
            after: Only names after this one; empty for all.
            limit: The most rows to return.
            with_deleted: Whether to include tombstones.
            with_periods: Whether to include counters of periods.

        Raises:
            SequenceInvalid: A row's settings are corrupt.
        """

    async def revise(self, name: str, revision: int, change: RowChange) -> Row | None:
        """Change a row in one atomic write if its revision matches.

        Its counter must not be past ``change.limit``. Increments the revision: a replay of the
        write changes nothing.

        Returns:
            The row after the write, or None if there is none. The change was applied if
            ``revised_by`` is ``change.by``.

        Raises:
            SequenceInvalid: The row has no last_value, or its settings are corrupt.
            StoreRetired: The store is retired, and the change makes no tombstone.
        """

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        """Insert allocations whose request ids have no record yet, in one statement.

        ``allocations`` is not empty, and its request ids are distinct.

        Returns:
            The stored allocations by request id: the caller's own or earlier ones. Whether a
            missing one was stored is unknown.
        """

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        """Return the allocation of a request id after the last acknowledged write, or None."""

    async def newest_recorded(self) -> RecordPosition | None:
        """Return the position of the newest recorded allocation, or None.

        Every allocation recorded after this call has a later position, regardless of clocks.
        """

    async def recorded_ends(self) -> Many[RecordedEnd]:
        """Return the last recorded id of each sequence and period, for a repair."""

    async def count_recorded(self, limit: int) -> int:
        """Return the number of recorded allocations; a store that scans them stops at ``limit``."""

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        """Delete recorded allocations whose window has passed, among the ``limit`` oldest.

        A store may keep the newest allocations, and an allocation that was recorded or read again,
        for longer.

        Returns:
            The number of deleted allocations; 0 if none can be deleted now.
        """

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        """Move a counter back by an unused tail of ``count`` ids.

        The row must not have been written since ``version``.

        Returns:
            Whether the counter moved back. Otherwise the tail is burned.
        """

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        """Claim a start timestamp that is unique under this prefix (P6).

        ``prefix`` is 0 to 65535. The start timestamp is at least ``at_least``, in seconds since
        1970. ``holder``, the claiming process, becomes the prefix's holder, unless another holder
        was seen within the last ``stale_after`` seconds by the store's clock.

        Raises:
            StoreRetired: The store is retired.
        """

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        """Refresh when ``holder`` was seen, by the rule of ``claim_start``, without a claim."""

    async def release_prefix(self, prefix: int, holder: str) -> None:
        """Remove ``holder`` from the prefix, if it holds it."""

    async def claimed_starts(self) -> dict[int, int]:
        """Return the last claimed start timestamp of each prefix, with every acknowledged claim."""

    async def raise_start(self, prefix: int, last_start: int) -> None:
        """Prevent future claims of start timestamps up to ``last_start`` under this prefix."""

    async def now(self) -> float | None:
        """Return the store's clock in seconds since 1970, or None if it has no own clock."""

    async def close(self) -> None:
        """Close all connections. Further calls fail."""


async def all_rows(store: Store, *, with_periods: bool) -> AsyncIterator[Row]:
    """Yield all rows of a store in byte order of their names, with tombstones."""
    after = ""
    while True:
        rows = await store.list("", after, _PAGE_ROWS, with_deleted=True, with_periods=with_periods)
        for row in rows:
            yield row
        if len(rows) < _PAGE_ROWS:
            return
        after = rows[-1].name
