"""Faults of the witness's marks, by which fresh processes detect a restore (P1, P3, P6)."""

from tests.support.mutants.edit import Edit, Place

STORE = "idalloc_server.domain.witness.store"
CHAIN = Place("P1", "idalloc_server.domain.witness.chain")

MUTANTS = (
    Place("P3", STORE).mutant(
        "ids-without-a-mark",
        "the ids of a grant are not confirmed by the witness",
        Edit(
            "WitnessedStore._grant",
            "await self.chain.append(name, mark, grant.value_before, confirmed)",
            "None",
        ),
        scenarios=("witness-fresh", "witness-race"),
    ),
    CHAIN.mutant(
        "mark-passed-by-a-late-grant",
        "a mark is replaced although it is past the grant",
        Edit(
            "_confirm",
            "seen.step * reached.step > 0 and seen.generation <= reached.generation and (not seen.is_past(before))",
            "True",
        ),
        scenarios=("witness-race",),
    ),
    Place("P3", STORE).mutant(
        "alarm-by-a-mark-that-changed",
        "a store counts as restored also if its mark changed since it was read",
        Edit("WitnessedStore._grant", "granted or await self._is_present(name, mark)", "True"),
        scenarios=("witness-tail",),
    ),
    Place("P3", STORE).mutant(
        "tail-above-the-mark",
        "a tail is given back without lowering the mark",
        Edit("WitnessedStore.give_back", "not await self.chain.replace(name, mark, end - count * mark.step)", "False"),
        scenarios=("witness-idle",),
    ),
    Place("P1", STORE).mutant(
        "tail-of-another-mark",
        "the mark is lowered although another node has confirmed ids since",
        Edit(
            "WitnessedStore.give_back",
            "mark is None or (mark.generation, mark.value) != (numbers[-1], end)",
            "mark is None",
        ),
        scenarios=("witness-tail-race",),
    ),
    Place("P5", STORE).mutant(
        "advance-without-a-mark",
        "an advance does not move the mark",
        Edit("WitnessedStore._raise_mark", "row.last_value is None", "True"),
        scenarios=("witness-advance",),
    ),
    Place("P3", STORE).mutant(
        "advance-below-the-mark",
        "an advance of a restored sequence may end before the mark",
        Edit("_at_least", "mark.is_past(at_least)", "False"),
        scenarios=("witness-repair",),
    ),
    Place("P5", STORE).mutant(
        "bound-passed-by-the-mark",
        "a counter moves to its mark, past a new bound",
        Edit("_at_least", "not sequence.is_past(mark.value, sequence.bound)", "True"),
        unexplored="its check of bounds looks at the counter before the change",
    ),
    CHAIN.mutant(
        "two-marks-of-one-name",
        "two grants that are confirmed at once replace the same mark",
        Edit("MarkChain._replace", "list(first.values())", "replacements"),
        Edit("MarkChain._replace", "each.name in replaced and first[each.name] is each", "each.name in replaced"),
        unexplored="no node confirms two grants of a counter at once",
    ),
    Place("P1", "idalloc_server.domain.witness.gaps").mutant(
        "gaps-without-a-direction",
        "a grant of a descending sequence that is longer than a gap is confirmed out of it",
        Edit(
            "take_from_gap",
            "(ids.before - gap.before) * step >= 0 and (gap.last - ids.last) * step >= 0",
            "ids.before >= gap.before and gap.last >= ids.last",
        ),
        unexplored="no two grants of its descending sequence overlap",
    ),
    CHAIN.mutant(
        "mark-of-another-direction-moves",
        "a sequence of another direction replaces the mark",
        Edit("MarkChain.raise_to", "seen.step * reached.step > 0", "True"),
        scenarios=("witness-other",),
    ),
    Place("P6", STORE).mutant(
        "start-without-a-mark",
        "start timestamps are not confirmed by the witness",
        Edit(
            "WitnessedStore.claim_start",
            "await self.chain.append(name, mark, start - 1, Mark(0, start, 1))",
            "pass",
        ),
        scenarios=("witness-starts",),
    ),
)
