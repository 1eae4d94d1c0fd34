"""`idalloc sequences`: the commands that create, list, show, update, advance and delete sequences."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idalloc.cli import _output, _past_table, _sequence_output
from idalloc.cli._options import Json, Server, Timeout, connect, set_group_options

if TYPE_CHECKING:
    from idalloc import SequenceChange

app = typer.Typer(no_args_is_help=True, help="Create, show, change, advance and delete sequences.")
app.callback()(set_group_options)

# The fields of a sequence that options set; an option has its field's name.
SETTINGS = (
    *("description", "labels", "kind", "start", "step", "min_value", "max_value", "json_safe", "offset", "increment"),
    *("ordering", "min_lease_size", "max_lease_size", "format", "reset", "time_zone"),
)
# The values of enum fields, repeated here: --help and completion do not import the messages.
CHOICES = {
    "kind": ("counter", "timestamp-ms", "timestamp-us"),
    "ordering": ("rising-per-node", "rising"),
    "reset": ("never", "yearly", "monthly", "daily"),
}
DEFAULT = "default"


def _parse_number(text: str | int) -> int:
    """Parse a signed 64-bit integer."""
    return _parse_int64(text, "must be a whole number of 64 bits")


def _parse_number_or_default(text: str | int) -> int | str:
    """Parse a signed 64-bit integer, or the word `default`."""
    rule = "must be a whole number of 64 bits, or the word default"
    return DEFAULT if text == DEFAULT else _parse_int64(text, rule)


def _parse_int64(text: str | int, rule: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", str(text)) or not -(2**63) <= int(text) < 2**63:
        raise typer.BadParameter(f"{rule}, not {text!r}")
    return int(text)


def _reject_change(_: str) -> str:
    raise typer.BadParameter("cannot be changed after creation")


def _parse_label(text: str) -> str:
    if text and not re.fullmatch(r"[^=]+=.*", text):
        raise typer.BadParameter(f"must have the form KEY=VALUE, not {text!r}")
    return text


def _choice_option(name: str, text: str) -> Any:
    def parse(text: str) -> str:
        if text not in CHOICES[name]:
            raise typer.BadParameter(f"must be one of {', '.join(CHOICES[name])}, not {text!r}")
        return text

    choices = CHOICES[name]
    return typer.Option(metavar="|".join(choices), parser=parse, autocompletion=lambda: list(choices), help=text)


def _integer_option(text: str) -> Any:
    return typer.Option(metavar="N", parser=_parse_number_or_default, help=text)


Name = Annotated[str, typer.Argument(metavar="NAME", help="The sequence's name.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="A description.")]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", parser=_parse_label, help="Repeatable; an update replaces all."),
]
Kind = Annotated[
    str | None, _choice_option("kind", "A counter, or unique timestamps since the Unix epoch; default: counter.")
]
Start = Annotated[int | None, _integer_option("The first id; default: the bound at which the sequence begins.")]
Step = Annotated[int | None, _integer_option("The distance between ids, negative to count down; default: 1.")]
MinValue = Annotated[int | None, _integer_option("The smallest id; default: 1.")]
MaxValue = Annotated[int | None, _integer_option("The largest id; default: 2^63-2, or what fits the format.")]
JsonSafe = Annotated[
    bool | None, typer.Option("--json-safe", metavar="", help="Limit ids to 2^53-1, exact in JSON and doubles.")
]
Offset = Annotated[int | None, _integer_option("With --increment: the remainder of all ids of this cluster.")]
Increment = Annotated[int | None, _integer_option("The number of independent clusters; replaces --step.")]
Ordering = Annotated[
    str | None,
    _choice_option("ordering", "Ids rise within each node, or, slower, over all nodes; default: rising-per-node."),
]
MinLeaseSize = Annotated[int | None, _integer_option("The fewest ids that a node leases at a time.")]
MaxLeaseSize = Annotated[int | None, _integer_option("The most ids that a node leases ahead.")]
Format = Annotated[
    str | None, typer.Option(metavar="FORMAT", help="The text form of ids, such as 'INV-{year}-{value:06d}'.")
]
Reset = Annotated[
    str | None, _choice_option("reset", "How often it restarts; the format must have the period; default: never.")
]
TimeZone = Annotated[str | None, typer.Option(metavar="ZONE", help="Of dates and periods, such as Europe/Vienna.")]
# Options of create that users also try with update.
Fixed = Annotated[str | None, typer.Option(parser=_reject_change, hidden=True)]
Period = Annotated[
    str,
    typer.Option(
        metavar="PERIOD", help="The period of a sequence with a reset, such as 2026-11; default: the present one."
    ),
]
Etag = Annotated[str, typer.Option(metavar="ETAG", help="Fail if the sequence has changed since this etag was read.")]
NoWait = Annotated[
    bool,
    typer.Option(
        "--no-wait", metavar="", help="Do not wait until the change is effective on all nodes; print when it is."
    ),
]


@app.command("list")
def list_(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="List only names that begin with this.")] = "",
    show_deleted: Annotated[bool, typer.Option("--show-deleted", metavar="", help="List deleted ones, too.")] = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """List sequences: a table on a terminal, else one on a line with columns separated by tabs."""
    with connect(context, server, timeout) as client:
        sequences = list(client.sequences.list(prefix, show_deleted=show_deleted))
    if as_json:
        _output.write_json({"sequences": [each.to_dict() for each in sequences]} if sequences else {})
    else:
        _sequence_output.write_table(sequences)


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
    """Create a sequence. If a deleted one had the name, the new one continues past its last id."""
    settings = {key: value for key, value in _settings(context).items() if value is not None}
    with connect(context, server, timeout) as client:
        sequence = client.sequences.create(name, **settings)
    if as_json:
        _output.write_json(sequence.to_dict())
    else:
        _sequence_output.write_sequence(sequence)


@app.command()
def show(
    context: typer.Context,
    name: Name,
    period: Period = "",
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Show a sequence: its settings, its counter and its forecast exhaustion."""
    with connect(context, server, timeout) as client:
        sequence = client.sequences.get(name, period)
    if as_json:
        _output.write_json(sequence.to_dict())
    else:
        _sequence_output.write_sequence(sequence)


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
    """Change settings of a sequence, and wait until the change is effective on all nodes.

    The word default resets a number to its default, an empty text resets a text, and an empty label removes all labels.
    """
    settings = _settings(context)
    if not settings:
        raise typer.BadParameter("nothing to change; give at least one setting", context)
    with connect(context, server, timeout) as client:
        change = client.sequences.update(name, etag=etag, **settings)
    _finish(change, no_wait=no_wait, as_json=as_json)


