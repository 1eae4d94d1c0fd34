"""Faults of the identity of a store, by which processes notice an exchange or a loss (P3)."""

from tests.support.mutants.edit import Edit, Place

IDENTITY = Place("P3", "idalloc_server.domain.store.identity")
MARK = Place("P3", "idalloc_server.store.cluster.write_mark")

MUTANTS = (
    IDENTITY.mutant(
        "part-without-the-name",
        "a part without the name of the store is opened",
        Edit("check_parts", "part.store != name and (part.store or part.name in held)", "False"),
        scenarios=("exchange-fresh",),
    ),
    IDENTITY.mutant(
        "list-of-no-part",
        "the parts that hold a copy of the name are not listed",
        Edit("listed", "part.name == SEQUENCES or part.store == name", "False"),
    ),
    IDENTITY.mutant(
        "worker-opens-any-place",
        "a restarted worker opens another place than the first one",
        Edit("check_place", "found.get(what, '') != seen", "False"),
        scenarios=("exchange-worker",),
    ),
    MARK.mutant(
        "number-of-a-write-repeated",
        "a write may have a number that an earlier one had",
        Edit("WriteMark.accept", "number <= floor", "False"),
        scenarios=("exchange-running",),
    ),
    MARK.mutant(
        "mark-without-a-latch",
        "refused writes raise the numbers of an exchanged store past the mark",
        Edit("WriteMark.accept", "self._repeated = (floor, number)", "raise StoreExchanged(self.what, str(number))"),
        scenarios=("exchange-running",),
    ),
)
