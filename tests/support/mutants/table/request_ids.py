"""Faults of calls with a request id (P7)."""

from tests.support.mutants.edit import Edit, Mutant

ALLOCATOR = "idalloc_server.domain.idempotency.allocator"
RETENTION = "idalloc_server.domain.store.retention"
SCENARIOS = ("request-id",)

MUTANTS = (
    Mutant(
        "answer-before-its-record",
        "P7",
        ALLOCATOR,
        "an answer is sent before it is recorded",
        (
            Edit(
                "IdempotentAllocator._answer",
                "recorded = await self._answers.write(allocation)",
                "recorded = allocation\nasyncio.ensure_future(self._answers.write(allocation))",
            ),
        ),
        SCENARIOS,
    ),
    Mutant(
        "own-answer-wins",
        "P7",
        "idalloc_server.domain.idempotency.answer_log",
        "of two recorded answers the own one counts, not the first one",
        (
            Edit(
                "AnswerLog._write",
                "stored.get(each.request_id, unknown)",
                "each",
            ),
        ),
        SCENARIOS,
    ),
    Mutant(
        "identity-without-the-period",
        "P7",
        ALLOCATOR,
        "answers of two periods with the same numbers count as one",
        (
            Edit(
                "_identity",
                "(allocation.sequence, allocation.generation, allocation.period, allocation.first_id)",
                "(allocation.sequence, allocation.generation, allocation.first_id)",
            ),
        ),
        ("request-period",),
    ),
    Mutant(
        "replay-of-an-older-generation",
        "P5",
        ALLOCATOR,
        "a retry gets its recorded ids although the sequence was changed since",
        (Edit("IdempotentAllocator._replay", "recorded.generation != proof.generation", "False"),),
        ("request-advance",),
    ),
    Mutant(
        "replay-before-the-change-is-seen",
        "P7",
        ALLOCATOR,
        "a node that has not seen a change yet burns the newer ids of a retry",
        (Edit("IdempotentAllocator._replay", "recorded.generation > proof.generation", "False"),),
        ("request-change",),
    ),
    Mutant(
        "replay-of-another-call",
        "P7",
        ALLOCATOR,
        "a request_id that was used for another sequence or count gets the ids recorded for it",
        (Edit("IdempotentAllocator._replay", "call.check_same(recorded)", "None"),),
        ("request-reuse",),
    ),
    Mutant(
        "late-caller-gets-ids",
        "P4",
        ALLOCATOR,
        "the end of the lease is not checked again when a caller with a request_id resumes",
        (Edit("IdempotentAllocator.allocate_once", "self._clock.boot() >= taken.expires_at", "False"),),
        ("request-late",),
    ),
    Mutant(
        "record-of-a-cancelled-call-ends",
        "P7",
        ALLOCATOR,
        "the record of an answer ends with its cancelled caller",
        (Edit("IdempotentAllocator._abandon_call", "call.taken is None", "True"),),
        ("request-stop",),
    ),
    Mutant(
        "burned-repeated-not-counted",
        "P9",
        ALLOCATOR,
        "the ids that a retry took in vain are not counted",
        (Edit("IdempotentAllocator._answer", "self._burn(call, BurnCause.REPEATED)", "None"),),
        ("request-reuse",),
    ),
    Mutant(
        "prune-ignores-the-window",
        "P7",
        RETENTION,
        "an answer is removed after the window of the node that removes it, not after its own",
        (
            Edit(
                "Retention.is_over",
                "max(self.own_window, OLD_WINDOW) if window_ms is None else window_ms / 1000",
                "self.own_window",
            ),
        ),
        ("request-window",),
    ),
    Mutant(
        "prune-by-the-wall-clock",
        "P7",
        ALLOCATOR,
        "answers are removed by a clock that can be set",
        (Edit("IdempotentAllocator.prune", "now = self._clock.boot()", "now = self._clock.wall()"),),
        ("request-window",),
    ),
)
