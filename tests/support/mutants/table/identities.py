"""Faults of the identity of a store, by which processes notice an exchange or a loss (P3)."""

from tests.support.mutants.edit import Edit, Mutant

IDENTITY = "idalloc_server.domain.store.identity"
MARK = "idalloc_server.store.cluster.write_mark"

MUTANTS = (
    Mutant(
        "part-without-the-name",
        "P3",
        IDENTITY,
        "a part without the name of the store is opened",
        (Edit("check_parts", "part.store != name and (part.store or part.name in held)", "False"),),
        ("exchange-fresh",),
    ),
    Mutant(
        "list-of-no-part",
        "P3",
        IDENTITY,
        "the parts that hold a copy of the name are not listed",
        (Edit("listed", "part.name == SEQUENCES or part.store == name", "False"),),
    ),
    Mutant(
        "worker-opens-any-place",
        "P3",
        IDENTITY,
        "a restarted worker opens another place than the first one",
        (Edit("check_place", "found.get(what, '') != seen", "False"),),
        ("exchange-worker",),
    ),
    Mutant(
        "number-of-a-write-repeated",
        "P3",
        MARK,
        "a write may have a number that an earlier one had",
        (Edit("WriteMark.accept", "number <= floor", "False"),),
        ("exchange-running",),
    ),
    Mutant(
        "mark-without-a-latch",
        "P3",
        MARK,
        "refused writes raise the numbers of an exchanged store past the mark",
        (Edit("WriteMark.accept", "self._repeated = (floor, number)", "raise self._error(floor, number)"),),
        ("exchange-running",),
    ),
)
