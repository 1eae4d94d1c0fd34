"""Faults of the end of a lease, and of the ranges in it (P1, P4)."""

from tests.support.mutants.edit import Edit, Place

LEASE = "idalloc_server.domain.allocation.lease"
COUNTER = "idalloc_server.domain.allocation.counter_allocator"

MUTANTS = (
    Place("P4", LEASE).mutant(
        "expired-lease-issues",
        "the end of the lease is not checked when ids are taken",
        Edit("Lease.issue", "count > self._count or now >= self.expires_at", "count > self._count"),
        scenarios=("advance-lease",),
    ),
    Place("P4", LEASE).mutant(
        "lease-issues-at-its-end",
        "a lease still issues ids at the moment of its end",
        Edit("Lease.issue", "now >= self.expires_at", "now > self.expires_at"),
        scenarios=("shared",),
    ),
    Place("P4", COUNTER).mutant(
        "no-check-after-the-wait",
        "the end of the lease is not checked again when a caller resumes after its wait",
        Edit("CounterAllocator.issue", "self._clock.boot() >= issued.expires_at", "False"),
        scenarios=("advance-lease",),
    ),
    Place("P4", COUNTER).mutant(
        "life-counts-from-the-answer",
        "the life of a lease counts from the store's answer, not from before the call",
        Edit(
            "CounterAllocator._refill",
            "self._lease.add(grant, expires_at=sent_at + lease_ttl)",
            "self._lease.add(grant, expires_at=now + lease_ttl)",
        ),
        scenarios=("advance-lease",),
    ),
    Place("P4", "idalloc_server.domain.clock").mutant(
        "deadline-stops-in-suspend",
        "the clock of deadlines does not count suspended time",
        Edit("", "getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC)", "time.CLOCK_MONOTONIC"),
        unexplored="its nodes have simulated clocks in place of the system's",
    ),
    Place("P4", "idalloc_server.domain.allocation.sequence_allocator").mutant(
        "period-outlives-its-proof",
        "ids of a period expire with the period's lease, though the sequence's lease ends before",
        Edit(
            "_limit_expiry",
            "return issued if issued.expires_at <= proof.expires_at else issued._replace(expires_at=proof.expires_at)",
            "return issued",
        ),
        scenarios=("period-end",),
    ),
    Place("P1", LEASE).mutant(
        "ranges-are-joined-over-a-gap",
        "two ranges are joined although another node was granted ids in between",
        Edit("Lease.add", "last_first + last_count * self.step == value_before + step", "last_count > 0"),
        scenarios=("cold-start", "tail-return"),
    ),
    Place("P1", COUNTER).mutant(
        "cancelled-ids-return-to-the-lease",
        "a cancelled call gives its ids back to the lease",
        Edit(
            "CounterAllocator.issue",
            "self.row.burn(BurnCause.CANCELLED, waiter.served_ids)",
            "lease, returned = self._lease, waiter.served_ids\n"
            "lease.left, lease._count = lease.left + returned, lease._count + returned\n"
            "lease._first -= returned * lease.step",
        ),
        scenarios=("rising-rest",),
    ),
    Place("P1", "idalloc_server.domain.allocation.counter_allocator").mutant(
        "created-row-of-another-node",
        "the token of a created row is not compared: two nodes that use a name first take the same ids",
        Edit("CounterRow.create", "stored.revised_by != nonce", "False"),
        scenarios=("cold-start",),
    ),
    Place("P5", COUNTER).mutant(
        "lease-of-an-older-generation",
        "a lease of an older generation is kept at the next refill",
        Edit(
            "CounterAllocator._refill",
            "is_rising or grant.generation != self._lease.generation or sequence.step != self._lease.step",
            "is_rising or sequence.step != self._lease.step",
        ),
        scenarios=("advance-renewal",),
    ),
    Place("P5", COUNTER).mutant(
        "lease-kept-after-the-own-change",
        "the node that made a change keeps its lease",
        Edit("CounterAllocator.drop_after_change", "self.drop(BurnCause.GENERATION)", "None"),
        scenarios=("own-change",),
    ),
    Place("P5", COUNTER).mutant(
        "change-ignores-a-refill",
        "a change does not wait for a refill in progress, which brings back a lease of before",
        Edit(
            "CounterAllocator.drop_after_change",
            "if self._refill_task:\n    await asyncio.wait([self._refill_task])",
            "pass",
        ),
        scenarios=("own-change",),
    ),
)
