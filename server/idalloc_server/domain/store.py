"""What the domain asks of a store, and what every store promises."""

from typing import NamedTuple, Protocol

from idalloc_server.domain.sequence import Sequence


class Grant(NamedTuple):
    """What one write returned: the ids in (last_value - granted * step, last_value] are this process's alone.

    Attributes:
        last_value: The counter after the write.
        granted: How many ids were granted: what was wanted, or what is left, or 0.
        step: The distance from one id to the next.
        remaining: How many ids the sequence has left after the write.
        generation: The sequence's generation, which never falls.
        version: Which state of the row the write left behind, for ``Store.give_back``. Opaque.
    """

    last_value: int
    granted: int
    step: int
    remaining: int
    generation: int
    version: tuple[int, int]

    @property
    def value_before(self) -> int:
        """The counter before the write."""
        return self.last_value - self.granted * self.step


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

    Every method raises ``StoreUnavailable``: ``StoreUnreachable`` or ``StoreRejected`` where nothing was applied,
    ``StoreOutcomeUnknown`` where that is not certain. Calls may run concurrently; none blocks the event loop.
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

    async def grant(self, name: str, wanted: int, lease_ms: int) -> Grant | None:
        """Moves a sequence's counter by up to ``wanted`` steps, never past its bound, in one atomic write.

        With ``wanted`` 0 the counter stays, and the answer tells the generation: this renews a lease.

        Args:
            name: The sequence's name.
            wanted: How many ids, at least 0.
            lease_ms: How long the ids will be kept in memory; the row remembers the longest of all.

        Returns:
            What was granted, or None where there is no such sequence.

        Raises:
            SequenceInvalid: The row has no last_value.
            StoreWentBackwards: The store was replaced by another one since it was opened.
        """
        ...

    async def create(self, name: str, sequence: Sequence) -> None:
        """Makes a sequence that has issued nothing. One that exists stays as it is."""
        ...

    async def give_back(self, name: str, count: int, version: tuple[int, int]) -> bool:
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
        """
        ...

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        """Notes that ``holder`` was seen now, under the same rule as ``claim_start``; claims nothing."""
        ...

    async def release_prefix(self, prefix: int, holder: str) -> None:
        """Notes that ``holder``, if it holds the prefix, does so no more."""
        ...

    async def now(self) -> float | None:
        """Returns the store's clock in seconds since 1970, or None where it has no clock but this machine's."""
        ...

    async def close(self) -> None:
        """Ends all connections. Further calls fail."""
        ...
