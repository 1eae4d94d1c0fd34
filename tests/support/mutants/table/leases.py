"""Faults of the end of a lease, and of the ranges in it (P1, P4)."""

from tests.support.mutants.edit import Edit, Mutant

LEASE = "idalloc_server.domain.allocation.lease"
COUNTER = "idalloc_server.domain.allocation.counter_allocator"
HELD = "idalloc_server.domain.allocation.held_ids"
SEQUENCE = "idalloc_server.domain.allocation.sequence_allocator"

MUTANTS = (
    Mutant(
        "expired-lease-issues",
        "P4",
        LEASE,
        "the end of the lease is not checked when ids are taken",
        (Edit("Lease.issue", "count > self._count or now >= self.expires_at", "count > self._count"),),
        ("advance-lease",),
    ),
    Mutant(
        "lease-issues-at-its-end",
        "P4",
        LEASE,
        "a lease still issues ids at the moment of its end",
        (Edit("Lease.issue", "now >= self.expires_at", "now > self.expires_at"),),
        ("shared",),
    ),
    Mutant(
        "no-check-after-the-wait",
        "P4",
        COUNTER,
        "the end of the lease is not checked again when a caller resumes after its wait",
        (Edit("CounterAllocator.issue_after_refill", "self._clock.boot() >= issued.expires_at", "False"),),
        ("advance-lease",),
    ),
    Mutant(
        "life-counts-from-the-answer",
        "P4",
        HELD,
        "the life of a lease counts from the store's answer, not from before the call",
        (
            Edit(
                "HeldIds.add",
                "lease.add(grant, expires_at=sent_at + lease_ttl)",
                "lease.add(grant, expires_at=now + lease_ttl)",
            ),
        ),
        ("advance-lease",),
    ),
    Mutant(
        "deadline-stops-in-suspend",
        "P4",
        "idalloc_server.domain.clock",
        "the clock of deadlines does not count suspended time",
        (Edit("", "getattr(time, 'CLOCK_BOOTTIME', time.CLOCK_MONOTONIC)", "time.CLOCK_MONOTONIC"),),
        unexplored="its nodes have simulated clocks in place of the system's",
    ),
    Mutant(
        "period-outlives-its-proof",
        "P4",
        SEQUENCE,
        "ids of a period expire with the period's lease, though the sequence's lease ends before",
        (
            Edit(
                "_limit_expiry",
                "return issued if issued.expires_at <= proof.expires_at"
                " else issued._replace(expires_at=proof.expires_at)",
                "return issued",
            ),
        ),
        ("period-end",),
    ),
    Mutant(
        "ranges-are-joined-over-a-gap",
        "P1",
        LEASE,
        "two ranges are joined although another node was granted ids in between",
        (Edit("Lease.add", "last_first + last_count * self.step == value_before + step", "last_count > 0"),),
        ("cold-start", "tail-return"),
    ),
    Mutant(
        "cancelled-ids-return-to-the-lease",
        "P1",
        COUNTER,
        "a cancelled call gives its ids back to the lease",
        (
            Edit(
                "CounterAllocator.issue_after_refill",
                "self.row.burn(BurnCause.CANCELLED, waiter.served_ids)",
                "lease, returned = self._held.lease, waiter.served_ids\n"
                "lease.left, lease._count = lease.left + returned, lease._count + returned\n"
                "lease._first -= returned * lease.step",
            ),
        ),
        ("rising-rest",),
    ),
    Mutant(
        "created-row-of-another-node",
        "P1",
        "idalloc_server.domain.allocation.counter_row",
        "the token of a created row is not compared: two nodes that use a name first take the same ids",
        (Edit("CounterRow.create", "stored.revised_by != token", "False"),),
        ("cold-start",),
    ),
    Mutant(
        "lease-of-an-older-generation",
        "P5",
        HELD,
        "a lease of an older generation is kept at the next refill",
        (
            Edit(
                "HeldIds.add",
                "(grant.generation, sequence.step) != (self.lease.generation, self.lease.step) or sequence.is_rising",
                "sequence.step != self.lease.step or sequence.is_rising",
            ),
        ),
        ("advance-renewal",),
    ),
    Mutant(
        "lease-kept-after-the-own-change",
        "P5",
        COUNTER,
        "the node that made a change keeps its lease",
        (Edit("CounterAllocator.drop_after_change", "self._held.drop(BurnCause.GENERATION)", "None"),),
        ("own-change",),
    ),
    Mutant(
        "change-ignores-a-refill",
        "P5",
        COUNTER,
        "a change does not wait for a refill in progress, which brings back a lease of before",
        (
            Edit(
                "CounterAllocator.drop_after_change",
                "if self._refill_task:\n    await asyncio.wait([self._refill_task])",
                "pass",
            ),
        ),
        ("own-change",),
    ),
)
