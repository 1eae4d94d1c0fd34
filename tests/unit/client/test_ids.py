"""`ids()` of the client for threads, with a fake server."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import grpc
import pytest

import idalloc
from tests.support.fake_server import FakeServer
from tests.support.waiting import hold_for, wait_until


def test_ids_prefetches_growing_ranges(client: idalloc.Client, server: FakeServer) -> None:
    """ids() returns all ids in order, in few calls for growing ranges."""
    assert list(islice(client.ids("orders"), 10_000)) == list(range(1, 10_001))
    sizes = [request.id_count for request in server.requests["AllocateRange"]]
    assert len(sizes) < 20
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED])
@pytest.mark.parametrize("ids_before", [0, 3], ids=["a first range", "a prefetched range"])
def test_a_restart_is_not_noticed(
    client: idalloc.Client, server: FakeServer, code: grpc.StatusCode, ids_before: int
) -> None:
    """A range that a restarting server refuses is requested again, as any other call is."""
    ids = client.ids("orders")
    taken = list(islice(ids, ids_before))
    server.fail_next("AllocateRange", "SERVER_DRAINING", code, times=2)
    taken += islice(ids, 200)
    assert taken == list(range(1, len(taken) + 1))


def test_an_unavailable_store_is_an_error_in_time(client: idalloc.Client, server: FakeServer) -> None:
    """A caller waits for its own time; the next call of next() tries again."""
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, times=3)
    ids = client.ids("orders", timeout=0.15)
    with pytest.raises(idalloc.StoreUnavailable):
        next(ids)
    assert next(client.ids("orders")) == 1


def test_a_second_loop_continues_after_the_first(client: idalloc.Client) -> None:
    """A second loop over one Ids continues after the last id of the first loop."""
    ids = client.ids("orders")
    taken = list(islice(ids, 700))
    taken.append(next(ids))
    for value in ids:
        taken.append(value)
        if len(taken) == 1500:
            break
    taken.append(next(ids))
    assert taken == list(range(1, 1502))


def test_threads_can_share_ids(client: idalloc.Client) -> None:
    """P1: threads that share one Ids get each id once and in ascending order."""
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


def open_attempts(ids: Any) -> list[Any]:
    return ids._refills.current.attempts.open if ids._refills.current else []


def test_expired_ids_are_discarded(server: FakeServer, client: idalloc.Client) -> None:
    """P4: prefetched ids that are older than their ttl are not returned."""
    server.ttl = 0.3
    ids = client.ids("orders")
    loop = iter(ids)
    taken = [*islice(loop, 100), next(ids)]
    wait_until(lambda: all(each.has_ended for each in open_attempts(ids)), "the last prefetch ends")
    hold_for(0.35, "the ttl of the ids ends")
    asked = sum(request.id_count for request in server.requests["AllocateRange"])
    assert asked > taken[-1]
    assert next(loop) == asked + 1
    assert taken == sorted(set(taken))


def test_ids_end_exactly_at_the_last_id(server: FakeServer, client: idalloc.Client) -> None:
    """ids() returns all ids up to the last one, then raises SequenceExhausted."""
    server.last["orders"] = 1000
    ids = client.ids("orders")
    taken: list[int] = []
    with pytest.raises(idalloc.SequenceExhausted):
        taken.extend(ids)
    assert taken == list(range(1, 1001))
    server.last["orders"] = 1003
    assert [next(ids), next(ids), next(ids)] == [1001, 1002, 1003]


def test_ids_adapt_to_a_lower_server_limit(server: FakeServer, client: idalloc.Client) -> None:
    """ids() requests smaller ranges if the server's limit is lower."""
    server.limit = 100
    assert list(islice(client.ids("orders"), 5000)) == list(range(1, 5001))


def test_ids_continue_after_an_error(server: FakeServer, client: idalloc.Client) -> None:
    """After an error, next() continues with the next id."""
    ids = client.ids("orders")
    taken = [next(ids)]
    wait_until(lambda: len(server.requests["AllocateRange"]) == 2)  # the prefetch is sent
    server.fail_next(
        "AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL, times=2
    )  # the next prefetch, and its repetition
    with pytest.raises(idalloc.InternalError):
        taken.extend(ids)
    taken += islice(ids, 100)
    assert taken == list(range(1, len(taken) + 1))


def test_a_failed_prefetch_raises_nothing(server: FakeServer, client: idalloc.Client) -> None:
    """The error of a prefetch is not raised; the range is requested again."""
    ids = client.ids("orders")
    taken = [next(ids)]
    wait_until(lambda: len(server.requests["AllocateRange"]) == 2)  # the prefetch is sent
    taken.append(next(ids))
    server.fail_next("AllocateRange", "INTERNAL", grpc.StatusCode.INTERNAL)
    taken += islice(ids, 50)
    assert taken == list(range(1, 53))


def test_closing_wakes_a_thread_that_waits_for_ids(server: FakeServer) -> None:
    """close() ends a next() that waits in another thread."""
    client = idalloc.Client(server.target, timeout=30)
    ids = client.ids("orders")
    server.hold.clear()
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(next, ids)
        hold_for(0.3, "the thread waits")
        client.close()
        with pytest.raises((RuntimeError, idalloc.IdallocError)):
            waiting.result(5)


def test_ids_go_on_after_clear(client: idalloc.Client) -> None:
    """clear() discards the ids at hand; next() returns later ones."""
    ids = client.ids("orders")
    first = next(ids)
    ids.clear()
    assert next(ids) > first
