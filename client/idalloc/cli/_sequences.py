"""`idalloc sequences …`."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idalloc.cli import _output, _past_table, _tables
from idalloc.cli._options import Json, Server, Timeout, connect, remember_for_group

if TYPE_CHECKING:
    from idalloc.v1.sequences_pb2 import AdvanceSequenceResponse, DeleteSequenceResponse, UpdateSequenceResponse

    Change = AdvanceSequenceResponse | DeleteSequenceResponse | UpdateSequenceResponse

app = typer.Typer(no_args_is_help=True, help="Create, show, change, advance and delete sequences.")
app.callback()(remember_for_group)

# What may be said of a sequence: the names of its fields, of which the flags are made.
SETTINGS = (
    *("description", "labels", "kind", "start", "step", "min_value", "max_value", "json_safe", "offset", "increment"),
    *("ordering", "min_lease_size", "max_lease_size", "format", "reset", "time_zone"),
)
# Listed here too, since neither --help nor completion loads the messages.
CHOICES = {
    "kind": ("counter", "timestamp-ms", "timestamp-us"),
    "ordering": ("rising-per-node", "rising"),
    "reset": ("never", "yearly", "monthly", "daily"),
}
DEFAULT = "default"


def _number(text: str | int) -> int:
    """Reads a number, which may be negative."""
    return _read(text, "must be a whole number of 64 bits")


def _number_or_default(text: str | int) -> int | str:
    """Reads a number, or the word that stands for the default."""
    return DEFAULT if text == DEFAULT else _read(text, f"must be a whole number of 64 bits, or the word {DEFAULT}")


def _read(text: str | int, rule: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", str(text)) or not -(2**63) <= int(text) < 2**63:
        raise typer.BadParameter(f"{rule}, not {text}")
    return int(text)


def _refuse_change(_: str) -> str:
    raise typer.BadParameter("cannot be changed after creation")


def _label(text: str) -> str:
    if text and not re.fullmatch(r"[^=]+=.*", text):
        raise typer.BadParameter("must be written KEY=VALUE")
    return text


def _choice(name: str, text: str) -> Any:
    def read(text: str) -> str:
        if text not in CHOICES[name]:
            raise typer.BadParameter(f"must be one of {', '.join(CHOICES[name])}")
        return text

    choices = CHOICES[name]
    return typer.Option(metavar="|".join(choices), parser=read, autocompletion=lambda: list(choices), help=text)


def _integer(text: str) -> Any:
    return typer.Option(metavar="N", parser=_number_or_default, help=text)


Name = Annotated[str, typer.Argument(metavar="NAME", help="The sequence's name.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", parser=_label, help="May be repeated; an update replaces all."),
]
Kind = Annotated[
    str | None, _choice("kind", "Whether it counts, or gives the time, each value once; default: counter.")
]
Start = Annotated[int | None, _integer("The first id ever; default: the bound at which it begins.")]
Step = Annotated[int | None, _integer("From one id to the next, also negative; default: 1.")]
MinValue = Annotated[int | None, _integer("No id lies below it; default: 1.")]
MaxValue = Annotated[int | None, _integer("No id lies above it; default: 2^63-2, or what the format has room for.")]
JsonSafe = Annotated[
    bool | None, typer.Option("--json-safe", metavar="", help="No id beyond 2^53-1, exact in JSON and doubles.")
]
Offset = Annotated[int | None, _integer("With --increment: the remainder of all ids, for independent clusters.")]
Increment = Annotated[int | None, _integer("How many independent clusters there may be; stands instead of --step.")]
Ordering = Annotated[
    str | None,
    _choice("ordering", "Whether ids rise within each node, or, slower, over all; default: rising-per-node."),
]
MinLeaseSize = Annotated[int | None, _integer("The fewest ids that a node takes from the store at a time.")]
MaxLeaseSize = Annotated[int | None, _integer("The most ids that a node takes from the store ahead.")]
Format = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="How ids are written as texts, as in 'INV-{year}-{value:06d}'.")
]
Reset = Annotated[
    str | None, _choice("reset", "How often it starts over, with a format that tells the period; default: never.")
]
TimeZone = Annotated[str | None, typer.Option(metavar="ZONE", help="For dates and periods, as in Europe/Vienna.")]
# Options of create that people also look for in update.
Fixed = Annotated[str | None, typer.Option(parser=_refuse_change, hidden=True)]
Period = Annotated[
    str,
    typer.Option(
        metavar="PERIOD", help="Whose counter, as in 2026-11, where there is a reset; default: the present one."
    ),
]
Etag = Annotated[
    str, typer.Option(metavar="ETAG", help="Refuse if the sequence was changed since this etag of it was shown.")
]
NoWait = Annotated[
    bool,
    typer.Option(
        "--no-wait", metavar="", help="Do not wait until no node works by what was before; print when that is."
    ),
]


@app.command("list")
def list_(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only those whose names begin with this.")] = "",
    show_deleted: Annotated[bool, typer.Option("--show-deleted", metavar="", help="Also deleted ones.")] = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List sequences: a table on a terminal, else one on a line, its columns divided by tabs."""
    from idalloc.v1.sequences_pb2 import ListSequencesResponse

    with connect(context, server, timeout) as client:
        found = list(client.sequences.list(prefix, show_deleted=show_deleted))
    if as_json:
        _output.write_json(ListSequencesResponse(sequences=found))
    else:
        _tables.write_table(found)