@app.command()
def advance(
    context: typer.Context,
    name: Name,
    past: Annotated[
        int | None,
        typer.Option(metavar="N", parser=_parse_number, help="The largest id in use (descending: smallest)."),
    ] = None,
    past_table: Annotated[
        _past_table.Column | None,
        typer.Option(metavar=_past_table.FORM, parser=_past_table.parse_url, help="Query it from a table in CrateDB."),
    ] = None,
    period: Period = "",
    etag: Etag = "",
    no_wait: NoWait = False,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Move a sequence past the ids in use, and wait until no node issues one of them.

    A counter never moves back: if it is already past that id, it stays. A new generation begins in either case, since
    nodes may hold leases of older ids. With --past-table, an empty table changes nothing. Stop other writers of the
    table first: the query does not see the ids that they insert after it.
    """
    if (past is None) == (past_table is None):
        raise typer.BadParameter("give either --past or --past-table", context)
    with connect(context, server, timeout) as client:
        if past_table is not None:
            smallest = (client.sequences.get(name).step or 1) < 0
            past = _past_table.query_last_id(past_table, smallest=smallest, timeout=client.timeout)
        if past is None:
            _output.write_stderr(f"no id in {past_table.relation if past_table else ''}: nothing to do")
            return
        change = client.sequences.advance(name, past, period=period, etag=etag)
    _finish(change, no_wait=no_wait, as_json=as_json)


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
    """Delete a sequence, and wait until no node issues its ids. The store keeps its name and last id."""
    with connect(context, server, timeout) as client:
        change = client.sequences.delete(name, etag=etag)
    _finish(change, no_wait=no_wait, as_json=as_json)


def _settings(context: typer.Context) -> dict[str, Any]:
    """Return the settings given on the command line; None resets one to its default."""
    given = {key: context.params[key] for key in SETTINGS if context.params.get(key) not in (None, (), [])}
    if "labels" in given:
        given["labels"] = dict(label.split("=", 1) for label in given["labels"] if label)
    return {key: None if value == DEFAULT and key not in _TEXTS else value for key, value in given.items()}


# Settings in which "default" is an ordinary text.
_TEXTS = ("description", "format", "time_zone")


def _finish(
    change: "SequenceChange", *, no_wait: bool, as_json: bool, wait: Callable[[float], None] = _output.wait
) -> None:
    """Wait until a change is effective on all nodes, and print it."""
    if not no_wait:
        wait(change.effective_delay.total_seconds())
    if as_json:
        _output.write_json(change.to_dict())
    else:
        _sequence_output.write_sequence(change.sequence, change.effective_time)
    if _sequence_output.is_exhausted(change.sequence):
        period = f" in {change.sequence.period}" if change.sequence.period else ""
        _output.write_stderr(f"{change.sequence.name} is exhausted{period}: no id is left")
