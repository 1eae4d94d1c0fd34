"""Random faults of nodes and store: ids are unique, rise per node, behind the counter (P1)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceExhausted, StoreUnavailable
from idalloc_server.domain.sequences.sequence import Sequence
from tests.support.examples import examples
from tests.support.fake_store import (
    FakeClock,
    Fault,
    MemoryStore,
    lost_reply,
    lost_request,
    rejected,
    twice,
    unreachable,
)
from tests.support.sequence_allocators import make

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=60.0, auto_create_sequences=True)
NODES = st.integers(0, 2)
FAULTS = {
    "unreachable": unreachable,
    "rejected": rejected,
    "request": lost_request,
    "reply": lost_reply,
    "twice": twice,
}

steps = st.one_of(
    st.tuples(st.just("allocate"), NODES, st.integers(1, 50)),
    st.tuples(st.just("allocate"), NODES, st.integers(1, 50)),
    st.tuples(st.just("fault"), st.sampled_from(sorted(FAULTS)), st.sampled_from(["grant", "give_back"])),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 5.0, 70.0, 200.0])),
    st.tuples(st.just("idle"), NODES),
    st.tuples(st.just("stop"), NODES),
    st.tuples(st.just("crash"), NODES),
)


@examples(300)
@given(
    plan=st.lists(steps, max_size=60), step=st.sampled_from([1, 7, -3]), total=st.sampled_from([1, 40, 3_000, 10**9])
)
async def test_no_id_is_issued_twice_under_random_faults(plan: list[tuple[Any, ...]], step: int, total: int) -> None:
    """P1: no id is issued twice by three nodes under random faults, stops and crashes."""
    clock = FakeClock()
    store = MemoryStore(clock)
    last = step * (total - 1)
    make(store, "s", Sequence(start=0, step=step, min_value=min(last, 0), max_value=max(last, 0)))
    nodes = [Allocator(store, clock, CONFIG) for _ in range(3)]
    issued: list[list[int]] = [[], [], []]
    everything: set[int] = set()
    for kind, *arguments in plan:
        if kind == "fault":
            fault: Fault = FAULTS[arguments[0]]()
            store.next(arguments[1], fault)
        elif kind == "wait":
            clock.advance(arguments[0])
        elif kind == "idle":
            await nodes[arguments[0]].check_idle_sequences()
        elif kind == "stop":
            await nodes[arguments[0]].return_leases()
            nodes[arguments[0]] = Allocator(store, clock, CONFIG)
            issued[arguments[0]] = []
        elif kind == "crash":
            nodes[arguments[0]] = Allocator(store, clock, CONFIG)
            issued[arguments[0]] = []
        else:
            node, count = arguments
            try:
                taken = await nodes[node].issue("s", count)
            except (StoreUnavailable, SequenceExhausted):
                continue
            ids = range(taken.first_id, taken.last_id + step, step)
            assert len(ids) == count
            assert everything.isdisjoint(ids)
            assert not issued[node] or (ids[0] - issued[node][-1]) * step > 0
            everything.update(ids)
            issued[node] += ids
            last_value = store.rows["s"].last_value
            assert last_value is not None
            assert (last_value - ids[-1]) * step >= 0
    assert all(0 <= i // step < total and i % step == 0 for i in everything)
