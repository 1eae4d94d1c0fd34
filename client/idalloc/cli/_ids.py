"""The commands that issue ids: `allocate`, `stream`, `docid` and `uuid`."""

import uuid
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idalloc.cli._connection import connect
from idalloc.cli._options import Log, choices, integer_parser, with_options
from idalloc.cli._printer import write_stderr
from idalloc.cli._progress import progress
from idalloc.cli._usage import UsageError

if TYPE_CHECKING:
    from idalloc import Range

Sequence = Annotated[str, typer.Argument(metavar="SEQUENCE", help="The sequence's name.")]
Count = Annotated[int, typer.Argument(metavar="COUNT", parser=integer_parser(1), help="The number of ids.")]
Ranges = Annotated[
    bool, typer.Option("--ranges", metavar="", help="Print a line 'FIRST LAST STEP' for each range, not the ids.")
]


def _auto_increment(variable: str) -> Any:
    help = f"MySQL's {variable} for this call, 1 to 65535; 0: the server's setting."
    return typer.Option(metavar="N", parser=integer_parser(0, 65535), help=help)


Texts = Annotated[
    bool,
    typer.Option(
        "--texts",
        metavar="",
        help="Print the ids in the sequence's format, if it has one; at most 10,000 ids in a range.",
    ),
]


# The server's limit on document ids, and on UUIDs, in one message.
MAX_IDS_PER_MESSAGE = 10_000


@with_options
def allocate(
    context: typer.Context,
    sequence: Sequence,
    count: Count = 1,
    ranges: Ranges = False,
    texts: Texts = False,
    request_id: Annotated[
        uuid.UUID | None, typer.Option(metavar="UUID", help="A retry with the same UUID gets the same ids.")
    ] = None,
    log: Log = None,
) -> None:
    """Allocate one contiguous range of ids from a sequence, and print an id on each line.

    If the sequence does not exist, the server creates it (1, 2, 3 …, no format), unless its setting
    auto_create_sequences is off. The command reports the creation on standard error. To choose the
    settings of a sequence, create it first with `idalloc sequences create`.
    """
    _check_exclusive(context, ranges, texts)
    with connect(context, log) as client:
        reply = client.allocate_range(sequence, count, request_id=request_id, texts=texts)
    _print_range(context, sequence, reply, ranges=ranges, texts=texts)
    _warn_of_periods(context, [reply.period], texts)


@with_options
def stream(
    context: typer.Context,
    sequence: Sequence,
    total: Annotated[int, typer.Option(metavar="N", parser=integer_parser(1), help="The total number of ids.")],
    chunk: Annotated[
        int, typer.Option(metavar="N", parser=integer_parser(0), help="The number of ids in a range; 0 means 10,000.")
    ] = 0,
    ranges: Ranges = False,
    texts: Texts = False,
    log: Log = None,
) -> None:
    """Allocate any number of ids from a sequence, range by range, and print an id on each line.

    The command resumes a stream that breaks, on any server that answers. As JSON it prints an
    object on a line for each range. --timeout limits the whole stream, and only if given after the
    command's name.
    """
    _check_exclusive(context, ranges, texts)
    timeout = context.params["timeout"]
    periods: dict[str, None] = {}
    with connect(context, log) as client, progress(total) as advance:
        for reply in client.stream_ranges(sequence, total, chunk, texts=texts, timeout=timeout):
            _print_range(context, sequence, reply, ranges=ranges, texts=texts, one_line=True)
            periods[reply.period] = None
            advance(reply.id_count)
    _warn_of_periods(context, periods, texts)


@with_options
def docid(
    context: typer.Context,
    count: Count = 1,
    offset: Annotated[int, _auto_increment("auto_increment_offset")] = 0,
    increment: Annotated[int, _auto_increment("auto_increment_increment")] = 0,
    log: Log = None,
) -> None:
    """Generate document ids in MySQL's format, and print an id on each line.

    More than 10,000 ids come as a stream, which the command resumes if it breaks; as JSON it prints
    an object on a line for each batch.
    """
    timeout = context.params["timeout"]
    streamed = count > MAX_IDS_PER_MESSAGE
    with connect(context, log) as client, progress(count) as advance:
        if streamed:
            batches = client.stream_doc_ids(count, offset=offset, increment=increment, timeout=timeout)
        else:
            batches = iter([client.doc_ids(count, offset=offset, increment=increment)])
        for batch in batches:
            context.obj.lines(batch, partial(dict, docIds=batch), one_line=streamed)
            advance(len(batch))


@with_options
def uuids(
    context: typer.Context,
    count: Count = 1,
    version: Annotated[
        str, typer.Option(**choices("4", "7"), help="The version: 7 is time-ordered, 4 is random.")
    ] = "7",
) -> None:
    """Generate UUIDs (RFC 9562), and print one on each line.

    The server sends 10,000 at a time; as JSON the command prints an object on a line for each
    batch.
    """
    with connect(context) as client:
        for start in range(0, count, MAX_IDS_PER_MESSAGE):
            batch = [str(each) for each in client.uuids(min(count - start, MAX_IDS_PER_MESSAGE), int(version))]
            context.obj.lines(batch, partial(dict, uuids=batch), one_line=count > MAX_IDS_PER_MESSAGE)


def _print_range(
    context: typer.Context, sequence: str, reply: "Range", *, ranges: bool, texts: bool, one_line: bool = False
) -> None:
    if reply.created:  # its name may be mistyped
        write_stderr(f"created sequence {sequence!r}")
    lines = [f"{reply.first_id} {reply.last_id} {reply.step}"] if ranges else reply.texts if texts else reply.ids
    context.obj.lines(lines, reply.to_dict, one_line=one_line)


def _warn_of_periods(context: typer.Context, periods: Iterable[str], texts: bool) -> None:
    """Warn that numbers repeat in other periods of a sequence with a reset."""
    if texts or context.obj.output == "json":
        return
    for period in filter(None, periods):
        write_stderr(f"ids of period {period}; other periods repeat these numbers: --texts adds the period")


def _check_exclusive(context: typer.Context, ranges: bool, texts: bool) -> None:
    if ranges and texts:
        raise UsageError("--ranges and --texts are mutually exclusive; give one of them", context)
