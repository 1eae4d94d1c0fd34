"""Faults of changes under load, of generations, and of periods (P5)."""

from tests.support.mutants.edit import Edit, Place

SEQUENCE = "idalloc_server.domain.allocation.sequence_allocator"
SERVICE = Place("P5", "idalloc_server.domain.administration.service")
GENERATIONS = Place("P5", "idalloc_server.domain.generations")

MUTANTS = (
    Place("P5", "idalloc_server.domain.allocation.counter_allocator").mutant(
        "life-not-written-to-the-row",
        "a grant does not write the life of its lease into the row",
        Edit("CounterRow.grant", "int(shared.allocation_config.lease_ttl * 1000)", "0"),
        scenarios=("advance-lease",),
    ),
    SERVICE.mutant(
        "effective-too-early",
        "a change counts as effective before the leases of before have ended",
        Edit("SequenceService._result", "row.lease_ms / 1000 + MARGIN_SECONDS", "MARGIN_SECONDS"),
        scenarios=("update-period",),
    ),
    SERVICE.mutant(
        "update-ends-no-lease",
        "an update of a bound, step or ordering starts no generation",
        Edit(
            "SequenceService.update.plan",
            "replace(after, description=before.description, labels=before.labels) != before",
            "False",
        ),
        scenarios=("update-step",),
    ),
    Place("P5", "idalloc_server.domain.sequences.validation").mutant(
        "bound-below-the-counter",
        "a new bound is written although the counter has passed it meanwhile",
        Edit(
            "changed_bound",
            "after.bound if after.bound != before.bound and after.reset == Reset.NEVER else None",
            "None",
        ),
        scenarios=("update-bound",),
    ),
    SERVICE.mutant(
        "create-takes-over-a-sequence",
        "the change key of a created row is not compared: an existing sequence is returned as a new one",
        Edit(
            "SequenceService._change",
            "change_key.wrote(row)",
            "change_key.wrote(row) or (new and (not row.deleted))",
        ),
        scenarios=("two-changes",),
    ),
    Place("P5", "idalloc_server.domain.administration.change_keys").mutant(
        "another-change-counts-as-a-retry",
        "another change with a used request_id is answered as if it were done",
        Edit(
            "ChangeKey.wrote",
            "raise RequestIdReused(self.request_id, f'another change of sequence {row.name!r}')",
            "return True",
        ),
        scenarios=("two-changes",),
    ),
    GENERATIONS.mutant(
        "generation-without-the-clock",
        "a new generation is one more than the last: a restored store repeats generations",
        Edit("generation_after", "max(generation + 1, int(clock.wall() * 1000))", "generation + 1"),
        scenarios=("advance-renewal",),
    ),
    GENERATIONS.mutant(
        "generation-of-a-period-is-even",
        "a sequence with a reset may get an even generation, in which an advance of a period is in progress",
        Edit("generation_after", "newer if sequence.reset == Reset.NEVER else newer | 1", "newer"),
        scenarios=("update-interrupted",),
    ),
    GENERATIONS.mutant(
        "advance-in-the-sequence's-generation",
        "an advance opens a period's counter in any generation, also in one that nodes use",
        Edit(
            "advance_period.advance",
            "(max(generation, row.generation if row else 0, int(clock.wall() * 1000)) // 2 + 1) * 2",
            "max(generation, row.generation if row else 0, int(clock.wall() * 1000)) + 1",
        ),
        scenarios=("update-interrupted",),
    ),
    GENERATIONS.mutant(
        "advance-of-a-period-is-lost",
        "an advance does not check whether another one opened the counter in its generation",
        Edit("advance_period.advance", "not sequence.is_past(at_least, row.last_value)", "True"),
        scenarios=("two-advances",),
    ),
    SERVICE.mutant(
        "advance-bumps-the-sequence-first",
        "an advance of a period changes the sequence before the counter",
        Edit(
            "SequenceService.advance.plan",
            "opened = await advance_period("
            "self._store, self._clock, counter, sequence, at_least=at_least, generation=seen)",
            "await self._store.revise(name, row.revision, self._revision(row, sequence, change_key))\n"
            "opened = await advance_period("
            "self._store, self._clock, counter, sequence, at_least=at_least, generation=seen)",
        ),
        scenarios=("retried-advance",),
    ),
    Place("P5", SEQUENCE).mutant(
        "interrupted-advance-stays",
        "no node completes an advance that stopped between its two writes",
        Edit("SequenceAllocator._renew_proof_of", "await self._complete_advance(generation)", "None"),
        scenarios=("interrupted-advance",),
    ),
    Place("P5", SEQUENCE).mutant(
        "period-of-an-older-generation",
        "ids of a period are issued from memory although the sequence has another generation",
        Edit(
            "SequenceAllocator.issue_now",
            "counter is None or counter.generation != proof.generation",
            "counter is None",
        ),
        scenarios=("update-period",),
    ),
    Place("P5", SEQUENCE).mutant(
        "period-not-validated",
        "ids of a period are issued after a wait although the sequence has another generation",
        Edit("SequenceAllocator._validate", "if proof.generation != issued.generation:\n    return None", "pass"),
        scenarios=("advance-period",),
    ),
    Place("resets", SEQUENCE).mutant(
        "period-of-the-clock-at-the-reply",
        "the period of ids is taken from the clock at the reply",
        Edit(
            "SequenceAllocator._validate",
            "return issued",
            "return issued._replace(period=self._current_period(proof))",
        ),
        scenarios=("period-end",),
    ),
)
