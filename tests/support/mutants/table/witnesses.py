"""Faults of the witness's marks, by which fresh processes detect a restore (P1, P3, P6)."""

from tests.support.mutants.edit import Edit, Mutant

CHAIN = "idalloc_server.domain.witness.chain"
STORE = "idalloc_server.domain.witness.store"

MUTANTS = (
    Mutant(
        "ids-without-a-mark",
        "P3",
        STORE,
        "the ids of a grant are not confirmed by the witness",
        (
            Edit(
                "WitnessedStore._grant",
                "await self._chain.append(name, mark, grant.value_before, grant.generation, grant.last_value,"
                " grant.sequence.step)",
                "None",
            ),
        ),
        ("witness-fresh", "witness-race"),
    ),
    Mutant(
        "mark-passed-by-a-late-grant",
        "P1",
        CHAIN,
        "a mark is replaced although it is past the grant",
        (
            Edit(
                "MarkChain._confirm",
                "seen.step * step > 0 and seen.generation <= generation and (not seen.is_past(ids.before))",
                "True",
            ),
        ),
        ("witness-race",),
    ),
    Mutant(
        "alarm-by-a-mark-that-changed",
        "P3",
        STORE,
        "a store counts as restored also if its mark changed since it was read",
        (Edit("WitnessedStore._grant", "granted or await self._is_present(name, mark)", "True"),),
        ("witness-tail",),
    ),
    Mutant(
        "tail-above-the-mark",
        "P3",
        STORE,
        "a tail is given back without lowering the mark",
        (
            Edit(
                "WitnessedStore.give_back",
                "not await self._chain.replace(name, mark, end - count * mark.step)",
                "False",
            ),
        ),
        ("witness-idle",),
    ),
    Mutant(
        "tail-of-another-mark",
        "P1",
        STORE,
        "the mark is lowered although another node has confirmed ids since",
        (
            Edit(
                "WitnessedStore.give_back",
                "mark is None or (mark.generation, mark.value) != (numbers[-1], end)",
                "mark is None",
            ),
        ),
        ("witness-tail-race",),
    ),
    Mutant(
        "advance-without-a-mark",
        "P5",
        STORE,
        "an advance does not move the mark",
        (Edit("WitnessedStore._raise_mark", "row.last_value is None", "True"),),
        ("witness-advance",),
    ),
    Mutant(
        "advance-below-the-mark",
        "P3",
        STORE,
        "an advance of a restored sequence may end before the mark",
        (Edit("_at_least", "mark.is_past(at_least)", "False"),),
        ("witness-repair",),
    ),
    Mutant(
        "bound-passed-by-the-mark",
        "P5",
        STORE,
        "a counter moves to its mark, past a new bound",
        (Edit("_at_least", "not sequence.is_past(mark.value, sequence.bound)", "True"),),
        (),
        unexplored="its check of bounds looks at the counter before the change",
    ),
    Mutant(
        "mark-of-another-direction-moves",
        "P1",
        CHAIN,
        "a sequence of another direction replaces the mark",
        (Edit("_may_move", "mark.step * step > 0", "True"),),
        ("witness-other",),
    ),
    Mutant(
        "start-without-a-mark",
        "P6",
        STORE,
        "start timestamps are not confirmed by the witness",
        (Edit("WitnessedStore.claim_start", "await self._chain.append(name, mark, start - 1, 0, start, 1)", "pass"),),
        ("witness-starts",),
    ),
)
