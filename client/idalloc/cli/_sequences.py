"""`idalloc sequences`: the commands that manage sequences and parse their ids."""

import re
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idalloc.cli import _fields, _past_table
from idalloc.cli._connection import connect, target_and_timeout
from idalloc.cli._options import add_group_options, add_options, choices, with_options
from idalloc.cli._printer import failure, write_stderr
from idalloc.cli._progress import wait
from idalloc.cli._usage import UsageError

if TYPE_CHECKING:
    from idalloc import SequenceChange

_HELP = "Create, show, change, advance and delete sequences, and parse their ids."
app = add_group_options(typer.Typer(no_args_is_help=True, help=_HELP))

# The values of enum fields, repeated here: --help and completion do not import the messages.
CHOICES = {
    "kind": ("counter", "timestamp-ms", "timestamp-us"),
    "ordering": ("rising-per-node", "rising"),
    "reset": ("never", "yearly", "monthly", "daily"),
}
DEFAULT = "default"


def _parse_number(text: str | int, alternative: str = "") -> int:
    """Parse a signed 64-bit integer."""
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", str(text)) or not -(2**63) <= int(text) < 2**63:
        raise typer.BadParameter(f"must be a whole number of 64 bits{alternative}, not {text!r}")
    return int(text)


def _parse_number_or_default(text: str | int) -> int | str:
    return DEFAULT if text == DEFAULT else _parse_number(text, ", or the word default")


def _reject_change(_: str) -> str:
    raise typer.BadParameter("cannot be changed after creation")


def _parse_label(text: str) -> str:
    if text and not re.fullmatch(r"[^=]+=.*", text):
        raise typer.BadParameter(f"must have the form KEY=VALUE, not {text!r}")
    return text


def _number(help: str) -> Any:
    return Annotated[int | None, typer.Option(metavar="N", parser=_parse_number_or_default, help=help)]


def _text(metavar: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(metavar=metavar, help=help)]


def _choice(name: str, help: str) -> Any:
    return Annotated[str | None, typer.Option(**choices(*CHOICES[name]), help=help)]


# The settings of a sequence, by the names of their fields.
SETTINGS = {
    "start": _number("The first id; default: the bound at which the sequence begins."),
    "step": _number("The distance between ids, negative to count down; default: 1."),
    "min_value": _number("The smallest id; default: 1."),
    "max_value": _number("The largest id; default: 2^63-2, or what fits the format."),
    "json_safe": Annotated[
        bool | None, typer.Option("--json-safe", metavar="", help="Limit ids to 2^53-1, exact in JSON and doubles.")
    ],
    "offset": _number("With --increment: the number of this installation, 1 to the increment."),
    "increment": _number("The number of independent installations whose ids must differ; replaces --step."),
    "ordering": _choice(
        "ordering", "Ids rise within each node, or (slower) across all nodes; default: rising-per-node."
    ),
    "kind": _choice("kind", "A counter, or unique timestamps since the Unix epoch; default: counter."),
    "min_lease_size": _number("The fewest ids that a node takes from the store at once, after its first write."),
    "max_lease_size": _number("The most ids that a node holds in reserve."),
    "format": _text("FORMAT", "The text form of ids, such as 'INV-{year}-{value:06d}'."),
    "reset": _choice("reset", "How often the sequence restarts; its format must contain the period; default: never."),
    "time_zone": _text("ZONE", "The time zone of dates and periods, such as Europe/Vienna; default: UTC."),
    "labels": Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="KEY=VALUE", parser=_parse_label, help="A label; repeatable. An update replaces all."
        ),
    ],
    "description": _text("TEXT", "A description for people."),
}
# Settings that cannot be changed, but that users also try with update.
_FIXED = dict.fromkeys(
    ("kind", "reset", "time_zone"), Annotated[str | None, typer.Option(parser=_reject_change, hidden=True)]
)
# Settings in which "default" is an ordinary text.
_TEXTS = ("description", "format", "time_zone")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The sequence's name.")]
Period = Annotated[
    str,
    typer.Option(
        metavar="PERIOD", help="The period of a sequence with a reset, such as 2026-11; default: the current one."
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
@with_options
def list_(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="List only names that begin with this text.")] = "",
    show_deleted: Annotated[
        bool, typer.Option("--show-deleted", metavar="", help="List deleted sequences, too.")
    ] = False,
) -> None:
    """List sequences: in a table on a terminal, else one per line, with tabs between columns."""
    with connect(context) as client:
        sequences = list(client.sequences.list(prefix, show_deleted=show_deleted))
    context.obj.rows(
        _fields.COLUMNS,
        map(_fields.columns, sequences),
        lambda: {"sequences": [each.to_dict() for each in sequences]},
        numbers=_fields.NUMBERS,
    )


@app.command()
@with_options
@partial(add_options, options=SETTINGS)
def create(context: typer.Context, name: Name, **settings: Any) -> None:
    """Create a sequence.

    If one of that name was deleted, the new one continues after its last id.
    """
    given = {key: value for key, value in _given(settings).items() if value is not None}
    with connect(context) as client:
        sequence = client.sequences.create(name, **given)
    context.obj.record(_fields.sequence_fields(sequence), sequence.to_dict)


@app.command()
@with_options
def show(context: typer.Context, name: Name, period: Period = "") -> None:
    """Show a sequence: its settings, its counter, and when it will be exhausted."""
    with connect(context) as client:
        sequence = client.sequences.get(name, period=period)
    context.obj.record(_fields.sequence_fields(sequence), sequence.to_dict)