@app.command()
def create(
    context: typer.Context,
    name: Name,
    start: Start = None,
    step: Step = None,
    min_value: MinValue = None,
    max_value: MaxValue = None,
    json_safe: JsonSafe = None,
    offset: Offset = None,
    increment: Increment = None,
    ordering: Ordering = None,
    kind: Kind = None,
    min_lease_size: MinLeaseSize = None,
    max_lease_size: MaxLeaseSize = None,
    format: Format = None,
    reset: Reset = None,
    time_zone: TimeZone = None,
    labels: Labels = None,
    description: Description = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Create a sequence. Under the name of a deleted one, it goes on behind that one's last id."""
    settings = {key: value for key, value in _settings(context).items() if value is not None}
    with connect(context, server, timeout) as client:
        created = client.sequences.create(name, **settings)
    if as_json:
        _output.write_json(created)
    else:
        _tables.write_sequence(created)


@app.command()
def show(
    context: typer.Context,
    name: Name,
    period: Period = "",
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show a sequence: its settings, its counter, and when it will be exhausted."""
    with connect(context, server, timeout) as client:
        found = client.sequences.get(name, period)
    if as_json:
        _output.write_json(found)
    else:
        _tables.write_sequence(found)


@app.command()
def update(
    context: typer.Context,
    name: Name,
    start: Start = None,
    step: Step = None,
    min_value: MinValue = None,
    max_value: MaxValue = None,
    json_safe: JsonSafe = None,
    offset: Offset = None,
    increment: Increment = None,
    ordering: Ordering = None,
    min_lease_size: MinLeaseSize = None,
    max_lease_size: MaxLeaseSize = None,
    format: Format = None,
    labels: Labels = None,
    description: Description = None,
    kind: Fixed = None,
    reset: Fixed = None,
    time_zone: Fixed = None,
    etag: Etag = "",
    no_wait: NoWait = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Change settings of a sequence, and wait until no node works by the old ones any more.

    The word default puts a number back to its default, an empty text a text, and an empty label removes all labels.
    """
    settings = _settings(context)
    if not settings:
        raise typer.BadParameter("nothing to change", context)
    with connect(context, server, timeout) as client:
        changed = client.sequences.update(name, etag=etag, **settings)
    _finish(changed, no_wait=no_wait, as_json=as_json)


@app.command()
def advance(
    context: typer.Context,
    name: Name,
    past: Annotated[
        int | None, typer.Option(metavar="N", parser=_number, help="The largest id in use (counting down: smallest).")
    ] = None,
    past_table: Annotated[
        _past_table.Column | None,
        typer.Option(metavar=_past_table.FORM, parser=_past_table.read_url, help="Look for it in a table of CrateDB."),
    ] = None,
    period: Period = "",
    etag: Etag = "",
    no_wait: NoWait = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Move a sequence past the ids that are in use, and wait until no node issues one of them any more.

    A counter never moves back. One that is past that value already stays where it is; leases end all the same, since
    nodes may hold older ids: a new generation begins, and the wait is as long. With --past-table, an empty table
    changes nothing. Rows that others write meanwhile with ids of their own are not seen: stop them first.
    """
    if (past is None) == (past_table is None):
        raise typer.BadParameter("say either --past or --past-table", context)
    with connect(context, server, timeout) as client:
        if past_table is not None:
            smallest = client.sequences.get(name).step < 0
            past = _past_table.furthest(past_table, smallest=smallest, timeout=client.timeout)
        if past is None:
            _output.say(f"there is no id in {past_table.relation if past_table else ''}: nothing to do")
            return
        changed = client.sequences.advance(name, past, period=period, etag=etag)
    _finish(changed, no_wait=no_wait, as_json=as_json)


@app.command()
def delete(
    context: typer.Context,
    name: Name,
    etag: Etag = "",
    no_wait: NoWait = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Delete a sequence, and wait until no node issues ids of it any more. Its name stays known."""
    with connect(context, server, timeout) as client:
        changed = client.sequences.delete(name, etag=etag)
    _finish(changed, no_wait=no_wait, as_json=as_json)


def _settings(context: typer.Context) -> dict[str, Any]:
    """The settings that were said on the command line; None for those that are to be the default."""
    given = {key: context.params[key] for key in SETTINGS if context.params.get(key) not in (None, (), [])}
    if "labels" in given:
        given["labels"] = dict(label.split("=", 1) for label in given["labels"] if label)
    return {key: None if value == DEFAULT and key not in _WORDS else value for key, value in given.items()}


# Texts, in which the word default is nothing but that.
_WORDS = ("description", "format", "time_zone")


def _finish(changed: "Change", *, no_wait: bool, as_json: bool, wait: Callable[[float], None] = _output.wait) -> None:
    """Waits until a change holds on all nodes, and prints what came of it."""
    if not no_wait:
        wait(changed.effective_delay.ToTimedelta().total_seconds())
    if as_json:
        _output.write_json(changed)
    else:
        _tables.write_sequence(changed.sequence, changed.effective_time)
    if _tables.is_exhausted(changed.sequence):
        period = f" in {changed.sequence.period}" if changed.sequence.period else ""
        _output.say(f"{changed.sequence.name} is exhausted{period}: no id is left")
