"""`ids()` of the client for threads, against a server in memory."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import grpc
import pytest

import idalloc
from tests.support.fake_server import FakeServer, serving


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


@pytest.fixture
def client(server: FakeServer) -> Iterator[idalloc.Client]:
    with idalloc.Client(server.target) as client:
        yield client


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ids_without_end(client: idalloc.Client, server: FakeServer) -> None:
    assert list(islice(client.ids("orders"), 10_000)) == list(range(1, 10_001))
    sizes = [request.id_count for request in server.requests["AllocateRange"]]
    assert len(sizes) < 20
    assert sizes == sorted(sizes)


def test_a_loop_goes_on_where_another_one_was_left(client: idalloc.Client) -> None:
    ids = client.ids("orders")
    taken = list(islice(ids, 700))
    taken.append(next(ids))
    for value in ids:
        taken.append(value)
        if len(taken) == 1500:
            break
    taken.append(next(ids))
    assert taken == list(range(1, 1502))


def test_threads_may_share_ids(client: idalloc.Client) -> None:
    ids = client.ids("orders")

    def loop() -> list[int]:
        return list(islice(ids, 20_000))

    def one_by_one() -> list[int]:
        return [next(ids) for _ in range(20_000)]

    with ThreadPoolExecutor() as threads:
        runs = [threads.submit(take) for take in (loop, one_by_one) * 4]
        taken = [run.result(30) for run in runs]
    assert all(run == sorted(run) for run in taken)
    assert sorted(value for run in taken for value in run) == list(range(1, 160_001))


def test_ids_that_are_too_old_are_dropped(server: FakeServer, client: idalloc.Client) -> None:
    server.ttl = 0.3
    ids = client.ids("orders")
    loop = iter(ids)
    taken = [*islice(loop, 100), next(ids)]
    time.sleep(0.35)
    asked = sum(request.id_count for request in server.requests["AllocateRange"])
    assert asked > len(taken)
    assert next(loop) == asked + 1
    assert taken == list(range(1, 102))


def test_ids_to_the_very_last_one(server: FakeServer, client: idalloc.Client) -> None:
    server.last["orders"] = 1000
    ids = client.ids("orders")
    taken: list[int] = []
    with pytest.raises(idalloc.SequenceExhausted):
        taken.extend(ids)
    assert taken == list(range(1, 1001))
    server.last["orders"] = 1003
    assert [next(ids), next(ids), next(ids)] == [1001, 1002, 1003]


def test_ids_within_a_lower_limit_of_the_server(server: FakeServer, client: idalloc.Client) -> None:
    server.limit = 100
    assert list(islice(client.ids("orders"), 5000)) == list(range(1, 5001))


def test_ids_can_be_asked_for_again_after_an_error(server: FakeServer, client: idalloc.Client) -> None:
    ids = client.ids("orders")
    taken = [next(ids)]
    wait_until(lambda: len(server.requests["AllocateRange"]) == 2)  # the range ahead is there
    server.fail_next(
        "AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL, times=2
    )  # the next one ahead, and that again
    with pytest.raises(idalloc.InternalError):
        taken.extend(ids)
    taken += islice(ids, 100)
    assert taken == list(range(1, len(taken) + 1))


def test_an_error_ahead_is_not_the_callers(server: FakeServer, client: idalloc.Client) -> None:
    ids = client.ids("orders")
    taken = [next(ids)]
    wait_until(lambda: len(server.requests["AllocateRange"]) == 2)  # the range ahead is there
    taken.append(next(ids))
    server.fail_next("AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL)
    taken += islice(ids, 50)
    assert taken == list(range(1, 53))


def test_closing_wakes_who_waits_for_ids(server: FakeServer) -> None:
    client = idalloc.Client(server.target, timeout=30)
    ids = client.ids("orders")
    server.hold.clear()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(next, ids)
        time.sleep(0.3)
        client.close()
        with pytest.raises((RuntimeError, idalloc.IdallocError)):
            waiting.result(5)
