"""Faults of refills, the order of callers, the bound, and the counts of burned ids (P9)."""

from tests.support.mutants.edit import Edit, Mutant

COUNTER = "idalloc_server.domain.allocation.counter_allocator"
ROW = "idalloc_server.domain.allocation.counter_row"

MUTANTS = (
    Mutant(
        "later-callers-get-rising-ids",
        "RISING",
        COUNTER,
        "a rising write also serves callers that arrived after it began",
        (
            Edit(
                "CounterAllocator._refill",
                "waiting if is_rising else len(self._waiters.waiting)",
                "len(self._waiters.waiting)",
            ),
        ),
        ("rising-rest",),
    ),
    Mutant(
        "rising-ids-are-kept",
        "RISING",
        COUNTER,
        "the rest of a rising write stays in memory",
        (
            Edit(
                "CounterAllocator._refill",
                "if is_rising and self._held.lease.left:\n    await self._return_tail()",
                "pass",
            ),
        ),
        ("rising-rest",),
    ),
    Mutant(
        "cancelled-caller-ends-the-refill",
        "refills",
        COUNTER,
        "the cancellation of one caller cancels the refill of all",
        (
            Edit(
                "CounterAllocator.issue_after_refill",
                "if not self.row.abandoned:\n    self.row.burn(BurnCause.CANCELLED, waiter.served_ids)",
                "if not self.row.abandoned:\n"
                "    self.row.burn(BurnCause.CANCELLED, waiter.served_ids)\n"
                "if self._refill_task:\n"
                "    self._refill_task.cancel()",
            ),
        ),
        ("cancel",),
    ),
    Mutant(
        "deferred-callers-change-places",
        "refills",
        "idalloc_server.domain.allocation.waiter_queue",
        "callers that wait for the next write at the bound are served in reverse",
        (Edit("WaiterQueue.serve_at_bound", "reversed(deferred)", "deferred"),),
        ("bound",),
    ),
    Mutant(
        "last-ids-are-skipped",
        "bound",
        "idalloc_server.domain.allocation.waiter_queue",
        "near the bound a large call burns the ids that smaller calls could still get",
        (
            Edit(
                "WaiterQueue.serve_at_bound",
                "issued = lease.issue(count, now)",
                "issued = held.skip_to(count).issue(count, now)",
            ),
        ),
        ("last-ids",),
    ),
    Mutant(
        "json-safe-bound-off-by-one",
        "bound",
        "idalloc_server.domain.sequences.validation",
        "2^53 is taken for a bound that JavaScript can read",
        (Edit("_check_numbers", "abs(bound) > MAX_JSON_SAFE", "abs(bound) > MAX_JSON_SAFE + 1"),),
        unexplored="it checks ids, not which settings are accepted",
    ),
    Mutant(
        "timestamps-too-far-ahead",
        "timestamps",
        ROW,
        "timestamps may be twice as far ahead of the clock as max_clock_skew allows",
        (
            Edit(
                "CounterRow._granting",
                "int(shared.allocation_config.max_clock_skew * kind.per_second)",
                "int(2 * shared.allocation_config.max_clock_skew * kind.per_second)",
            ),
        ),
        ("timestamps-ahead",),
    ),
    Mutant(
        "burned-expired-not-counted",
        "P9",
        COUNTER,
        "the rest of an expired lease is not counted",
        (Edit("CounterAllocator._fetch", "held.drop(BurnCause.EXPIRED)", "held.detach()"),),
        ("advance-lease",),
    ),
    Mutant(
        "burned-cancelled-not-counted",
        "P9",
        COUNTER,
        "the ids of a cancelled call are not counted",
        (Edit("CounterAllocator.issue_after_refill", "self.row.burn(BurnCause.CANCELLED, waiter.served_ids)", "None"),),
        ("cancel",),
    ),
    Mutant(
        "burned-leftover-not-counted",
        "P9",
        "idalloc_server.domain.allocation.held_ids",
        "ids that a larger call skipped are not counted",
        (Edit("HeldIds.skip_to", "self.row.burn(BurnCause.LEFTOVER, skipped)", "None"),),
        ("shared",),
    ),
    Mutant(
        "burned-tail-not-counted",
        "P9",
        COUNTER,
        "a tail that the store did not take back is not counted",
        (
            Edit(
                "CounterAllocator._return_tail",
                "row.burn(BurnCause.NOT_RETURNED, lease.left - returned)",
                "row.burn(BurnCause.NOT_RETURNED, lease.left - count)",
            ),
        ),
        ("tail-return",),
    ),
    Mutant(
        "burned-in-flight-not-counted",
        "P9",
        COUNTER,
        "a stop does not count the ids of a write in progress",
        (Edit("CounterAllocator.abandon", "self.row.burn(BurnCause.UNKNOWN_OUTCOME, self.row.requested)", "None"),),
        ("abandon",),
    ),
    Mutant(
        "burned-unknown-not-counted",
        "P9",
        ROW,
        "the ids of a write without an answer are not counted",
        (Edit("CounterRow._within_timeout", "self.burn(BurnCause.UNKNOWN_OUTCOME, requested)", "None"),),
        ("cold-start",),
    ),
    Mutant(
        "burned-backwards-not-counted",
        "P9",
        ROW,
        "ids granted by a store that went backwards are not counted",
        (Edit("CounterRow._accept", "self.burn(BurnCause.WENT_BACKWARDS, grant.granted)", "None"),),
        ("restore-empty",),
    ),
)
