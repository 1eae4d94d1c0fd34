"""The commands `idalloc witness show` and `witness forget`.

``context.obj`` is the printer of the command `idalloc`, which also adds the options `--output` and
`--json`.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer

from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, check_name
from idalloc_server.domain.store.identity import Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.binding import open_with_witness
from idalloc_server.domain.witness.comparison import Comparison, Repair, compare, forget_marks
from idalloc_server.domain.witness.marks import START, Witness
from idalloc_server.settings.commands import ConfigFile, check_exists, fail, with_settings, with_settings_as_flags
from idalloc_server.settings.model import Settings
from idalloc_server.store.urls import open_store, open_witness

_COLUMNS = ("kind", "name", "period", "last id", "generation", "store last id", "store generation", "state", "repair")
_KEYS = ("kind", "name", "period", "lastId", "generation", "storeLastId", "storeGeneration", "state", "repair")
_NUMBERS = ("last id", "generation", "store last id", "store generation")
# The server warns of a witness on the store's disk; each command would warn again.
_LOG_LEVEL = "error"
# The steps of a repair, in their order.
_STEPS = {
    Repair.FORGET: "delete the marks of sequences that now count in the other direction with "
    "`idalloc witness forget SEQUENCE`",
    Repair.CREATE: "create missing or deleted sequences again with `idalloc sequences create`",
    Repair.ADVANCE: "run `idalloc sequences advance --all`",
}

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Show and delete the high-water marks that a witness keeps."
)
_with_witness_as_flags = partial(with_settings_as_flags, only=("witness", "store", "store_timeout"))


@app.command()
@_with_witness_as_flags
def show(
    context: typer.Context,
    sequence: Annotated[
        str | None, typer.Argument(metavar="SEQUENCE", help="Show only the marks of this sequence and its periods.")
    ] = None,
    *,
    config_file: ConfigFile = None,
    **flags: str | None,
) -> None:
    """Print the marks of the witness beside what the store has. Servers may run.

    The state of a mark is ok, behind (the store has a lower last id or generation, or counts in the
    other direction), or missing (the store has no such row). Servers refuse calls on a sequence
    that is behind or missing; then the exit code is 1. A start timestamp needs no repair: the next
    start of a server with its prefix continues past the mark.
    """
    found: list[Comparison] = []

    async def run_compare(settings: Settings) -> None:
        store, witness = _existing(settings)
        check_exists(store, "store")
        if sequence is not None:
            check_name(sequence)
        try:
            await open_with_witness(store, witness, Opening(creates=False))
            found.extend(await compare(store, witness, sequence))
        finally:
            await witness.close()
            await store.close()
        if sequence is not None and not found:
            fail(f"the witness {witness.address} has no mark of {sequence!r}", 1)

    with_settings(run_compare, config_file, flags, "store or witness", log_level=_LOG_LEVEL)
    rows = [list(_cells(each)) for each in found]
    # In the style of proto3's JSON mapping: 64-bit integers are texts, and empty fields are absent.
    content = [{key: value for key, value in zip(_KEYS, row, strict=True) if value} for row in rows]
    context.obj.rows(_COLUMNS, rows, lambda: {"marks": content}, numbers=_NUMBERS)
    repairs = [each.repair for each in found if each.repair is not None]
    if repairs:
        sys.stdout.flush()
        steps = "; then ".join(_STEPS[each] for each in _STEPS if each in {*repairs, Repair.ADVANCE})
        marks = "1 mark is" if len(repairs) == 1 else f"{len(repairs)} marks are"
        fail(f"{marks} not reached by the store: {steps}", 1)


@app.command()
@_with_witness_as_flags
def forget(
    context: typer.Context,
    sequences: Annotated[
        list[str] | None, typer.Argument(metavar="SEQUENCE...", help="The sequences whose marks to delete.")
    ] = None,
    *,
    every: Annotated[
        bool,
        typer.Option("--all", help="Delete all marks, also the name of the store: another store can then use it."),
    ] = False,
    config_file: ConfigFile = None,
    **flags: str | None,
) -> None:
    """Delete the marks of sequences and their periods.

    Servers then accept what the store has, also if it was restored: they issue ids again that were
    issued after the copy. To continue past the marks, run `idalloc sequences advance` instead.
    Delete the marks of a sequence that is gone for good, or that now counts in the other direction.
    """
    if every == bool(sequences):
        fail("give either names of sequences or --all", 2)
    names = [None] if every else [*dict.fromkeys(sequences or ())]
    counts: dict[str | None, int] = {}

    async def run_forget(settings: Settings) -> None:
        _, witness = _existing(settings)
        for name in names:
            if name is not None:
                check_name(name)
        try:
            await witness.open()
            for name in names:
                counts[name] = await forget_marks(witness, name)
        finally:
            await witness.close()
        if unknown := [repr(name) for name, count in counts.items() if name is not None and not count]:
            fail(f"the witness {witness.address} has no mark of {', '.join(unknown)}", 1)

    try:
        with_settings(run_forget, config_file, flags, "witness", log_level=_LOG_LEVEL)
    finally:
        if every or any(counts.values()):
            count = sum(counts.values())
            context.obj.lines([f"deleted {count} mark{'' if count == 1 else 's'}"], lambda: {"deleted": count})


def _existing(settings: Settings) -> tuple[Store, Witness]:
    """Return the store and the witness, not open yet; opening them does not create the witness.

    Raises:
        StartRefused: A URL is invalid, the witness is not set, or its file is missing.
    """
    store = open_store(settings.store, SystemClock(), settings.store_timeout)
    if not settings.witness:
        raise StartRefused("witness", "is not set; give the URL that the servers have, as --witness or IDALLOC_WITNESS")
    witness = open_witness(settings.witness, settings.store, settings.store_timeout)
    check_exists(witness, "witness")
    return store, witness


def _cells(each: Comparison) -> Iterator[str]:
    """Yield the cells of a mark, those of ``_COLUMNS``."""
    sequence, _, period = each.name.partition(PERIOD_SEPARATOR)
    if each.name.startswith(START):
        yield from ("start timestamp", each.name.removeprefix(START), "", str(each.mark.value), "")
    else:
        yield from ("sequence", sequence, period, str(each.mark.value), str(each.mark.generation))
    yield from ("" if number is None else str(number) for number in (each.value, each.generation))
    yield from (each.state, each.repair or "")
