"""The client for threads: calls with gRPC's test double, the rest with a fake server."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar
from unittest.mock import Mock

import grpc
import grpc_testing
import pytest

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from tests.support.fake_server import FakeServer, trailers
from tests.support.waiting import wait_until

T = TypeVar("T")

SERVICE = pb.DESCRIPTOR.services_by_name["IdAllocatorService"]
NODES = node_pb2.DESCRIPTOR.services_by_name["NodeService"]


class Double:
    """Runs calls of a client in threads, and lets the test answer them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.channel = grpc_testing.channel([SERVICE, NODES], grpc_testing.strict_real_time())
        monkeypatch.setattr(grpc, "insecure_channel", lambda *_: self.channel)
        self.client = idalloc.Client()
        monkeypatch.setattr(self.client, "_probe", lambda *_: None)  # the channel has no health service

    def start(self, function: Callable[[], T]) -> "Future[T]":
        """Run a function in a daemon thread, which does not block a failed test."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def call(self, function: Callable[[], T], method: str, answer: Any, **failure: Any) -> tuple[Any, Callable[[], T]]:
        """Return the request of a function, and a function that returns its result."""
        result = self.start(function)
        service = NODES if method == "GetNode" else SERVICE
        _, request, rpc = self.channel.take_unary_unary(service.methods_by_name[method])
        rpc.terminate(answer, failure.get("trailing", ()), failure.get("code", grpc.StatusCode.OK), "why")
        return request, lambda: result.result(10)

    def stream(self) -> tuple[Any, Any]:
        """Return the request of a stream, and the test double to answer it."""
        _, request, rpc = self.channel.take_unary_stream(SERVICE.methods_by_name["StreamRanges"])
        return request, rpc


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    return Double(monkeypatch)


def ids_from(first: int, last: int, step: int = 1) -> pb.IdRange:
    return pb.IdRange(first_id=first, last_id=last, step=step, id_count=(last - first) // step + 1)


def test_allocate_range_returns_the_ids_and_the_reply(double: Double) -> None:
    """allocate_range returns the ids as a range, with what the reply says of them."""
    answer = pb.AllocateRangeResponse(range=ids_from(41, 50), generation=7)
    request, result = double.call(lambda: double.client.allocate_range("orders", 10), "AllocateRange", answer)
    assert (result().ids, result().generation) == (range(41, 51), 7)
    assert request == pb.AllocateRangeRequest(sequence="orders", id_count=10)


def test_a_range_has_the_sequences_step(double: Double) -> None:
    """A range has the step of its sequence, which may be negative."""
    answer = pb.AllocateRangeResponse(range=ids_from(-3, -12, -3))
    _, result = double.call(lambda: double.client.allocate_range("down", 4), "AllocateRange", answer)
    assert list(result()) == [-3, -6, -9, -12]


def test_a_range_can_end_at_the_largest_id(double: Double) -> None:
    """A range that ends at 2^63-2 stops within 64 bits."""
    largest = 2**63 - 2
    answer = pb.AllocateRangeResponse(range=ids_from(largest - 3 * 1000, largest, 1000))
    _, result = double.call(lambda: double.client.allocate_range("orders", 4), "AllocateRange", answer)
    assert list(result())[-1] == largest
    assert result().ids.stop == 2**63 - 1


def test_doc_ids_are_requested_in_the_compact_form(double: Double) -> None:
    """doc_ids requests the compact form and expands its runs."""
    runs = [
        pb.DocIdRun(first_doc_id=f"0001{9:08x}{2**64 - 3:016x}", step=2, id_count=2),
        pb.DocIdRun(first_doc_id=f"0001{10:08x}{3:016x}", step=2, id_count=1),
    ]
    request, result = double.call(
        lambda: double.client.doc_ids(3, offset=3, increment=2), "GenerateDocId", pb.GenerateDocIdResponse(runs=runs)
    )
    assert result() == [
        "000100000009fffffffffffffffd",
        "000100000009ffffffffffffffff",
        "00010000000a0000000000000003",
    ]
    assert request == pb.GenerateDocIdRequest(
        id_count=3, auto_increment_offset=3, auto_increment_increment=2, view=pb.DOC_ID_VIEW_COMPACT
    )


def test_node_returns_the_server_process(client: idalloc.Client) -> None:
    """node() returns the server process that answers."""
    assert client.node().prefix == 7


def test_error_details_select_the_exception(double: Double) -> None:
    """The reason in an error's details selects the exception."""
    code = grpc.StatusCode.NOT_FOUND
    _, result = double.call(
        lambda: double.client.allocate_range("nope"),
        "AllocateRange",
        None,
        code=code,
        trailing=trailers("SEQUENCE_NOT_FOUND", code, sequence="nope"),
    )
    with pytest.raises(idalloc.SequenceNotFound, match="why") as caught:
        result()
    assert caught.value.metadata == {"sequence": "nope"}


