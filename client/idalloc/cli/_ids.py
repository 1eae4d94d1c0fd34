"""The commands that issue ids (`allocate`, `stream`, `docid`, `uuid`), and `parse`."""

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Json, Log, Server, Timeout, connect, integer_parser, parse_count, parse_count_or_zero

if TYPE_CHECKING:
    from idalloc import Range

Sequence = Annotated[str, typer.Argument(metavar="SEQUENCE", help="The sequence's name.")]
Count = Annotated[int, typer.Argument(metavar="COUNT", parser=parse_count, help="The number of ids.")]
Ranges = Annotated[
    bool, typer.Option("--ranges", metavar="", help="Print a line 'FIRST LAST STEP' for each range, not the ids.")
]
AUTO_INCREMENT = typer.Option(
    metavar="N",
    parser=integer_parser(0, 65535),
    help="As MySQL's auto_increment variable, for this call: 1 to 65535; 0: the server's setting.",
)


def _parse_request_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise typer.BadParameter("must be a UUID") from None


def _parse_version(text: str | int) -> int:
    if str(text) not in ("4", "7"):
        raise typer.BadParameter("must be 4 or 7")
    return int(text)


def _check_exclusive(context: typer.Context, ranges: bool, texts: bool) -> None:
    if ranges and texts:
        raise typer.BadParameter("--ranges and --texts are mutually exclusive; give one of them", context)


Texts = Annotated[
    bool,
    typer.Option(
        "--texts",
        metavar="",
        help="Print the ids in the sequence's format, if it has one; at most 10,000 ids in a range.",
    ),
]


def _warn_of_periods(periods: Iterable[str]) -> None:
    """Warn that numbers repeat in other periods of a sequence with a reset."""
    for period in filter(None, periods):
        _output.write_stderr(f"ids of period {period}; other periods repeat these numbers: --texts adds the period")


def _report_created(reply: "Range", sequence: str) -> None:
    """Report a sequence that the call created: its name may be mistyped."""
    if reply.created:
        _output.write_stderr(f"created sequence {sequence!r}")


# The server's limit on document ids in one message.
MAX_DOC_IDS_PER_MESSAGE = 10_000
# The most UUIDs in a call.
MAX_UUIDS_PER_CALL = 10_000


def allocate(
    context: typer.Context,
    sequence: Sequence,
    count: Count = 1,
    ranges: Ranges = False,
    texts: Texts = False,
    request_id: Annotated[
        str | None,
        typer.Option(metavar="UUID", parser=_parse_request_id, help="A retry with the same UUID gets the same ids."),
    ] = None,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Allocate one contiguous range of ids from a sequence, and print an id on each line.

    If the sequence does not exist, the server creates it (1, 2, 3 …, no format) and the command reports that on
    standard error, unless the server's setting auto_create_sequences is off. To choose the settings of a sequence,
    create it first with `idalloc sequences create`.
    """
    _check_exclusive(context, ranges, texts)
    with connect(context, server, timeout, log) as client:
        reply = client.allocate_range(sequence, count, request_id=request_id, texts=texts)
    _report_created(reply, sequence)
    if as_json:
        _output.write_json(reply.to_dict())
    elif texts:
        _output.write_lines(reply.texts)
    else:
        _output.write_range(reply.ids, as_range=ranges)
        _warn_of_periods([reply.period])


def stream(
    context: typer.Context,
    sequence: Sequence,
    total: Annotated[int, typer.Option(metavar="N", parser=parse_count, help="The number of ids in all.")],
    chunk: Annotated[
        int, typer.Option(metavar="N", parser=parse_count_or_zero, help="The number of ids in a range; 0: 10,000.")
    ] = 0,
    ranges: Ranges = False,
    texts: Texts = False,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Allocate any number of ids from a sequence, range by range, and print an id on each line.

    The command resumes a stream that breaks, on any server that answers. With --json it prints an object on a line
    for each range. --timeout limits the whole stream, and only if given after the command's name.
    """
    _check_exclusive(context, ranges, texts)
    periods: dict[str, None] = {}
    with connect(context, server, timeout, log) as client, _output.progress(total) as advance:
        limit = client.timeout if timeout else None
        for reply in client.stream_ranges(sequence, total, chunk, texts=texts, timeout=limit):
            _report_created(reply, sequence)
            if as_json:
                _output.write_json(reply.to_dict(), one_line=True)
            elif texts:
                _output.write_lines(reply.texts)
            else:
                _output.write_range(reply.ids, as_range=ranges)
                periods[reply.period] = None
            advance(reply.id_count)
    _warn_of_periods(periods)


def docid(
    context: typer.Context,
    count: Count = 1,
    offset: Annotated[int, AUTO_INCREMENT] = 0,
    increment: Annotated[int, AUTO_INCREMENT] = 0,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Generate document ids in MySQL's format, and print an id on each line.

    More than 10,000 ids come as a stream, which the command resumes if it breaks; with --json it prints an object on
    a line for each batch.
    """
    with connect(context, server, timeout, log) as client:
        if count <= MAX_DOC_IDS_PER_MESSAGE:
            _write_batch("docIds", client.doc_ids(count, offset=offset, increment=increment), as_json)
            return
        limit = client.timeout if timeout else None
        with _output.progress(count) as advance:
            for batch in client.stream_doc_ids(count, offset=offset, increment=increment, timeout=limit):
                _write_batch("docIds", batch, as_json, one_line=True)
                advance(len(batch))


def _write_batch(name: str, texts: list[str], as_json: bool, *, one_line: bool = False) -> None:
    if as_json:
        _output.write_json({name: texts}, one_line=one_line)
    else:
        _output.write_lines(texts)


def uuids(
    context: typer.Context,
    count: Count = 1,
    version: Annotated[int, typer.Option(metavar="4|7", parser=_parse_version, help="7: time-ordered; 4: random.")] = 7,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Generate UUIDs (RFC 9562), and print one on each line.

    The server sends 10,000 at a time; with --json the command prints an object on a line for each batch.
    """
    with connect(context, server, timeout) as client:
        for made in range(0, count, MAX_UUIDS_PER_CALL):
            batch = client.uuids(min(MAX_UUIDS_PER_CALL, count - made), version)
            _write_batch("uuids", list(map(str, batch)), as_json, one_line=count > MAX_UUIDS_PER_CALL)


def parse(
    context: typer.Context,
    sequence: Sequence,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text of an id.")],
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Parse the text of an id by the sequence's format."""
    with connect(context, server, timeout) as client:
        parts = client.parse_id(sequence, text)
    if as_json:
        _output.write_json(parts.to_dict())
    else:
        _output.write_fields(parts)
