"""The verbs that take ids, and `parse`."""

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Json, Log, Server, Timeout, connect, count_or_default, whole_number
from idalloc.cli._options import count as read_count

if TYPE_CHECKING:
    from idalloc.v1.id_allocator_pb2 import AllocateRangeResponse, StreamRangesResponse

Sequence = Annotated[str, typer.Argument(metavar="SEQUENCE", help="The sequence's name.")]
Count = Annotated[int, typer.Argument(metavar="COUNT", parser=read_count, help="How many ids.")]
Ranges = Annotated[
    bool, typer.Option("--ranges", metavar="", help="Print ranges, FIRST LAST STEP on a line, rather than ids.")
]
Uint16 = typer.Option(
    metavar="N",
    parser=whole_number(0, 65535),
    help="As MySQL's variable of that name, for this call: 1 to 65535, 0 for the server's own.",
)


def _request_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise typer.BadParameter("must be a UUID") from None


def _version(text: str | int) -> int:
    if str(text) not in ("4", "7"):
        raise typer.BadParameter("must be 4 or 7")
    return int(text)


def _one_form(context: typer.Context, ranges: bool, texts: bool) -> None:
    if ranges and texts:
        raise typer.BadParameter("say either --ranges or --texts", context)


Texts = Annotated[
    bool,
    typer.Option(
        "--texts",
        metavar="",
        help="Print the ids in the sequence's format, if it has one; 10,000 at most at a time.",
    ),
]


def _tell_periods(periods: Iterable[str]) -> None:
    """Says of ids that were printed as numbers, and that come again where the sequence starts over, whose they are."""
    for period in filter(None, periods):
        _output.say(f"ids of period {period}, and each other period has the same ones: --texts prints them with it")


def _say_created(reply: "AllocateRangeResponse | StreamRangesResponse", sequence: str) -> None:
    """Says that the sequence is new: its name may be mistyped."""
    if reply.created:
        _output.say(f"created sequence {sequence!r}")


# The server sends at most so many document ids in one message.
ONE_MESSAGE = 10_000


def allocate(
    context: typer.Context,
    sequence: Sequence,
    count: Count = 1,
    ranges: Ranges = False,
    texts: Texts = False,
    request_id: Annotated[
        str | None,
        typer.Option(metavar="UUID", parser=_request_id, help="The same command with the same one gets the same ids."),
    ] = None,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Take ids from a sequence, in one contiguous range, and print them one on a line.

    A sequence that does not exist is created, counting 1, 2, 3 … without a format, unless the server's setting
    auto_create_sequences is off. A line on standard error says so; `idalloc sequences create` makes one with a format.
    """
    from idalloc._core.conversions import to_range
    from idalloc._core.requests import range_request
    from idalloc.v1.id_allocator_pb2 import RANGE_VIEW_BASIC, RANGE_VIEW_TEXTS

    _one_form(context, ranges, texts)
    view = RANGE_VIEW_TEXTS if texts else RANGE_VIEW_BASIC
    with connect(context, server, timeout, log) as client:
        reply = client._allocate(range_request(sequence, count, request_id=request_id, view=view))
    _say_created(reply, sequence)
    if as_json:
        _output.write_json(reply)
    elif texts:
        _output.write_lines(reply.texts)
    else:
        _output.write_range(to_range(reply), as_range=ranges)
        _tell_periods([reply.period])


def stream(
    context: typer.Context,
    sequence: Sequence,
    total: Annotated[int, typer.Option(metavar="N", parser=read_count, help="How many ids in all.")],
    chunk: Annotated[
        int, typer.Option(metavar="N", parser=count_or_default, help="How many ids a range has; 0 for 10,000.")
    ] = 0,
    ranges: Ranges = False,
    texts: Texts = False,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Take any number of ids from a sequence, range by range, and print them one on a line.

    It goes on by itself where a server stops and another one, or the same one again, answers. With --json each range
    is one object on a line. A timeout is that of the whole stream; there is none unless it is said after the verb.
    """
    from idalloc._core.conversions import to_range
    from idalloc._core.requests import stream_ranges_request
    from idalloc.v1.id_allocator_pb2 import RANGE_VIEW_BASIC, RANGE_VIEW_TEXTS

    _one_form(context, ranges, texts)
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
            _say_created(reply, sequence)
            if as_json:
                _output.write_json(reply, one_line=True)
            elif texts:
                _output.write_lines(reply.texts)
            else:
                _output.write_range(to_range(reply), as_range=ranges)
                periods[reply.period] = None
            advance(reply.range.id_count)
    _tell_periods(periods)


def docid(
    context: typer.Context,
    count: Count = 1,
    offset: Annotated[int, Uint16] = 0,
    increment: Annotated[int, Uint16] = 0,
    log: Log = None,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Make document ids in MySQL's format and print them one on a line.

    More than 10,000 come as a stream: as `idalloc stream` it goes on by itself, and with --json prints an object on a
    line for each batch.
    """
    from idalloc._core.requests import doc_ids_request, stream_doc_ids_request
    from idalloc.v1.id_allocator_pb2 import DOC_ID_VIEW_IDS

    with connect(context, server, timeout, log) as client:
        if count <= ONE_MESSAGE and as_json:
            request = doc_ids_request(count, offset, increment, DOC_ID_VIEW_IDS)
            _output.write_json(client._generate(request))
        elif count <= ONE_MESSAGE:
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
    version: Annotated[int, typer.Option(metavar="4|7", parser=_version, help="7: rising; 4: random.")] = 7,
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Make UUIDs and print them one on a line.

    They come 10,000 at a time; with --json each of these batches is an object on a line of its own.
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
    """Take the text of an id apart, by the sequence's format."""
    with connect(context, server, timeout) as client:
        parts = client.parse_id(sequence, text)
    if as_json:
        _output.write_json(parts)
    else:
        _output.write_fields(parts)
