"""Faults of refills, the order of callers, the bound, and the counts of burned ids (P9)."""

from tests.support.mutants.edit import Edit, Place

COUNTER = "idalloc_server.domain.allocation.counter_allocator"
ROW = "idalloc_server.domain.allocation.counter_allocator"

MUTANTS = (
    Place("RISING", COUNTER).mutant(
        "later-callers-get-rising-ids",
        "a rising write also serves callers that arrived after it began",
        Edit(
            "CounterAllocator._refill",
            "waiting if is_rising else len(self._waiting)",
            "len(self._waiting)",
        ),
        scenarios=("rising-rest",),
    ),
    Place("RISING", COUNTER).mutant(
        "rising-ids-are-kept",
        "the rest of a rising write stays in memory",
        Edit("CounterAllocator._refill", "if is_rising and self._lease.left:\n    await self._return_tail()", "pass"),
        scenarios=("rising-rest",),
    ),
    Place("refills", COUNTER).mutant(
        "cancelled-caller-ends-the-refill",
        "the cancellation of one caller cancels the refill of all",
        Edit(
            "CounterAllocator.issue",
            "if not self.row.abandoned:\n    self.row.burn(BurnCause.CANCELLED, waiter.served_ids)",
            "if not self.row.abandoned:\n"
            "    self.row.burn(BurnCause.CANCELLED, waiter.served_ids)\n"
            "if self._refill_task:\n"
            "    self._refill_task.cancel()",
        ),
        scenarios=("cancel",),
    ),
    Place("refills", COUNTER).mutant(
        "deferred-callers-change-places",
        "callers that wait for the next write at the bound are served in reverse",
        Edit("CounterAllocator._serve_at_bound", "reversed(deferred)", "deferred"),
        scenarios=("bound",),
    ),
    Place("bound", COUNTER).mutant(
        "last-ids-are-skipped",
        "near the bound a large call burns the ids that smaller calls could still get",
        Edit(
            "CounterAllocator._serve_at_bound",
            "issued = lease.issue(count, now)",
            "self._skip_to(count)\nissued = lease.issue(count, now)",
        ),
        scenarios=("last-ids",),
    ),
    Place("bound", "idalloc_server.domain.sequences.validation").mutant(
        "json-safe-bound-off-by-one",
        "2^53 is taken for a bound that JavaScript can read",
        Edit("_check_numbers", "abs(bound) > MAX_JSON_SAFE", "abs(bound) > MAX_JSON_SAFE + 1"),
        unexplored="it checks ids, not which settings are accepted",
    ),
    Place("timestamps", ROW).mutant(
        "timestamps-too-far-ahead",
        "timestamps may be twice as far ahead of the clock as max_clock_skew allows",
        Edit(
            "CounterRow.grant",
            "int(shared.allocation_config.max_clock_skew * kind.per_second)",
            "int(2 * shared.allocation_config.max_clock_skew * kind.per_second)",
        ),
        scenarios=("timestamps-ahead",),
    ),
    Place("P9", COUNTER).mutant(
        "burned-expired-not-counted",
        "the rest of an expired lease is not counted",
        Edit("CounterAllocator._refill", "self.drop(BurnCause.EXPIRED)", "self._detach()"),
        scenarios=("advance-lease",),
    ),
    Place("P9", COUNTER).mutant(
        "burned-cancelled-not-counted",
        "the ids of a cancelled call are not counted",
        Edit("CounterAllocator.issue", "self.row.burn(BurnCause.CANCELLED, waiter.served_ids)", "None"),
        scenarios=("cancel",),
    ),
    Place("P9", COUNTER).mutant(
        "burned-leftover-not-counted",
        "ids that a larger call skipped are not counted",
        Edit("CounterAllocator._skip_to", "self.row.burn(BurnCause.LEFTOVER, skipped)", "None"),
        scenarios=("shared",),
    ),
    Place("P9", COUNTER).mutant(
        "burned-tail-not-counted",
        "a tail that the store did not take back is not counted",
        Edit(
            "CounterAllocator._return_tail",
            "row.burn(BurnCause.NOT_RETURNED, lease.left - returned)",
            "row.burn(BurnCause.NOT_RETURNED, lease.left - count)",
        ),
        scenarios=("tail-return",),
    ),
    Place("P9", COUNTER).mutant(
        "burned-in-flight-not-counted",
        "a stop does not count the ids of a write in progress",
        Edit("CounterAllocator.abandon", "self.row.burn(BurnCause.UNKNOWN_OUTCOME, self.row.requested)", "None"),
        scenarios=("abandon",),
    ),
    Place("P9", ROW).mutant(
        "burned-unknown-not-counted",
        "the ids of a write without an answer are not counted",
        Edit("CounterRow._request", "self.burn(BurnCause.UNKNOWN_OUTCOME, requested)", "None"),
        scenarios=("cold-start",),
    ),
    Place("P9", ROW).mutant(
        "burned-backwards-not-counted",
        "ids granted by a store that went backwards are not counted",
        Edit("CounterRow._accept", "self.burn(BurnCause.WENT_BACKWARDS, grant.granted if grant else 0)", "None"),
        scenarios=("restore-empty",),
    ),
)
