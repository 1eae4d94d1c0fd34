"""Faults of the returned tail, and of the marks that detect a restored store (P2, P3)."""

from tests.support.mutants.edit import Edit, Place

COUNTER = "idalloc_server.domain.allocation.counter_allocator"
MARKS = Place("P3", "idalloc_server.domain.allocation.high_water_marks")
ROW = Place("P3", "idalloc_server.domain.allocation.counter_allocator")

MUTANTS = (
    Place("P2", "tests.support.fake_store").mutant(
        "tail-without-compare-and-set",
        "the store takes a tail back although the row was written since",
        Edit(
            "MemoryStore._give_back",
            "row is None or row.last_value is None or version != (row.version, 1, row.generation)",
            "row is None or row.last_value is None",
        ),
        scenarios=("tail-return",),
    ),
    Place("P2", COUNTER).mutant(
        "tail-not-detached",
        "a tail is detached only after the store took it back",
        Edit(
            "CounterAllocator._return_tail",
            "lease = self._detach()",
            "lease = self._lease",
        ),
        Edit("CounterAllocator._return_tail", "self._returning = 0", "self._returning = 0\nself._detach()"),
        scenarios=("rising-cancel",),
    ),
    Place("P2", "idalloc_server.domain.allocation.lease").mutant(
        "tail-that-others-saw",
        "a tail includes values that another node has seen",
        Edit("Lease.tail", "min(max(0, (self._others_saw - value) // self.step), count)", "0"),
        scenarios=("idle-close",),
    ),
    Place("P3", COUNTER).mutant(
        "mark-stays-above-a-tail",
        "the mark is not moved back to the start of a tail that is given back",
        Edit(
            "CounterAllocator._return_tail",
            "self._shared.high_water_marks.move_back(row.name, lease.generation, end, value)",
            "None",
        ),
        scenarios=("restore",),
    ),
    MARKS.mutant(
        "mark-moves-below-a-newer-one",
        "the mark moves back for a tail although it has changed since",
        Edit(
            "HighWaterMarks.move_back",
            "mark is not None and (mark.generation, mark.value) == (generation, end)",
            "mark is not None",
        ),
        unexplored="only with more than 32 idle sequences is a tail returned after the next use of its sequence",
    ),
    Place("P3", "idalloc_server.domain.allocation.allocator").mutant(
        "mark-dropped-with-its-allocator",
        "the mark of a sequence is dropped when the sequence is idle",
        Edit(
            "Allocator.check_idle_sequences",
            "del self._sequence_allocators[name]",
            "del self._sequence_allocators[name]\nself._high_water_marks._marks.pop(name, None)",
        ),
        scenarios=("restore",),
    ),
    MARKS.mutant(
        "mark-compared-after-the-write",
        "the mark is compared with the counter after the write, not before it",
        Edit(
            "HighWaterMarks.update",
            "value_before if counts and is_same else None",
            "grant.last_value if counts and is_same else None",
        ),
        unexplored="equivalent with the floor: a store that is behind grants nothing, so that both values are equal",
    ),
    MARKS.mutant(
        "older-generation-accepted",
        "a write of an older generation than the mark's is accepted",
        Edit(
            "HighWaterMarks.update",
            "mark.is_ahead_of(grant.generation, value_before if counts and is_same else None)",
            "mark.is_ahead_of(mark.generation, value_before if counts and is_same else None)",
        ),
        scenarios=("restore",),
    ),
    MARKS.mutant(
        "read-accepted-without-a-change",
        "a sequence that was behind is accepted by a read, although nobody advanced it",
        Edit("HighWaterMarks.accept", "row.generation <= mark.generation", "False"),
        scenarios=("restore-fresh",),
    ),
    MARKS.mutant(
        "read-accepted-below-the-mark",
        "an advance is accepted although it did not reach the mark",
        Edit(
            "HighWaterMarks.accept",
            "not (mark.is_past(row.last_value) and self._counts_ids(row.name))",
            "True",
        ),
        unexplored="equivalent: the write that follows the read is compared with the mark again",
    ),
    MARKS.mutant(
        "mark-of-a-clock-set-forward",
        "the mark of a period is dropped when a later period begins, also by a clock that is set back again",
        Edit(
            "HighWaterMarks.begin_period",
            "len(other) == len(period) and other < period and end <= now and other not in used",
            "len(other) == len(period) and other < period and other not in used",
        ),
        scenarios=("period-restore",),
    ),
    Place("P3", "idalloc_server.domain.allocation.sequence_allocator").mutant(
        "mark-of-a-used-period-is-forgotten",
        "the mark of a period that was opened early is dropped at a change, although its ids were issued",
        Edit(
            "SequenceAllocator._counter_of",
            "period == self._next_period and (not counter.has_issued)",
            "period == self._next_period",
        ),
        unexplored="it restores no period that was opened early",
    ),
    ROW.mutant(
        "grant-without-a-floor",
        "a store that is behind is not asked to keep its counter",
        Edit("CounterRow.grant", "shared.high_water_marks.floor(self.name)", "shared.high_water_marks.floor('')"),
        scenarios=("restore",),
    ),
    MARKS.mutant(
        "known-name-is-created-again",
        "a sequence that the process has seen is created again when its row is missing",
        Edit("HighWaterMarks.update", "raise self._backwards_error(name, 'no such row')", "pass"),
        scenarios=("restore-empty",),
    ),
    Place("P3", COUNTER).mutant(
        "lease-kept-behind-the-mark",
        "a node that noticed that the store went backwards goes on with its lease",
        Edit("CounterAllocator._run_refill", "self.drop(BurnCause.WENT_BACKWARDS)", "None"),
        scenarios=("restore-fresh",),
    ),
    Place("retirement", "idalloc_server.domain.store.retirement").mutant(
        "retired-store-serves",
        "a store whose sequences moved to another one is used further",
        Edit("raise_if_retired", "retirement is not None and not retirement.deleted", "False"),
        scenarios=("retire-new",),
    ),
)
