"""Replies that violate the contract, and a server that sends them.

`python -m tests.support.wrong_replies` writes them for the tests of the other clients.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2, sequences_pb2
from tests.support.paths import ROOT

# The replies as bytes, which servers of the tests in Go, Java and Node send.
FILE = ROOT / "tests/support/wrong_replies.json"
MAX_FILE_BYTES = 1000  # of the reply to a call in the file
INT64 = 2**63 - 1
YEARS_10000 = 315_576_000_000
HEAD = f"0007{1_700_000_000:08x}"
SERVICES = {
    file.services_by_name[service]: package
    for file, service, package in (
        (pb.DESCRIPTOR, "IdAllocatorService", pb),
        (sequences_pb2.DESCRIPTOR, "SequenceService", sequences_pb2),
        (node_pb2.DESCRIPTOR, "NodeService", node_pb2),
        (health_pb2.DESCRIPTOR, "Health", health_pb2),
    )
}


class WrongReply(NamedTuple):
    """A reply, or the messages of a stream, that violates the contract."""

    name: str  # what is wrong
    rpc: str  # the method that sends it
    # Returns the reply to a request, or the messages of a stream; bytes are sent as they are.
    answer: Callable[[Any], Any]
    error: str  # a regular expression for the error's message
    valid_ids: int = 0  # how many ids, or names, arrive before the error
    caller: str = ""  # the caller of the method that receives it; empty for all


class ErrorReply(Exception):
    """Replies with an error that has details."""

    def __init__(self, reason: str, code: grpc.StatusCode, *details: Any, metadata: dict[str, str] | None = None):
        super().__init__(reason)
        self.code = code
        status = status_pb2.Status(code=code.value[0], message=reason)
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="idalloc", metadata=metadata or {}))
        for detail in details:
            status.details.add().Pack(detail)
        self.trailers: tuple[tuple[str, str | bytes], ...] = (("grpc-status-details-bin", status.SerializeToString()),)


class Pushback(ErrorReply):
    """Replies with UNAVAILABLE, and a pushback of 11 days for gRPC's retry policy."""

    def __init__(self) -> None:
        super().__init__("STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE)
        self.trailers += (("grpc-retry-pushback-ms", "1000000000"),)


@contextmanager
def serving_wrong(wrong: WrongReply) -> Iterator[str]:
    """Run a server that has only the method `wrong.rpc`; yield its address."""
    service = next(each for each in SERVICES if wrong.rpc in each.methods_by_name)
    method = service.methods_by_name[wrong.rpc]
    request_type = getattr(SERVICES[service], method.input_type.name)

    def unary(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return wrong.answer(request)
        except ErrorReply as error:
            context.set_trailing_metadata(error.trailers)
            context.abort(error.code, str(error))

    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        for message in unary(request, context):
            if not context.is_active():
                return
            yield message

    kind = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    handler = kind(
        stream if method.server_streaming else unary,
        request_deserializer=request_type.FromString,
        response_serializer=_bytes,
    )
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, {wrong.rpc: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _bytes(message: Any) -> bytes:
    data: bytes = message if isinstance(message, bytes) else message.SerializeToString()
    return data


def ids(first: int, count: int, step: int = 1, **other: int) -> pb.IdRange:
    """Return a valid range, except for the fields given."""
    fields = {"first_id": first, "last_id": first + (count - 1) * step, "step": step, "id_count": count}
    return pb.IdRange(**fields | other)


def reply(issued: pb.IdRange, **other: Any) -> pb.AllocateRangeResponse:
    return pb.AllocateRangeResponse(**{"range": issued, "ttl": Duration(seconds=60)} | other)


def chunk(issued: pb.IdRange, **other: Any) -> pb.StreamRangesResponse:
    return pb.StreamRangesResponse(**{"range": issued, "ttl": Duration(seconds=60)} | other)


def run(serial: int, count: int, step: int = 1, head: str = HEAD) -> pb.DocIdRun:
    return pb.DocIdRun(first_doc_id=f"{head}{serial:016x}", step=step, id_count=count)


def texts(serials: Iterable[int]) -> list[str]:
    return [f"{HEAD}{serial:016x}" for serial in serials]


def _range(name: str, answer: Callable[[int], Any], error: str) -> WrongReply:
    """Return a wrong reply of AllocateRange, made from the requested count."""
    return WrongReply(name, "AllocateRange", lambda request: answer(request.id_count), error)


def _within(name: str, error: str, **duration: int) -> WrongReply:
    return _range(name, lambda n: reply(ids(1, n), ttl=Duration(**duration)), error)


def _texts(name: str, answer: Callable[[int], list[str]], error: str) -> WrongReply:
    return WrongReply(
        name, "AllocateRange", lambda r: reply(ids(1, r.id_count), texts=answer(r.id_count)), error, caller="texts"
    )


def _stream(name: str, answer: Callable[[Any], Iterable[Any]], error: str, valid_ids: int = 0) -> WrongReply:
    return WrongReply(name, "StreamRanges", answer, error, valid_ids)


def _runs(name: str, answer: Callable[[int], list[pb.DocIdRun]], error: str) -> WrongReply:
    return WrongReply(name, "GenerateDocId", lambda r: pb.GenerateDocIdResponse(runs=answer(r.id_count)), error)


def batch(request: pb.StreamDocIdsRequest, first: int, count: int) -> pb.StreamDocIdsResponse:
    """Return document ids as a run."""
    return pb.StreamDocIdsResponse(runs=[run(first, count)])


def _uuids(name: str, answer: Callable[[int], list[bytes]], error: str) -> WrongReply:
    return WrongReply(name, "GenerateUuid", lambda r: pb.GenerateUuidResponse(uuid_bytes=answer(r.id_count)), error)


def _uuid(number: int, version: int = 7, variant: int = 8) -> bytes:
    return bytes.fromhex(f"0193a5b6c7d8{version:x}000{variant:x}000{number:012x}")


def sequence(name: str = "orders", **other: Any) -> sequences_pb2.Sequence:
    fields: dict[str, Any] = {"name": name, "step": 1, "remaining": 7, "used_ratio": 0.5}
    return sequences_pb2.Sequence(**fields | other)


def _get(name: str, shown: sequences_pb2.Sequence | None, error: str) -> WrongReply:
    return WrongReply(name, "GetSequence", lambda _: sequences_pb2.GetSequenceResponse(sequence=shown), error)


def _advance(name: str, error: str, **other: Any) -> WrongReply:
    fields = {"sequence": sequence(), "effective_time": Timestamp(seconds=1_790_000_000)} | other
    return WrongReply(name, "AdvanceSequence", lambda _: sequences_pb2.AdvanceSequenceResponse(**fields), error)


def _list(name: str, page: Callable[[str], tuple[list[str], str]], error: str, valid_ids: int = 0) -> WrongReply:
    """Return a wrong reply of ListSequences; ``page`` maps a token to names and the next token."""

    def answer(request: sequences_pb2.ListSequencesRequest) -> sequences_pb2.ListSequencesResponse:
        names, token = page(request.page_token)
        return sequences_pb2.ListSequencesResponse(sequences=map(sequence, names), next_page_token=token)

    return WrongReply(name, "ListSequences", answer, error, valid_ids)


def _quota(name: str, error: str, **delay: int) -> WrongReply:
    def answer(_: Any) -> Any:
        retry = error_details_pb2.RetryInfo(retry_delay=Duration(**delay))
        raise ErrorReply("QUOTA_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED, retry)

    return WrongReply(name, "AllocateRange", answer, error)


def chunks(request: Any) -> Iterator[pb.StreamRangesResponse]:
    """Return all messages of a valid stream."""
    size = request.chunk_id_count
    return (chunk(ids(1 + at, size)) for at in range(0, request.total_id_count, size))


def _batch_of(name: str, answer: Callable[[int], Any], error: str) -> WrongReply:
    """Return a wrong reply of BatchAllocateRanges, made from the count of each of its requests."""
    return WrongReply(name, "BatchAllocateRanges", lambda request: answer(request.requests[0].id_count), error)


def results(*each: Any) -> pb.BatchAllocateRangesResponse:
    """Return the reply to a batch: ranges, and None for results without a range and an error."""
    made = [pb.AllocateRangeResult(response=one) if one else pb.AllocateRangeResult() for one in each]
    return pb.BatchAllocateRangesResponse(results=made)


WRONG_REPLIES = [
    # Ranges
    _range(
        "fewer ids than asked for", lambda n: reply(ids(1, n - 1)) if n > 1 else reply(ids(1, 2)), "range.id_count is"
    ),
    _range("more ids than asked for", lambda n: reply(ids(1, n + 1)), "range.id_count is"),
    _range("2^40 ids", lambda n: reply(ids(1, 2**40)), "range.id_count is 1099511627776"),
    _range("no range", lambda _: reply(pb.IdRange()), "range.id_count is 0"),
    _range("an empty reply", lambda _: b"", "range.id_count is 0"),
    _range("a negative count", lambda n: reply(ids(1, n, id_count=-n)), "range.id_count is -"),
    _range("step 0", lambda n: reply(ids(1, n, step=0)), "range.step is 0"),
    _range("a last id too far", lambda n: reply(ids(1, n, last_id=n + 1000)), "range.last_id is"),
    _range("a last id before the first", lambda n: reply(ids(7, n, last_id=-100)), "range.last_id is -100"),
    _range("a step against the range", lambda n: reply(ids(10, n, last_id=20 + n, step=-1)), "range.last_id is"),
    _range(
        "ids that wrap at 2^63",
        lambda n: reply(pb.IdRange(first_id=INT64 - 1, last_id=-(2**63) + max(n - 3, 0), step=1, id_count=n)),
        "range.last_id is -9223372036854775",
    ),
    _range(
        "ids that wrap to the first",
        lambda n: reply(pb.IdRange(first_id=1, last_id=1 if n > 1 else 2, step=2**62, id_count=n)),
        "range.last_id is",
    ),
    _range(
        "a step that wraps",
        lambda n: reply(pb.IdRange(first_id=1, last_id=1 if n > 1 else 2, step=-(2**63), id_count=n)),
        "range.last_id is",
    ),
    _range(
        "ids that wrap at -2^63",
        lambda n: reply(pb.IdRange(first_id=-(2**63), last_id=INT64 - max(n - 2, 0), step=-1, id_count=n)),
        "range.last_id is",
    ),
    _range("the id 2^63-1", lambda n: reply(ids(INT64 - (n - 1), n)), "_id is 9223372036854775807"),
    _range("the id 2^63-1 at first", lambda n: reply(ids(INT64, n, -1)), "range.first_id is 9223372036854775807"),
    _range("bytes of no message", lambda _: b"\x0a\xff\xff\xff\xff\x07", "cannot be parsed"),
    _range("a period of no calendar", lambda n: reply(ids(1, n), period="2026\n7"), r"period is '2026\\n7'"),
    _within("a negative ttl", "ttl is -1 s", seconds=-1),
    _within("a ttl of 10,000 years", "ttl is 315576000000 s", seconds=YEARS_10000),
    _within("a ttl of 2^63-1 s", "ttl is 9223372036854775807 s", seconds=INT64),
    _within("a ttl of 2^31-1 ns beside seconds", "ttl is 60 s and 2147483647 ns", seconds=60, nanos=2**31 - 1),
    _within("a ttl of two signs", "ttl is 60 s and -5 ns", seconds=60, nanos=-5),
    _quota("a negative wait for a quota", "retry_delay is -5 s", seconds=-5),
    _quota("a wait for a quota of 2^63-1 s", "retry_delay is 9223372036854775807 s", seconds=INT64),
    _quota("a wait for a quota of no nanoseconds", "retry_delay is 0 s and -2147483648 ns", nanos=-(2**31)),
    *(
        WrongReply(f"each range twice, by {step}", "AllocateRange", answer, "twice", valid_ids=1, caller="ids")
        for step, answer in ((1, lambda r: reply(ids(1, r.id_count))), (-1, lambda r: reply(ids(9, r.id_count, -1))))
    ),
    # Texts
    _range("texts that were not asked for", lambda n: reply(ids(1, n), texts=["T1"] * n), "texts has"),
    _texts("no texts", lambda n: [], "texts has 0 items"),
    _texts("fewer texts", lambda n: [f"T{i}" for i in range(n - 1)], "texts has 4 items"),
    _texts("more texts", lambda n: [f"T{i}" for i in range(n + 1)], "texts has 6 items"),
    _texts("the same text twice", lambda n: ["T1"] * n, "texts has 'T1' twice"),
    _texts("an empty text", lambda n: ["", *(f"T{i}" for i in range(n - 1))], "texts has an empty item"),
    # Batches
    _batch_of("a batch without results", lambda _: results(), "results has 0 items"),
    _batch_of("a result too few", lambda n: results(reply(ids(1, n))), "results has 1 items"),
    _batch_of("a result too many", lambda n: results(*[reply(ids(1, n))] * 3), "results has 3 items"),
    _batch_of("an empty result", lambda n: results(reply(ids(1, n)), None), "no range and no error|id_count 0"),
    _batch_of("a wrong range in a batch", lambda n: results(reply(ids(1, n)), reply(ids(9, n, step=0))), "step is 0"),
    _batch_of("a range twice in a batch", lambda n: results(*[reply(ids(1, n))] * 2), "has 1 twice"),
    _batch_of(
        "overlapping ranges in a batch",
        lambda n: results(reply(ids(4, n)), reply(ids(1, n))),
        "has 4 twice",
    ),
    _batch_of("a batch of other bytes", lambda _: b"\x0a\xff\xff\xff\xff\x07", "cannot be parsed"),
    # Streams
    _stream("an empty message", lambda _: [b""], "range.id_count is 0"),
    _stream("empty messages without end", lambda _: (b"" for _ in count()), "range.id_count is 0"),
    _stream("a chunk too large", lambda r: [chunk(ids(1, r.chunk_id_count + 1))], "range.id_count is 6"),
    _stream("a chunk too small", lambda r: [chunk(ids(1, r.chunk_id_count - 1))], "range.id_count is 4"),
    _stream("a chunk of 2^40", lambda r: [chunk(ids(1, 2**40))], "range.id_count is 1099511627776"),
    _stream(
        "a chunk beyond the total", lambda r: [chunk(ids(1, 5)), chunk(ids(6, 6))], "range.id_count is 6", valid_ids=5
    ),
    _stream("a chunk twice", lambda r: (chunk(ids(1, 5)) for _ in count()), "range.first_id is 1", valid_ids=5),
    _stream("chunks that fall", lambda r: [chunk(ids(6, 5)), chunk(ids(1, 5))], "range.first_id is 1", valid_ids=5),
    _stream(
        "step 0 in the second chunk", lambda r: [chunk(ids(1, 5)), chunk(ids(6, 5, step=0))], "step is 0", valid_ids=5
    ),
    _stream("bytes of no message in a stream", lambda _: [b"\x0a\xff\xff\xff\xff\x07"], "cannot be parsed"),
    _stream("an end before the total", lambda r: [chunk(ids(1, 5))], "ended with .*ids missing", valid_ids=5),
    _stream("an end without a message", lambda r: [], "ended with .*ids missing"),
    _stream(
        "a message after the total",
        lambda r: [*chunks(r), chunk(ids(100, 5))],
        "continues after its 10 ids",
        valid_ids=10,
    ),
    _stream(
        "a negative ttl in a stream",
        lambda r: [chunk(ids(1, 5), ttl=Duration(seconds=-9))],
        "ttl is -9 s",
    ),
    # Document ids
    _runs("a run of 2^40 document ids", lambda n: [run(1, 2**40)], r"runs\[0\].id_count is 1099511627776"),
    _runs("a run of 2^63-1 document ids", lambda n: [run(1, INT64)], r"runs\[0\].id_count is 9223372036854775807"),
    _runs("no document ids", lambda n: [], "runs has 0 ids"),
    _runs("fewer document ids", lambda n: [run(1, n - 1)], "runs has 4 ids"),
    _runs("one run too many", lambda n: [run(1, n), run(100, 1)], r"runs\[1\].id_count is 1"),
    _runs("counts that cancel each other out", lambda n: [run(1, -n), run(1, 2 * n)], r"runs\[0\].id_count is -5"),
    _runs("empty runs without end", lambda n: [run(1, 0)] * 100_000, r"runs\[0\].id_count is 0"),
    _runs("serials that stay", lambda n: [run(1, n, 0)], r"runs\[0\].step is 0"),
    _runs("serials that fall", lambda n: [run(100, n, -1)], r"runs\[0\].step is -1"),
    _runs("serials that overflow", lambda n: [run(2**64 - 2, n)], r"runs\[0\].step is 1"),
    _runs("serials that wrap", lambda n: [run(1, n, 2**62)], r"runs\[0\].step is"),
    _runs("runs that overlap", lambda n: [run(1, n - 2), run(2, 2)], r"runs\[1\].first_doc_id is"),
    _runs("a document id of other letters", lambda n: [run(1, n, head="xyzw" * 3)], r"runs\[0\].first_doc_id is 'xyzw"),
    _runs("a document id in upper case", lambda n: [run(1, n, head="ABCDEF" * 2)], r"runs\[0\].first_doc_id is 'ABC"),
    _runs("a document id too short", lambda n: [run(1, n, head="00")], r"runs\[0\].first_doc_id is '00"),
    _runs(
        "a document id of other digits",
        lambda n: [pb.DocIdRun(first_doc_id=HEAD + "\u0661" * 16, step=1, id_count=n)],
        r"runs\[0\].first_doc_id is",
    ),
    _runs(
        "a document id of a megabyte",
        lambda n: [pb.DocIdRun(first_doc_id="0" * 2**20, step=1, id_count=n)],
        r"runs\[0\].first_doc_id is '0{60}'…",
    ),
    WrongReply(
        "texts beside the runs",
        "GenerateDocId",
        lambda r: pb.GenerateDocIdResponse(runs=[run(1, 2**40)], doc_ids=texts(range(r.id_count))),
        "runs|doc_ids",
    ),
    WrongReply(
        "texts in place of runs",
        "GenerateDocId",
        lambda r: pb.GenerateDocIdResponse(doc_ids=texts(range(r.id_count))),
        "doc_ids has 5 items",
    ),
    _runs("a document id twice", lambda n: [run(1, 1), run(1, n - 1)], r"runs\[1\].first_doc_id is"),
    _runs("document ids that fall", lambda n: [run(2, n - 1), run(1, 1)], r"runs\[1\].first_doc_id is"),
    WrongReply("an empty batch", "StreamDocIds", lambda _: [b""], "runs has 0"),
    WrongReply(
        "a batch of 2^40", "StreamDocIds", lambda _: [pb.StreamDocIdsResponse(runs=[run(1, 2**40)])], "runs|doc_ids"
    ),
    WrongReply(
        "a batch twice",
        "StreamDocIds",
        lambda r: (batch(r, 1, 5) for _ in count()),
        "doc_id is",
        valid_ids=5,
    ),
    # UUIDs
    WrongReply(
        "UUIDs in both forms",
        "GenerateUuid",
        lambda r: pb.GenerateUuidResponse(
            uuid_bytes=[_uuid(i) for i in range(r.id_count)],
            uuids=[f"0193a5b6-c7d8-7000-8000-{i:012x}" for i in range(r.id_count)],
        ),
        "uuid_bytes has|uuids has",
    ),
    _uuids("fewer UUIDs", lambda n: [_uuid(i) for i in range(n - 1)], "has 4 items"),
    _uuids("a UUID twice", lambda n: [_uuid(1)] * n, "twice"),
    _uuids("a UUID of 15 bytes", lambda n: [_uuid(1)[:15], *(_uuid(i) for i in range(n - 1))], r"\[0\] is"),
    _uuids("UUIDs of another version", lambda n: [_uuid(i, 1) for i in range(n)], r"\[0\] is"),
    _uuids("UUIDs of another variant", lambda n: [_uuid(i, 7, 15) for i in range(n)], r"\[0\] is"),
    # Sequences
    _list("a page token that repeats", lambda _: ([], "A"), "next_page_token is 'A'"),
    _list("page tokens in a circle", lambda token: ([], "B" if token == "A" else "A"), "next_page_token is 'A'"),
    _list("new page tokens without end", lambda token: ([], f"{int(token or 0) + 1}"), "next_page_token is"),
    _list("a page twice", lambda _: (["a", "b"], "A"), "sequences.0..name is 'a'", valid_ids=2),
    _list("names out of order", lambda _: (["b", "a"], ""), "sequences.1..name is 'a'"),
    _list("more than a page", lambda _: ([f"{i:04}" for i in range(1001)], ""), "sequences has 1001 items"),
    _get("another sequence", sequence("invoices"), "sequence.name is 'invoices'"),
    _get("no sequence", None, "sequence.name is ''"),
    _get("a share that is no number", sequence(used_ratio=float("nan")), "used_ratio is nan"),
    _get("an infinite rate", sequence(ids_per_second=float("inf")), "ids_per_second is inf"),
    _get("a negative rest", sequence(remaining=-1), "remaining is -1"),
    _get("the year 300,000", sequence(exhaust_time=Timestamp(seconds=9 * 10**12)), "exhaust_time is 9000000000000 s"),
    _get("a time before the year 1", sequence(create_time=Timestamp(seconds=-(2**63))), "create_time is -9223"),
    _get(
        "nanoseconds of no time", sequence(update_time=Timestamp(nanos=10**9)), "update_time is 0 s and 1000000000 ns"
    ),
    _advance("a change effective before it", "effective_delay is -3600 s", effective_delay=Duration(seconds=-3600)),
    _advance("a change effective in 10,000 years", "effective_delay is", effective_delay=Duration(seconds=YEARS_10000)),
    _advance("a change effective in 2^63-1 s", "effective_delay is", effective_delay=Duration(seconds=INT64)),
    _advance("a change effective at no time", "effective_time is", effective_time=Timestamp(seconds=INT64)),
    _advance("a change of another sequence", "sequence.name is 'x'", sequence=sequence("x")),
    # Nodes
    WrongReply("no node", "GetNode", lambda _: b"", "node is missing"),
    WrongReply(
        "a prefix of 17 bits", "GetNode", lambda _: node_pb2.GetNodeResponse(node=node_pb2.Node(prefix=65536)), "prefix"
    ),
    # Health
    WrongReply("a health cut off", "Check", lambda _: b"\x08", "HealthCheckResponse is 08"),
    WrongReply("a health of no known number", "Check", lambda _: b"\x08\x63", "HealthCheckResponse is 0863"),
    WrongReply("a health of bytes", "Check", lambda _: b"\xff" * 1000, "HealthCheckResponse is f{40};"),
]


# The calls that the other clients have, too.
_REQUESTS = {
    "AllocateRange": pb.AllocateRangeRequest(id_count=5),
    "BatchAllocateRanges": pb.BatchAllocateRangesRequest(requests=[pb.AllocateRangeRequest(id_count=5)] * 2),
    "StreamRanges": pb.StreamRangesRequest(total_id_count=10, chunk_id_count=5),
    "GenerateDocId": pb.GenerateDocIdRequest(id_count=5),
    "StreamDocIds": pb.StreamDocIdsRequest(total_id_count=10, chunk_id_count=5),
}


def table() -> str:
    """Return the wrong replies as lines of JSON.

    The field `error` is a pattern for the error of every client: the name of the wrong field, or
    all that the error of this one must match. It has no replies to a pool, which depend on its
    requests, none that cannot be parsed or end with an error, and none that only this client reads.
    """
    lines = []
    for wrong in WRONG_REPLIES:
        is_shared = wrong.rpc in _REQUESTS and wrong.caller != "ids"
        if not is_shared or re.match("retry_delay|cannot|continues|doc_ids", wrong.error):
            continue
        answer = wrong.answer(_REQUESTS[wrong.rpc])
        messages = [_bytes(each) for each in (islice(answer, 3) if "Stream" in wrong.rpc else [answer])]
        named = re.search(r"(\w+)(\\\[\d\\\])? (is|has)\b", wrong.error)
        line = {
            "name": wrong.name,
            "rpc": wrong.rpc,
            "texts": wrong.caller == "texts",
            "error": named[1] if named else wrong.error,
            "validIds": wrong.valid_ids,
            "replies": [base64.b64encode(each).decode() for each in messages],
        }
        if sum(map(len, messages)) <= MAX_FILE_BYTES:
            lines.append(json.dumps(line))
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(table())
