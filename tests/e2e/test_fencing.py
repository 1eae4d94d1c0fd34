"""Two server processes on one store: changes through one hold on the other, also after a pause."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import idalloc
from tests.support.processes import Server, running
from tests.support.waiting import hold_for

LEASE = {"lease_ttl": "3s", "store_timeout": "1s", "outage_reserve": "1s"}


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Server, idalloc.Client, idalloc.Client]]:
    """Run two servers on one store; yield the first one, and a client of each."""
    with (
        running(folder, **LEASE) as first,
        running(folder, **LEASE) as second,
        idalloc.Client(first.address, timeout=20) as one,
        idalloc.Client(second.address) as other,
    ):
        yield first, one, other


def fill_lease(client: idalloc.Client, sequence: str) -> int:
    """Allocate until the client's node holds ids in memory; return the last issued id."""
    last = 0
    for _ in range(200):
        last = client.allocate_range(sequence, 10)[-1]
    return last


def wait_until_effective(change: Any) -> None:
    hold_for(max(0.0, change.effective_delay.total_seconds()), "leases from before the change end")


@pytest.mark.test_long
def test_a_resumed_node_issues_nothing_below_an_advance(tmp_path: Path) -> None:
    """P5: a node paused past its lease issues nothing at or below another node's advance."""
    with two_nodes(tmp_path) as (first, slow, quick):
        issued = fill_lease(slow, "orders")
        first.pause(tmp_path / "ids.db")
        try:
            advanced = quick.sequences.advance("orders", past=1_000_000)
            assert issued < 1_000_000
            wait_until_effective(advanced)
            after = quick.allocate_range("orders", 5)
            assert after[0] > 1_000_000
        finally:
            first.send(signal.SIGCONT)
        late = slow.allocate_range("orders", 5)
        assert late[0] > 1_000_000
        assert not set(late) & set(after)


@pytest.mark.test_long
def test_calls_during_a_pause_get_no_ids_below_an_advance(tmp_path: Path) -> None:
    """P4: calls that wait for a paused node get no ids from before the pause."""
    with two_nodes(tmp_path) as (first, slow, quick), ThreadPoolExecutor() as threads:
        fill_lease(slow, "orders")
        first.pause(tmp_path / "ids.db")
        try:
            waiting = [threads.submit(slow.allocate_range, "orders", 1) for _ in range(8)]
            advanced = quick.sequences.advance("orders", past=1_000_000)
            wait_until_effective(advanced)
        finally:
            first.send(signal.SIGCONT)
        assert all(answer.result()[0] > 1_000_000 for answer in waiting)


@pytest.mark.test_long
def test_a_client_pool_drops_ids_from_before_an_advance(tmp_path: Path) -> None:
    """P5: a client's pool returns no ids from before an advance once that is effective."""
    with two_nodes(tmp_path) as (_, pooling, other):
        ids = pooling.ids("orders")
        stock = [next(ids) for _ in range(2_000)]  # enough for prefetched ranges
        advanced = other.sequences.advance("orders", past=1_000_000)
        wait_until_effective(advanced)
        later = [next(ids) for _ in range(2_000)]
        assert max(stock) < 1_000_000 < min(later)
        assert later == sorted(set(later))


@pytest.mark.test_long
def test_a_recreated_sequence_continues_on_every_node(tmp_path: Path) -> None:
    """P5: a deleted sequence ends on every node; recreated, it continues beyond its last id."""
    with two_nodes(tmp_path) as (_, one, other):
        issued = fill_lease(one, "orders")
        deleted = other.sequences.delete("orders")
        wait_until_effective(deleted)
        for client in (one, other):
            with pytest.raises(idalloc.SequenceNotFound) as refused:
                client.allocate_range("orders", 1)
            assert refused.value.code is grpc.StatusCode.NOT_FOUND
        again = other.sequences.create("orders")
        assert again.generation > deleted.sequence.generation
        firsts = [client.allocate_range("orders", 1)[0] for client in (one, other)]
        assert min(firsts) > issued
        assert len(set(firsts)) == 2


def test_a_request_id_gets_the_same_ids_on_other_nodes(tmp_path: Path) -> None:
    """P7: a retry with the same request_id gets the same ids from other nodes after a crash."""
    request_id = "5f0c3d4e-93a7-4a5f-9f3f-0d7c1b6f2a11"
    with running(tmp_path) as first, idalloc.Client(first.address) as client:
        taken = client.allocate_range("orders", 7, request_id=request_id)
        first.stop(signal.SIGKILL)
    with (
        running(tmp_path) as second,
        running(tmp_path) as third,
        idalloc.Client(second.address) as client,
        idalloc.Client(third.address) as other,
    ):
        assert client.allocate_range("orders", 7, request_id=request_id).ids == taken.ids
        assert other.allocate_range("orders", 7, request_id=request_id).ids == taken.ids
        with pytest.raises(idalloc.RequestIdReused):
            other.allocate_range("orders", 8, request_id=request_id)
