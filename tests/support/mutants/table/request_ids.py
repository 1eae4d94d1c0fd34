"""Faults of calls with a request id (P7)."""

from tests.support.mutants.edit import Edit, Place

ALLOCATOR = "idalloc_server.domain.idempotency.idempotent_allocator"
SCENARIOS = ("request-id",)

MUTANTS = (
    Place("P7", ALLOCATOR).mutant(
        "answer-before-its-record",
        "an answer is sent before it is recorded",
        Edit(
            "IdempotentAllocator._answer",
            "recorded = await self._answers.add(allocation)",
            "recorded = allocation\nasyncio.ensure_future(self._answers.add(allocation))",
        ),
        scenarios=SCENARIOS,
    ),
    Place("P7", ALLOCATOR).mutant(
        "own-answer-wins",
        "of two recorded answers the own one counts, not the first one",
        Edit("IdempotentAllocator._record", "stored.get(each.request_id, unknown)", "each"),
        scenarios=SCENARIOS,
    ),
    Place("P7", ALLOCATOR).mutant(
        "identity-without-the-period",
        "answers of two periods with the same numbers count as one",
        Edit(
            "",
            "attrgetter('sequence', 'generation', 'period', 'first_id')",
            "attrgetter('sequence', 'generation', 'first_id')",
        ),
        scenarios=("request-period",),
    ),
    Place("P5", ALLOCATOR).mutant(
        "replay-of-an-older-generation",
        "a retry gets its recorded ids although the sequence was changed since",
        Edit("IdempotentAllocator._replay", "recorded.generation != proof.generation", "False"),
        scenarios=("request-advance",),
    ),
    Place("P7", ALLOCATOR).mutant(
        "replay-before-the-change-is-seen",
        "a node that has not seen a change yet burns the newer ids of a retry",
        Edit("IdempotentAllocator._replay", "recorded.generation > proof.generation", "False"),
        scenarios=("request-change",),
    ),
    Place("P7", ALLOCATOR).mutant(
        "replay-of-another-call",
        "a request_id that was used for another sequence or count gets the ids recorded for it",
        Edit("IdempotentAllocator._replay", "call.check_same(recorded)", "None"),
        scenarios=("request-reuse",),
    ),
    Place("P4", ALLOCATOR).mutant(
        "late-caller-gets-ids",
        "the end of the lease is not checked again when a caller with a request_id resumes",
        Edit("IdempotentAllocator.allocate_once", "self._clock.boot() >= taken.expires_at", "False"),
        scenarios=("request-late",),
    ),
    Place("P7", ALLOCATOR).mutant(
        "record-of-a-cancelled-call-ends",
        "the record of an answer ends with its cancelled caller",
        Edit("IdempotentAllocator._wait_as_caller", "call.taken is None", "True"),
        scenarios=("request-stop",),
    ),
    Place("P9", ALLOCATOR).mutant(
        "burned-repeated-not-counted",
        "the ids that a retry took in vain are not counted",
        Edit("IdempotentAllocator._answer", "self._burn(call, BurnCause.REPEATED)", "None"),
        scenarios=("request-reuse",),
    ),
    Place("P7", "idalloc_server.domain.store.retention").mutant(
        "prune-ignores-the-window",
        "an answer is removed after the window of the node that removes it, not after its own",
        Edit(
            "Retention.is_over",
            "max(self.own_window, OLD_WINDOW) if window_ms is None else window_ms / 1000",
            "self.own_window",
        ),
        scenarios=("request-window",),
    ),
    Place("P7", ALLOCATOR).mutant(
        "prune-by-the-wall-clock",
        "answers are removed by a clock that can be set",
        Edit("IdempotentAllocator.prune", "now = self._clock.boot()", "now = self._clock.wall()"),
        scenarios=("request-window",),
    ),
)
