"""``allocate_ranges`` of both clients."""

from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2

import idalloc
import idalloc.aio
from tests.support import issued_log
from tests.support.fake_server import FakeServer, status_of
from tests.unit.client.clients import opened

Results = list[idalloc.Range | idalloc.IdallocError]
Requests = Iterable[tuple[str, int]]


Allocate = Callable[..., Results]


@pytest.fixture
def allocate(kind: str) -> Allocate:
    def allocate(target: str, requests: Requests, log: Path | None = None) -> Results:
        with opened(kind, target, log=log) as client:
            return list(client.allocate_ranges(requests))

    return allocate


def test_results_are_in_the_order_of_the_requests(server: FakeServer, allocate: Allocate) -> None:
    """Each request has its range, in order, also if the requests come from a generator."""
    asked = [("orders", 2), ("lines", 20), ("orders", 3)]
    results = allocate(server.target, (each for each in asked))
    assert [list(each)[:2] for each in results if isinstance(each, idalloc.Range)] == [[1, 2], [1, 2], [3, 4]]
    assert [len(each) for each in results if isinstance(each, idalloc.Range)] == [2, 20, 3]
    [request] = server.requests["BatchAllocateRanges"]
    assert [(each.sequence, each.id_count) for each in request.requests] == asked


def test_an_error_is_returned_in_its_place(server: FakeServer, allocate: Allocate) -> None:
    """A failed request has its exception in the list, with all details; others have ranges."""
    code = grpc.StatusCode.OUT_OF_RANGE
    server.failing["short"] = status_of("SEQUENCE_EXHAUSTED", code, remaining=3, largest_range=2)
    server.failing["slow"] = status_of("STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, retry_after=0.25)
    orders, short, slow = allocate(server.target, [("orders", 1), ("short", 5), ("slow", 1)])
    assert isinstance(orders, idalloc.Range)
    assert isinstance(short, idalloc.SequenceExhausted)
    assert (short.code, short.remaining, short.largest_range, str(short)) == (code, 3, 2, "SEQUENCE_EXHAUSTED")
    assert isinstance(slow, idalloc.StoreUnavailable)
    assert slow.retry_after == 0.25


@pytest.mark.parametrize(
    ("error", "expected", "reason"),
    [
        (status_pb2.Status(code=14, message="why"), idalloc.Unavailable, "UNAVAILABLE"),
        (status_pb2.Status(code=3, message="why"), idalloc.IdallocError, "INVALID_ARGUMENT"),
        (status_pb2.Status(code=99, message="why"), idalloc.IdallocError, "UNKNOWN"),
        (status_of("LATER", grpc.StatusCode.UNAVAILABLE), idalloc.Unavailable, "LATER"),
        (status_of("QUOTA_EXCEEDED", grpc.StatusCode.ABORTED, -5), idalloc.ProtocolError, "PROTOCOL_ERROR"),
    ],
    ids=["unavailable", "invalid", "unknown code", "unknown reason", "negative delay"],
)
def test_an_error_of_another_server_is_an_exception(
    server: FakeServer, allocate: Allocate, error: status_pb2.Status, expected: type[Exception], reason: str
) -> None:
    """An error with unknown, invalid or no details is an exception of the base classes."""
    server.failing["orders"] = error
    [found] = allocate(server.target, [("orders", 1)])
    assert type(found) is expected
    assert isinstance(found, idalloc.IdallocError)
    assert found.reason == reason


def test_the_call_is_retried_as_a_whole(server: FakeServer, allocate: Allocate) -> None:
    """A call that finds the server unavailable is tried again; an error of the call is raised."""
    server.fail_next("BatchAllocateRanges", "SERVER_DRAINING", grpc.StatusCode.UNAVAILABLE)
    [found] = allocate(server.target, [("orders", 1)])
    assert isinstance(found, idalloc.Range)
    assert len(server.requests["BatchAllocateRanges"]) == 2
    server.fail_next("BatchAllocateRanges", "INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT, field="requests")
    with pytest.raises(idalloc.InvalidRequest) as failed:
        allocate(server.target, [])
    assert failed.value.field == "requests"


def test_each_range_is_logged(server: FakeServer, allocate: Allocate, tmp_path: Path) -> None:
    """The log of issued ids has a record of each range, and none of an error."""
    server.failing["bad"] = status_of("SEQUENCE_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    log = tmp_path / "issued.log"
    allocate(server.target, [("orders", 2), ("bad", 1), ("lines", 1), ("orders", 1)], log=log)
    records = issued_log.read(log).records
    assert [(each.name, each.ids) for each in records] == [
        ("orders", range(1, 3)),
        ("lines", range(1, 2)),
        ("orders", range(3, 4)),
    ]


@pytest.mark.parametrize(
    ("request_", "message"),
    [(("orders", 0), "n: must be at least 1"), (("orders", "5"), "n must be an integer"), ((5, 1), "sequence: ")],
)
def test_an_invalid_argument_is_named(server: FakeServer, allocate: Allocate, request_: object, message: str) -> None:
    """An argument that does not fit raises an error that names it, before anything is sent."""
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        allocate(server.target, [("orders", 1), request_])
    assert not server.requests["BatchAllocateRanges"]
