"""``aio.Client(log=)``: the ids of each method are in the log."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from tests.support import issued_log
from tests.support.fake_server import FakeServer, serving
from tests.support.full_disk import room_for

REQUEST_ID = "c0ffee00-1234-4000-8000-000000000001"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


@pytest.fixture(params=["issued.log", "issued.jsonl"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


@pytest.fixture
async def client(server: FakeServer, path: Path) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.target, log=path, timeout=20) as client:
        yield client


async def test_each_call_is_one_record(server: FakeServer, client: idalloc.aio.Client, path: Path) -> None:
    """Each call with its retries is one record: sequence, period, node and request id."""
    server.also = {"generation": 3, "ordering": pb.ORDERING_RISING}
    server.period = "2026"
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE)
    assert (await client.allocate_range("orders", 5)).ids == range(1, 6)
    assert (await client.allocate_range("orders", 2, request_id=REQUEST_ID)).ids == range(6, 8)
    assert (await client.allocate_range("orders", 2, texts=True)).texts == ("T-0008", "T-0009")
    first, second, third = issued_log.read(path).records
    assert (first.name, first.period, first.ids) == ("orders", "2026", range(1, 6))
    assert (first.generation, first.node, first.rising) == (3, 7 << 32, True)
    assert [first.request, second.request] == [0, issued_log.request_number(REQUEST_ID)]
    assert third.ids == range(8, 10)
    assert first.asked <= first.answered < second.asked


async def test_coalesced_calls_are_one_record(server: FakeServer, client: idalloc.aio.Client, path: Path) -> None:
    """Coalesced calls are one record, which contains the ids of each caller."""
    got = await asyncio.gather(*(client.allocate_range("orders", n) for n in range(1, 40)))
    asked = [request.id_count for request in server.requests["AllocateRange"]]
    logged = issued_log.read(path)
    assert [record.id_count for record in logged.records] == asked
    assert len(asked) < 39
    assert sorted(value for ids in got for value in ids) == sorted(logged.ids)


async def test_a_prefetched_range_is_logged_before_its_ids(client: idalloc.aio.Client, path: Path) -> None:
    """A range of ids() is in the log before its first id is returned."""
    ids = client.ids("orders")
    for _ in range(300):
        assert await anext(ids) in issued_log.read(path).ids
    logged = issued_log.read(path)
    assert logged.ids == list(range(1, max(logged.ids) + 1))
    assert len(logged.records) < 100


async def test_each_range_of_a_stream_is_a_record(server: FakeServer, client: idalloc.aio.Client, path: Path) -> None:
    """Each range of a stream is in the log before it is yielded."""
    server.break_after = 2
    got: list[int] = []
    async for ids in client.stream_ranges("orders", 50, 10):
        got += ids
        assert got[-10:] == list(issued_log.read(path).records[-1].ids)
    records = issued_log.read(path).records
    assert got == [value for record in records for value in record.ids]
    assert len(records) == 5
    assert records[0].asked == records[1].asked <= records[1].answered < records[2].asked


async def test_doc_ids_are_logged_before_they_are_returned(client: idalloc.aio.Client, path: Path) -> None:
    """Document ids of calls and streams are in the log before they are returned."""
    got = await client.doc_ids(3)
    async for batch in client.stream_doc_ids(25, 10):
        got += batch
        assert issued_log.read(path).texts == got
    assert len(issued_log.read(path).records) == 1 + 3


async def all_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in stream]


WAYS: dict[str, Callable[[idalloc.aio.Client], Awaitable[Any]]] = {
    "range": lambda client: client.allocate_range("orders", 3),
    "request id": lambda client: client.allocate_range("orders", 3, idempotent=True),
    "texts": lambda client: client.allocate_range("orders", 3, texts=True),
    "pool": lambda client: anext(client.ids("orders")),
    "stream": lambda client: all_of(client.stream_ranges("orders", 3)),
    "document ids": lambda client: client.doc_ids(3),
    "stream of document ids": lambda client: all_of(client.stream_doc_ids(3)),
}


@pytest.mark.parametrize("way", WAYS)
async def test_ids_that_cannot_be_logged_are_not_returned(way: str, client: idalloc.aio.Client, path: Path) -> None:
    """If the log cannot be written, OSError is raised and the ids are not returned."""
    await client.allocate_range("orders", 3)
    with room_for(path, 40), pytest.raises(OSError, match="issued"):
        await WAYS[way](client)
    assert issued_log.read(path).ids == [1, 2, 3]
    await WAYS[way](client)
    logged = issued_log.read(path)
    assert logged.cut == 0
    assert len(logged.records) == 2


async def test_each_coalesced_caller_gets_the_logs_error(
    server: FakeServer, client: idalloc.aio.Client, path: Path
) -> None:
    """If a coalesced call cannot be logged, each caller gets an OSError of its own."""
    await client.allocate_range("orders", 3)
    with room_for(path, 40):
        answers = await asyncio.gather(*(client.allocate_range("orders") for _ in range(20)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OSError] * 20
    assert len({id(answer) for answer in answers}) == 20
    assert [request.id_count for request in server.requests["AllocateRange"]] == [3, 1, 19]  # no more ids are burned
    assert issued_log.read(path).ids == [1, 2, 3]
    after = await asyncio.gather(*(client.allocate_range("orders") for _ in range(20)))
    assert {value for ids in after for value in ids} <= set(issued_log.read(path).ids)


async def test_ids_continue_after_a_full_disk(client: idalloc.aio.Client, path: Path) -> None:
    """ids() continues after a full disk, and returns only logged ids, each once."""
    ids = client.ids("orders")
    before = {await anext(ids)}
    with room_for(path, 40), pytest.raises(OSError, match="issued"):
        for _ in range(10_000):
            before.add(await anext(ids))
    after = [await anext(ids) for _ in range(50)]
    assert {*before, *after} <= set(issued_log.read(path).ids)
    assert not before & {*after}


def test_an_existing_log_file_is_rejected(server: FakeServer, path: Path) -> None:
    """A log file that exists is rejected and left unchanged."""
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        idalloc.aio.Client(server.target, log=path)
    assert path.read_text() == "mine"


async def test_the_log_is_closed_with_the_client(client: idalloc.aio.Client) -> None:
    """close() closes the log."""
    await client.allocate_range("orders", 3)
    await client.close()
    assert client._log
    with pytest.raises(RuntimeError, match="closed"):
        client._log.range(pb.AllocateRangeRequest(), pb.AllocateRangeResponse(), 0)
