"""``Client(log=)`` of both clients: the ids of each method are in the log."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import pytest

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import issued_log
from tests.support.fake_server import FakeServer
from tests.support.full_disk import room_for
from tests.unit.client.clients import KINDS, opened
from tests.unit.client.test_fork import run

REQUEST_ID = "c0ffee00-1234-4000-8000-000000000001"


class Gate(threading.Event):
    """The server's ``hold``, with an event that is set when a call arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.arrived.set()
        return super().wait(timeout)


@pytest.fixture
def threads_client(server: FakeServer, path: Path) -> Iterator[idalloc.Client]:
    with idalloc.Client(server.target, log=path) as client:
        yield client


@pytest.fixture
async def aio_client(server: FakeServer, path: Path) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.target, log=path, timeout=20) as client:
        yield client


@pytest.fixture
def client(server: FakeServer, path: Path, kind: str) -> Iterator[Any]:
    """Return a client of either kind, used in the same way."""
    with opened(kind, server.target, log=path, timeout=20) as client:
        yield client


def test_a_range_is_one_record(server: FakeServer, client: Any, path: Path) -> None:
    """A range is one record with its sequence, period, generation, node and ordering."""
    server.also = {"generation": 3, "ordering": pb.ORDERING_RISING}
    server.period = "2026"
    assert client.allocate_range("orders", 5).ids == range(1, 6)
    assert client.allocate_range("orders", 2).ids == range(6, 8)
    first, second = issued_log.read(path).records
    assert (first.name, first.period, first.ids, first.request) == ("orders", "2026", range(1, 6), 0)
    assert (first.generation, first.node, first.rising) == (3, 7 << 32, True)
    assert first.asked <= first.answered < second.asked


def test_a_record_has_the_request_id(client: Any, path: Path) -> None:
    """P7: a record has the request id of its call, and a repeated call the same ids."""
    for _ in range(2):
        assert client.allocate_range("orders", 5, request_id=REQUEST_ID).ids == range(1, 6)
    client.allocate_range("orders", 2, idempotent=True, texts=True)
    first, again, texts = issued_log.read(path).records
    assert first.ids == again.ids == range(1, 6)
    assert first.request == again.request == issued_log.request_number(REQUEST_ID)
    assert texts.request not in (0, first.request)


def test_texts_are_logged_as_a_range(client: Any, path: Path) -> None:
    """A range with texts is logged as its numbers."""
    assert client.allocate_range("orders", 3, texts=True).texts == ("T-0001", "T-0002", "T-0003")
    assert issued_log.read(path).ids == [1, 2, 3]


def test_a_records_times_enclose_the_servers_work(
    server: FakeServer, threads_client: idalloc.Client, path: Path
) -> None:
    """asked is before the server received the request, and answered after its reply."""
    server.hold = gate = Gate()
    log = threads_client._log
    assert log
    with ThreadPoolExecutor() as threads:
        before = log.now()
        call = threads.submit(threads_client.allocate_range, "orders")
        assert gate.arrived.wait(20)
        meanwhile = log.now()
        gate.set()
        call.result()
    [record] = issued_log.read(path).records
    assert before <= record.asked < meanwhile < record.answered <= log.now()


def test_retries_of_a_call_are_one_record(server: FakeServer, client: Any, path: Path) -> None:
    """A call that gRPC retried is one record."""
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=2)
    client.allocate_range("orders", 5)
    assert len(server.requests["AllocateRange"]) == 3
    assert issued_log.read(path).ids == [1, 2, 3, 4, 5]


def test_a_failed_call_is_not_logged(server: FakeServer, client: Any, path: Path) -> None:
    """A failed call leaves no record."""
    server.fail_next("AllocateRange", "SEQUENCE_NOT_FOUND", grpc.StatusCode.NOT_FOUND)
    with pytest.raises(idalloc.SequenceNotFound):
        client.allocate_range("orders")
    assert issued_log.read(path).records == []


def test_a_prefetched_range_is_logged_before_its_ids(client: Any, path: Path) -> None:
    """A range of ids() is in the log before its first id is returned."""
    ids = client.ids("orders")
    for _ in range(300):
        assert next(ids) in issued_log.read(path).ids
    logged = issued_log.read(path)
    assert logged.ids == list(range(1, max(logged.ids) + 1))
    assert len(logged.records) < 100


def test_threads_that_share_ids_get_only_logged_ids(threads_client: idalloc.Client, path: Path) -> None:
    """P1: threads that share one Ids get each id once, and only logged ids."""
    ids = threads_client.ids("orders")
    with ThreadPoolExecutor() as threads:
        taken = [each.result() for each in [threads.submit(lambda: list(islice(ids, 2000))) for _ in range(4)]]
    got = {value for each in taken for value in each}
    logged = issued_log.read(path).ids
    assert len(got) == 8000
    assert got <= set(logged)
    assert len(logged) == len(set(logged))


def test_each_range_of_a_stream_is_a_record(server: FakeServer, client: Any, path: Path) -> None:
    """Each range of a stream is in the log before it is yielded."""
    server.break_after = 2
    got: list[int] = []
    for ids in client.stream_ranges("orders", 50, 10):
        got += ids
        assert got[-10:] == list(issued_log.read(path).records[-1].ids)
    records = issued_log.read(path).records
    assert got == [value for record in records for value in record.ids]
    assert len(records) == 5
    # The ranges after the break belong to another call.
    assert records[0].asked == records[1].asked <= records[1].answered < records[2].asked