@app.command()
@with_options
@partial(add_options, options=SETTINGS | _FIXED)
def update(context: typer.Context, name: Name, etag: Etag = "", no_wait: NoWait = False, **settings: Any) -> None:
    """Change settings of a sequence, and wait until the change is effective on all nodes.

    The word default resets a number to its default, an empty text resets a text, and an empty label
    removes all labels.
    """
    given = _given(settings)
    if not given:
        raise UsageError("nothing to change; give at least one setting", context)
    with connect(context) as client:
        change = client.sequences.update(name, etag=etag, **given)
    _finish(context, change, no_wait=no_wait)


@app.command()
@with_options
def advance(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The sequence's name.")] = None,
    past: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=_parse_number, help="The largest id in use (the smallest, if it counts down)."
        ),
    ] = None,
    past_table: Annotated[
        _past_table.Column | None,
        typer.Option(
            metavar=_past_table.FORM, parser=_past_table.parse_url, help="Read the largest id from a table in CrateDB."
        ),
    ] = None,
    period: Period = "",
    etag: Etag = "",
    every: Annotated[
        bool,
        typer.Option(
            "--all", metavar="", help="Advance all sequences past the marks of the server's witness, without NAME."
        ),
    ] = False,
    no_wait: NoWait = False,
) -> None:
    """Move a sequence past the ids in use, and wait until no node issues one of them.

    A counter never moves back: if it is already past that id, it stays. A new generation begins in
    either case, since nodes may hold leases of older ids. With --past-table, an empty table changes
    nothing. Stop other writers of the table first: the query does not see the ids that they insert
    after it.

    With --all, a server with a witness moves each sequence past the ids that the witness confirmed,
    as is needed after the store was restored. Repeat the command after a failure. It does not see
    sequences that the store lacks: `idalloc witness show` does.
    """
    if every:
        if name is not None or past is not None or past_table is not None or period or etag:
            raise UsageError("--all excludes NAME, --past, --past-table, --period and --etag", context)
        _advance_all(context, no_wait=no_wait)
        return
    if name is None:
        raise UsageError("give the NAME of a sequence, or --all", context)
    if (past is None) == (past_table is None):
        raise UsageError("give either --past or --past-table", context)
    with connect(context) as client:
        if past_table is not None:
            smallest = (client.sequences.get(name).step or 1) < 0
            past = _past_table.query_last_id(past_table, smallest=smallest, timeout=client.timeout)
        if past is None:
            write_stderr(f"no id in {past_table.relation if past_table else ''}: nothing to do")
            return
        change = client.sequences.advance(name, past, period=period, etag=etag)
    _finish(context, change, no_wait=no_wait)


def _advance_all(context: typer.Context, *, no_wait: bool) -> None:
    """Advance each sequence past its own last id, and wait until all changes are effective.

    A server with a witness moves the sequence past its mark, too. A refused sequence does not end
    the command.
    """
    from idalloc import DeadlineExceeded, IdallocError, Unauthenticated, Unavailable  # imported late: see connect

    refused = []
    count = 0
    effective = time.monotonic()
    with connect(context) as client:
        if not client.node().witness:
            raise failure(
                f"the server at {target_and_timeout(context)[0]} has no witness, so it does not know which ids were "
                "issued: advance each sequence with --past and the highest id in use"
            )
        for sequence in client.sequences.list():
            past = sequence.last_value
            if past is None:  # the value before the start
                start, step = (1 if value is None else value for value in (sequence.start, sequence.step))
                past = start - step
            try:
                change = client.sequences.advance(sequence.name, past)
            except (DeadlineExceeded, Unauthenticated, Unavailable):
                raise  # the next sequence would fail, too
            except IdallocError as error:
                write_stderr(f"{error.reason}: {error}")
                refused.append(sequence.name)
                continue
            count += 1
            effective = max(effective, time.monotonic() + change.effective_delay.total_seconds())
            last = change.sequence.last_value
            at = _fields.text(change.effective_time)
            line = f"{sequence.name}: last value {'none' if last is None else last}, effective time {at}"
            context.obj.lines([line], change.to_dict, one_line=True)
    if not no_wait:
        wait(effective - time.monotonic())
    if refused:
        raise failure(f"advanced {count} sequences, not {', '.join(refused)}")


@app.command()
@with_options
def delete(context: typer.Context, name: Name, etag: Etag = "", no_wait: NoWait = False) -> None:
    """Delete a sequence, and wait until no node issues its ids.

    The store keeps its name and last id.
    """
    with connect(context) as client:
        change = client.sequences.delete(name, etag=etag)
    _finish(context, change, no_wait=no_wait)


# TEXT may be a negative number, which would be read as an option.
@app.command(context_settings={"ignore_unknown_options": True})
@with_options
def parse(
    context: typer.Context, name: Name, text: Annotated[str, typer.Argument(metavar="TEXT", help="The text of an id.")]
) -> None:
    """Parse the text of an id by the sequence's format."""
    with connect(context) as client:
        parts = client.parse_id(name, text)
    context.obj.record(_fields.fields(parts), parts.to_dict)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given on the command line; None resets one to its default."""
    given = {key: value for key, value in settings.items() if value not in (None, (), [])}
    if "labels" in given:
        given["labels"] = dict(label.split("=", 1) for label in given["labels"] if label)
    return {key: None if value == DEFAULT and key not in _TEXTS else value for key, value in given.items()}


def _finish(context: typer.Context, change: "SequenceChange", *, no_wait: bool) -> None:
    """Wait until a change is effective on all nodes, and print it."""
    if not no_wait:
        wait(change.effective_delay.total_seconds())
    sequence = change.sequence
    effective_time = ("effective time", _fields.text(change.effective_time))
    context.obj.record([*_fields.sequence_fields(sequence), effective_time], change.to_dict)
    if _fields.is_exhausted(sequence):
        period = f" in {sequence.period}" if sequence.period else ""
        write_stderr(f"{sequence.name} is exhausted{period}: no id is left")
