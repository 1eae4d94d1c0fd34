"""The commands that issue ids (`allocate`, `stream`, `docid`, `uuid`), and `parse`."""

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Json, Log, Server, Timeout, connect, integer_parser, parse_count, parse_count_or_zero

if TYPE_CHECKING:
    from idalloc.v1.id_allocator_pb2 import AllocateRangeResponse, StreamRangesResponse

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


def _report_created(reply: "AllocateRangeResponse | StreamRangesResponse", sequence: str) -> None:
    """Report a sequence that the call created: its name may be mistyped."""
    if reply.created:
        _output.write_stderr(f"created sequence {sequence!r}")


# The server's limit on document ids in one message.
MAX_DOC_IDS_PER_MESSAGE = 10_000


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
    from idalloc._core.conversions import to_range
    from idalloc._core.requests import range_request
    from idalloc.v1.id_allocator_pb2 import RANGE_VIEW_BASIC, RANGE_VIEW_TEXTS

    _check_exclusive(context, ranges, texts)
    view = RANGE_VIEW_TEXTS if texts else RANGE_VIEW_BASIC
    with connect(context, server, timeout, log) as client:
        reply = client._allocate(range_request(sequence, count, request_id=request_id, view=view))
    _report_created(reply, sequence)
    if as_json:
        _output.write_json(reply)
    elif texts:
        _output.write_lines(reply.texts)
    else:
        _output.write_range(to_range(reply), as_range=ranges)
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
    from idalloc._core.conversions import to_range
    from idalloc._core.requests import stream_ranges_request
    from idalloc.v1.id_allocator_pb2 import RANGE_VIEW_BASIC, RANGE_VIEW_TEXTS

    _check_exclusive(context, ranges, texts)
    view = RANGE_VIEW_TEXTS if texts else RANGE_VIEW_BASIC
    periods: dict[str, None] = {}
    with connect(context, server, timeout, log) as client, _output.progress(total) as advance:
        replies = client._stream(
            lambda stubs: stubs.ids.StreamRanges,
            stream_ranges_request(sequence, chunk, view),
            lambda reply: reply,
            total,
            client.timeout if timeout else None,
        )
        for reply in replies:
            _report_created(reply, sequence)
            if as_json:
                _output.write_json(reply, one_line=True)
            elif texts:
                _output.write_lines(reply.texts)
            else:
                _output.write_range(to_range(reply), as_range=ranges)
                periods[reply.period] = None
            advance(reply.range.id_count)
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
    from idalloc._core.requests import doc_ids_request, stream_doc_ids_request
    from idalloc.v1.id_allocator_pb2 import DOC_ID_VIEW_IDS

    with connect(context, server, timeout, log) as client:
        if count <= MAX_DOC_IDS_PER_MESSAGE and as_json:
            request = doc_ids_request(count, offset, increment, DOC_ID_VIEW_IDS)
            _output.write_json(client._generate(request))
        elif count <= MAX_DOC_IDS_PER_MESSAGE:
            _output.write_lines(client.doc_ids(count, offset=offset, increment=increment))
        else:
            with _output.progress(count) as advance:
                for reply in client._stream(
                    lambda stubs: stubs.ids.StreamDocIds,
                    stream_doc_ids_request(0, offset, increment, DOC_ID_VIEW_IDS),
                    lambda reply: reply,
                    count,
                    client.timeout if timeout else None,
                ):
                    if as_json:
                        _output.write_json(reply, one_line=True)
                    else:
                        _output.write_lines(reply.doc_ids)
                    advance(len(reply.doc_ids))


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
    from idalloc._core.requests import MAX_UUIDS_PER_CALL, uuid_requests
    from idalloc.v1.id_allocator_pb2 import UUID_VIEW_TEXT

    with connect(context, server, timeout) as client:
        for request in uuid_requests(count, version, UUID_VIEW_TEXT):
            reply = client._call(lambda stubs: stubs.ids.GenerateUuid, request)
            if as_json:
                _output.write_json(reply, one_line=count > MAX_UUIDS_PER_CALL)
            else:
                _output.write_lines(reply.uuids)


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
        _output.write_json(parts)
    else:
        _output.write_fields(parts)