def test_a_broken_stream_requests_the_missing_ids(double: Double) -> None:
    """A broken stream requests only the missing ids, also after an attempt without a message."""
    stream = double.client.stream_ranges("orders", 10, 3)
    code = grpc.StatusCode.UNAVAILABLE

    taken = double.start(lambda: next(stream))
    request, rpc = double.stream()
    assert request == pb.StreamRangesRequest(sequence="orders", total_id_count=10, chunk_id_count=3)
    rpc.send_response(pb.StreamRangesResponse(range=ids_from(1, 3)))
    assert taken.result(10).ids == range(1, 4)
    rpc.terminate(trailers("SERVER_DRAINING", code, 0.01), code, "why")

    rest = double.start(lambda: list(stream))
    request, rpc = double.stream()
    assert request.total_id_count == 7
    rpc.terminate((), code, "no message")

    request, rpc = double.stream()
    assert request.total_id_count == 7
    for ends in ((101, 103), (104, 106), (107, 107)):
        rpc.send_response(pb.StreamRangesResponse(range=ids_from(*ends)))
    rpc.terminate((), grpc.StatusCode.OK, "")
    assert [each.ids for each in rest.result(10)] == [range(101, 104), range(104, 107), range(107, 108)]


def test_a_failed_stream_yields_its_ids_before_the_error(double: Double) -> None:
    """A stream yields the ranges that arrived, then raises a permanent error."""
    stream = double.client.stream_ranges("orders", 10, 3)
    first = double.start(lambda: next(stream))
    _, rpc = double.stream()
    rpc.send_response(pb.StreamRangesResponse(range=ids_from(1, 3)))
    assert first.result(10).ids == range(1, 4)
    code = grpc.StatusCode.OUT_OF_RANGE
    rpc.terminate(trailers("SEQUENCE_EXHAUSTED", code), code, "why")
    with pytest.raises(idalloc.SequenceExhausted):
        next(stream)


def test_a_count_below_1_is_rejected(client: idalloc.Client) -> None:
    """A count below 1 raises ValueError."""
    for call in (
        lambda: client.allocate_range("orders", 0),
        lambda: client.doc_ids(-1),
        lambda: client.stream_ranges("orders", 0),
        lambda: client.stream_doc_ids(0),
    ):
        with pytest.raises(ValueError, match="at least 1"):
            call()


def test_streams_have_no_deadline_by_default(server: FakeServer) -> None:
    """Unary calls have the client's timeout as deadline; a stream has one only if it is given."""
    with idalloc.Client(server.target, timeout=7.0) as client:
        client.allocate_range("orders")
        client.node()
        next(client.ids("orders"))
        list(client.stream_ranges("orders", 1))
        list(client.stream_ranges("orders", 1, timeout=3.0))
        list(client.stream_doc_ids(1))
    unary = server.deadlines["AllocateRange"][:2] + server.deadlines["GetNode"]
    assert all(left is not None and 6.0 < left < 7.1 for left in unary)
    none, given = server.deadlines["StreamRanges"]
    assert none is None or none > 10**6
    assert given is not None
    assert 2.0 < given < 3.1


def test_calls_end_at_their_timeout(server: FakeServer) -> None:
    """A call, ids() and a stream raise DeadlineExceeded at their timeout."""
    server.hold.clear()
    with idalloc.Client(server.target, timeout=0.2) as client:
        with pytest.raises(idalloc.DeadlineExceeded):
            client.allocate_range("orders")
        with pytest.raises(idalloc.DeadlineExceeded):
            next(client.ids("orders"))
        with pytest.raises(idalloc.DeadlineExceeded):
            list(client.stream_ranges("orders", 10, timeout=0.2))


def test_unavailable_is_retried(server: FakeServer, client: idalloc.Client) -> None:
    """A call that fails with UNAVAILABLE is retried within its timeout."""
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=2)
    assert client.allocate_range("orders", 5).ids == range(1, 6)
    assert len(server.requests["AllocateRange"]) == 3


def test_calls_cancelled_by_a_draining_server_are_retried(server: FakeServer, client: idalloc.Client) -> None:
    """A call and a stream that a draining server has not begun are sent again."""
    for method in ("AllocateRange", "StreamRanges"):
        server.fail_next(method, "", grpc.StatusCode.CANCELLED, times=2)
    assert client.allocate_range("orders", 5).ids == range(1, 6)
    assert [each.ids for each in client.stream_ranges("orders", 5)] == [range(6, 11)]


def test_permanent_errors_are_not_retried(server: FakeServer, client: idalloc.Client) -> None:
    """P3: STORE_WENT_BACKWARDS is raised without a retry."""
    server.fail_next("AllocateRange", "STORE_WENT_BACKWARDS", grpc.StatusCode.FAILED_PRECONDITION)
    with pytest.raises(idalloc.StoreWentBackwards):
        client.allocate_range("orders", 5)
    assert len(server.requests["AllocateRange"]) == 1


