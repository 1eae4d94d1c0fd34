"""The ids that one process holds of a counter, and when it needs more."""

from dataclasses import dataclass, field

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import SharedState
from idalloc_server.domain.allocation.counter_row import CounterRow
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.allocation.reserve import PREFETCH_SHARE, Reserve
from idalloc_server.domain.store.records import Grant

# A failed renewal is retried after this time.
RENEW_RETRY_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class HeldIds:
    """The lease of a counter, and the reserve that decides how many ids it should have.

    All times are in ``Clock.boot`` seconds.
    """

    row: CounterRow  # the counter's row in the store
    _shared: SharedState
    lease: Lease = field(init=False)
    reserve: Reserve = field(init=False)  # how many ids are needed
    # When the next call starts a refill or a review, even if enough ids are left.
    refill_at: float = 0.0
    renew_at: float = 0.0  # when the next call renews the lease
    refilled_at: float = 0.0  # when the last write was sent
    remaining: int = 0  # the number of ids that the sequence had left after the last write
    writes: int = 0  # the number of writes

    def __post_init__(self) -> None:
        self.lease = Lease(self.row.period)
        self.reserve = Reserve(self._shared.allocation_config, self._shared.clock.boot())

    def issue_from_later_range(self, count: int, now: float) -> IdRange | None:
        """Issue ids from a later range if one has ``count``, and burn the ranges before it.

        Near the bound it issues none: the last ids are kept for smaller calls.
        """
        if self.remaining < PREFETCH_SHARE or now >= self.lease.expires_at:
            return None
        return self.skip_to(count).issue(count, now)

    def skip_to(self, count: int) -> Lease:
        """Burn the ranges before the first one that has ``count`` ids, if any; return the lease."""
        if self.lease.later_ranges and (skipped := self.lease.skip_to(count)):
            self.row.burn(BurnCause.LEFTOVER, skipped)
            self.reserve.record_skipped(skipped)
        return self.lease

    def drop(self, cause: BurnCause) -> None:
        """Burn the rest of the lease."""
        self.row.burn(cause, self.detach().left)

    def detach(self) -> Lease:
        """Remove and return the lease."""
        lease, self.lease = self.lease, Lease(self.row.period)
        self.reserve.record_drop()
        return lease

    def add(self, grant: Grant, sent_at: float, now: float) -> None:
        """Add the ids of a grant, and renew the lease.

        The call was sent at ``sent_at``, and answered at ``now``.
        """
        sequence = grant.sequence
        if (grant.generation, sequence.step) != (self.lease.generation, self.lease.step) or sequence.is_rising:
            self.drop(BurnCause.GENERATION)
        lease, reserve, lease_ttl = self.lease, self.reserve, self._shared.allocation_config.lease_ttl
        before = lease.left
        # The TTL starts before the store call: the store may have granted at any time since (P4).
        lease.add(grant, expires_at=sent_at + lease_ttl)
        reserve.record_refill(lease, before, now)
        self.renew_at, self.refilled_at = sent_at + lease_ttl / 3, sent_at
        self.refill_at = min(self.renew_at, reserve.review_at)
        self.remaining, reserve.demand_in_row = grant.remaining, grant.demand
        self.writes += 1

    def postpone_refill(self, now: float) -> None:
        """Decide when to check again whether a refill is due."""
        self.reserve.skip_refill(self.lease.left, now)
        self.refill_at = min(self.renew_at, self.reserve.review_at)

    def record_failure(self, now: float) -> None:
        """Record a failed refill: from now on only time starts the next one."""
        self.refill_at = self.renew_at = now + RENEW_RETRY_SECONDS
        self.reserve.record_failure()