def test_doc_ids_are_logged_before_they_are_returned(client: Any, path: Path) -> None:
    """Document ids of calls and streams are in the log before they are returned."""
    got = client.doc_ids(3)
    for batch in client.stream_doc_ids(25, 10):
        got += batch
        assert issued_log.read(path).texts == got
    assert len(issued_log.read(path).records) == 1 + 3


def test_uuids_are_not_logged(client: Any, path: Path) -> None:
    """Calls for UUIDs and nodes leave no record."""
    client.uuids(3)
    client.node()
    assert issued_log.read(path).records == []


WAYS: dict[str, Callable[[Any], Any]] = {
    "range": lambda client: client.allocate_range("orders", 3),
    "request id": lambda client: client.allocate_range("orders", 3, idempotent=True),
    "texts": lambda client: client.allocate_range("orders", 3, texts=True),
    "pool": lambda client: next(client.ids("orders")),
    "stream": lambda client: list(client.stream_ranges("orders", 3)),
    "document ids": lambda client: client.doc_ids(3),
    "stream of document ids": lambda client: list(client.stream_doc_ids(3)),
}


@pytest.mark.parametrize("way", WAYS)
def test_ids_that_cannot_be_logged_are_not_returned(way: str, client: Any, path: Path) -> None:
    """If the log cannot be written, OSError is raised and the ids are not returned."""
    client.allocate_range("orders", 3)
    with room_for(path, 40), pytest.raises(OSError, match="issued"):
        WAYS[way](client)
    assert issued_log.read(path).ids == [1, 2, 3]
    WAYS[way](client)
    logged = issued_log.read(path)
    assert logged.cut == 0
    assert len(logged.records) == 2


def test_ids_continue_after_a_full_disk(client: Any, path: Path) -> None:
    """ids() continues after a full disk, and returns only logged ids, each once."""
    ids = client.ids("orders")
    before = {next(ids)}
    with room_for(path, 40), pytest.raises(OSError, match="issued"):
        for _ in range(10_000):
            before.add(next(ids))
    after = list(islice(ids, 50))
    assert {*before, *after} <= set(issued_log.read(path).ids)
    assert not before & {*after}


def test_an_existing_log_file_is_rejected(server: FakeServer, client: Any, path: Path, kind: str) -> None:
    """A log file that exists is rejected and left unchanged."""
    client.allocate_range("orders", 3)
    other = path.with_name("other.log")
    other.write_text("mine")
    for existing in (path, str(path), other):
        with pytest.raises(FileExistsError):
            KINDS[kind](server.target, log=existing)
    client.close()
    with pytest.raises(FileExistsError):
        KINDS[kind](server.target, log=path)
    assert issued_log.read(path).ids == [1, 2, 3]
    assert other.read_text() == "mine"


def test_the_log_is_closed_with_the_client(client: Any, path: Path) -> None:
    """close() closes the log."""
    client.allocate_range("orders", 3)
    assert client._log
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client._log.range(pb.AllocateRangeRequest(), pb.AllocateRangeResponse(), 0)
    with pytest.raises(RuntimeError, match="closed"):
        client.allocate_range("orders")
    assert issued_log.read(path).ids == [1, 2, 3]


async def test_coalesced_calls_are_one_record(server: FakeServer, aio_client: idalloc.aio.Client, path: Path) -> None:
    """Coalesced calls are one record, which contains the ids of each caller."""
    got = await asyncio.gather(*(aio_client.allocate_range("orders", n) for n in range(1, 40)))
    asked = [request.id_count for request in server.requests["AllocateRange"]]
    logged = issued_log.read(path)
    assert [record.id_count for record in logged.records] == asked
    assert len(asked) < 39
    assert sorted(value for ids in got for value in ids) == sorted(logged.ids)


async def test_each_coalesced_caller_gets_the_logs_error(
    server: FakeServer, aio_client: idalloc.aio.Client, path: Path
) -> None:
    """If a coalesced call cannot be logged, each caller gets an OSError of its own."""
    await aio_client.allocate_range("orders", 3)
    with room_for(path, 40):
        answers = await asyncio.gather(
            *(aio_client.allocate_range("orders") for _ in range(20)), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [OSError] * 20
    assert len({id(answer) for answer in answers}) == 20
    assert [request.id_count for request in server.requests["AllocateRange"]] == [3, 1, 19]  # no more ids are burned
    assert issued_log.read(path).ids == [1, 2, 3]
    after = await asyncio.gather(*(aio_client.allocate_range("orders") for _ in range(20)))
    assert {value for ids in after for value in ids} <= set(issued_log.read(path).ids)


SHARED = """
client = idalloc.Client(target, log={log!r})
ids = client.ids("orders")
stream = client.stream_ranges("orders", 50, 10)
before = list(islice(ids, 1000)) + list(next(stream))
def take():
    own = list(islice(ids, 1000)) + [value for ids in stream for value in ids] + list(client.allocate_range("orders"))
    return [os.getpid(), before, own]
fork(take, take)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_parent_and_child_of_a_fork_have_separate_logs(server: FakeServer, path: Path) -> None:
    """P8: parent and child of a fork log their ids in separate files, and no id is in both."""
    parent, child, status = run(server, SHARED.format(log=str(path)), fork_support=True)
    assert status == 0
    (_, before, of_parent), (process, _, of_child) = parent, child
    by_parent = issued_log.read(path).ids
    by_child = issued_log.read(Path(f"{path}.{process}")).ids
    assert {*before, *of_parent} <= {*by_parent}
    assert {*of_child} <= {*by_child}
    assert not {*by_parent} & {*by_child}