def test_store_refused_is_not_retried(server: FakeServer, client: idalloc.Client) -> None:
    """A call, a stream and ids() raise STORE_REFUSED without a retry."""
    for method, take in (
        ("AllocateRange", lambda: client.allocate_range("orders", 10)),
        ("StreamRanges", lambda: list(client.stream_ranges("orders", 10, chunk=5))),
        ("AllocateRange", lambda: next(client.ids("orders"))),
    ):
        server.requests[method].clear()
        server.fail_next(method, "STORE_REFUSED", grpc.StatusCode.FAILED_PRECONDITION)
        with pytest.raises(idalloc.StoreRefused):
            take()
        assert len(server.requests[method]) == 1


def test_a_missing_server_is_an_error() -> None:
    """A target without a server raises ServerUnreachable."""
    with idalloc.Client("127.0.0.1:1") as client, pytest.raises(idalloc.ServerUnreachable):
        client.allocate_range("orders")


def test_streams_resume_after_a_break(server: FakeServer, client: idalloc.Client) -> None:
    """P1: a resumed stream yields its total, and no id twice."""
    server.break_after = 2
    ranges = [each.ids for each in client.stream_ranges("orders", 50, 10)]
    assert ranges == [range(first, first + 10) for first in range(1, 51, 10)]
    assert [request.total_id_count for request in server.requests["StreamRanges"]] == [50, 30]
    server.break_after = 1
    batches = list(client.stream_doc_ids(25, 10))
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert len({doc_id for batch in batches for doc_id in batch}) == 25


def test_deleting_a_stream_cancels_it_on_the_server(server: FakeServer, client: idalloc.Client) -> None:
    """Deleting a stream's iterator cancels the call on the server."""
    stream = client.stream_ranges("orders", 10**9, 1)
    next(stream)
    del stream
    taken = [-1]

    def took_nothing() -> bool:
        taken.append(client.allocate_range("orders").first_id)
        return taken[-1] == taken[-2] + 1

    wait_until(took_nothing, "the end of the stream on the server")


def test_a_closed_client_rejects_calls(client: idalloc.Client) -> None:
    """After close(), all methods, streams and ids() raise RuntimeError."""
    ids = client.ids("orders")
    stream = client.stream_ranges("orders", 100, 1)
    list(islice(ids, 100))
    next(stream)
    client.close()
    for call in (
        lambda: next(ids),
        lambda: next(iter(ids)),
        lambda: list(stream),
        client.node,
        lambda: client.allocate_range("orders"),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    client.close()


@pytest.mark.parametrize(
    ("run", "method"),
    [
        (lambda client: client.allocate_range("orders"), "AllocateRange"),
        (lambda client: next(client.ids("orders")), "AllocateRange"),
        (lambda client: list(client.stream_ranges("orders", 10)), "StreamRanges"),
    ],
    ids=["allocate_range", "ids", "stream_ranges"],
)
def test_closing_the_client_ends_a_call_that_runs(
    server: FakeServer, run: Callable[[idalloc.Client], object], method: str
) -> None:
    """A call of another thread that close() ends raises RuntimeError."""
    client = idalloc.Client(server.target, timeout=30)
    server.hold.clear()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run, client)
        wait_until(lambda: server.authorizations[method], "the call arrives")
        client.close()
        with pytest.raises(RuntimeError, match="the client is closed"):
            running.result(10)


def test_closing_the_client_just_before_a_call_begins(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that has its channel when another thread closes the client raises RuntimeError."""
    client = idalloc.Client(server.target)
    monkeypatch.setattr(client, "_metadata", lambda: client.close())  # runs between the two
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.allocate_range("orders")


def test_a_client_connects_on_its_first_call_and_once(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client opens one channel on its first call, also if threads call concurrently."""
    opened = Mock(side_effect=grpc.insecure_channel)
    monkeypatch.setattr(grpc, "insecure_channel", opened)
    with idalloc.Client(server.target) as client:
        opened.assert_not_called()
        together = threading.Barrier(8)

        def call() -> None:
            together.wait()
            client.node()

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(call) for _ in range(8)]:
                done.result(10)
    assert [call.args[0] for call in opened.call_args_list] == [server.target]


def test_credentials_open_a_secure_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with credentials opens a TLS channel."""
    credentials = grpc.local_channel_credentials()
    opened = Mock(side_effect=grpc.secure_channel)
    monkeypatch.setattr(grpc, "secure_channel", opened)
    client = idalloc.Client("127.0.0.1:1", timeout=0.2, credentials=credentials)
    with client, pytest.raises(idalloc.IdallocError):
        client.node()
    assert opened.call_args.args[:2] == ("127.0.0.1:1", credentials)
