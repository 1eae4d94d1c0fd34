"""Ranges from leases: who gets which ids, up to the bound and through faults of the store (P1, P2, P9)."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.errors import (
    InvalidRequest,
    SequenceExhausted,
    SequenceNotFound,
    StoreOutcomeUnknown,
    StoreUnavailable,
)
from idalloc_server.domain.sequences.model import MAX_ID, Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, rejected, twice, unreachable
from tests.support.sequence_allocators import TERMS, ids, make, right_after_serving


async def test_first_use_creates_the_sequence_and_starts_at_one(allocator: Allocator, store: MemoryStore) -> None:
    taken = await allocator.allocate("orders", 3)
    assert ids(taken) == [1, 2, 3]
    assert taken.generation == store.rows["orders"].generation
    assert store.rows["orders"].last_value == 3


async def test_cold_lane_takes_just_what_was_asked_for(allocator: Allocator, store: MemoryStore) -> None:
    await allocator.allocate("orders", 7)
    assert [call.arguments[1] for call in store.calls_of("grant")] == [7, 7]  # the first one found no row
    assert store.rows["orders"].last_value == 7


async def test_leases_grow_with_use_so_that_the_store_is_called_ever_more_rarely(
    allocator: Allocator, store: MemoryStore
) -> None:
    taken = [allocator.take("orders", 1) or await allocator.allocate("orders", 1) for _ in range(10_000)]
    assert ids(*taken) == list(range(1, 10_001))
    assert len(store.calls_of("grant")) < 20


async def test_a_lease_does_not_grow_when_the_rate_is_low(
    allocator: Allocator, store: MemoryStore, clock: FakeClock
) -> None:
    for _ in range(20):
        clock.advance(60)
        await allocator.allocate("orders", 1)
    assert store.rows["orders"].last_value in (20, 21)


async def test_no_lease_takes_more_than_its_share_of_what_is_left(allocator: Allocator, store: MemoryStore) -> None:
    make(store, "short", Sequence(max_value=5_000))
    for _ in range(100):
        await allocator.allocate("short", 1)
    last_value = store.rows["short"].last_value
    assert last_value is not None
    assert last_value <= 105


async def test_a_thousand_callers_share_refills_and_no_id(allocator: Allocator, store: MemoryStore) -> None:
    await allocator.allocate("orders", 1)
    gate = store.hold("grant")
    calls = [asyncio.create_task(allocator.allocate("orders", 1 + n % 5)) for n in range(1_000)]
    await asyncio.sleep(0.01)
    before = len(store.calls_of("grant"))
    gate.set()
    taken = await asyncio.gather(*calls)
    assert len(set(ids(*taken))) == sum(1 + n % 5 for n in range(1_000))
    assert len(store.calls_of("grant")) - before <= 2
    assert [r.first_id for r in taken] == sorted(r.first_id for r in taken)  # first come, first served


async def test_a_large_request_gets_one_contiguous_range(allocator: Allocator) -> None:
    for _ in range(5):
        await allocator.allocate("orders", 10)
    taken = await allocator.allocate("orders", 1_000)
    assert ids(taken) == list(range(51, 1_051))
    assert not allocator.burned.by_cause


async def test_a_large_request_leaves_behind_what_another_node_cut_off(
    allocator: Allocator, store: MemoryStore, clock: FakeClock
) -> None:
    other = Allocator(store, clock, TERMS)
    await allocator.allocate("orders", 1)
    await allocator.allocate("orders", 1)  # by now 2 are held ahead
    taken_by_other = await other.allocate("orders", 1)
    taken = await allocator.allocate("orders", 5)
    later = await allocator.allocate("orders", 1)
    assert taken.id_count == 5
    assert taken.first_id > taken_by_other.last_id
    assert later.first_id > taken.last_id  # the cut-off ids are lower: a node's ids rise
    assert allocator.burned.by_cause == {BurnCause.LEFTOVER: 2}


async def test_ids_of_two_nodes_never_meet(store: MemoryStore, clock: FakeClock) -> None:
    nodes = [Allocator(store, clock, TERMS) for _ in range(2)]
    taken = await asyncio.gather(*(nodes[n % 2].allocate("orders", n % 7 + 1) for n in range(500)))
    everything = ids(*taken)
    assert len(everything) == len(set(everything))


class TestBound:
    async def test_what_is_left_can_be_had_to_the_last_id(self, allocator: Allocator, store: MemoryStore) -> None:
        make(store, "end", Sequence(start=MAX_ID - 14))
        with pytest.raises(SequenceExhausted) as refused:
            await allocator.allocate("end", 100)
        assert refused.value.metadata["remaining"] == "15"
        assert ids(await allocator.allocate("end", 15)) == list(range(MAX_ID - 14, MAX_ID + 1))
        with pytest.raises(SequenceExhausted) as refused:
            await allocator.allocate("end", 1)
        assert refused.value.metadata["remaining"] == "0"

    async def test_what_one_node_could_not_use_another_can_have(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        other = Allocator(store, clock, TERMS)
        make(store, "end", Sequence(max_value=15))
        with pytest.raises(SequenceExhausted):
            await allocator.allocate("end", 16)
        assert ids(await other.allocate("end", 15)) == list(range(1, 16))

    async def test_at_the_bound_nothing_is_left_behind(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        other = Allocator(store, clock, TERMS)
        make(store, "end", Sequence(max_value=10_000))
        for _ in range(2):
            await allocator.allocate("end", 1)  # by now 2 are held ahead: 3 and 4
        await other.allocate("end", 9_993)
        with pytest.raises(SequenceExhausted) as refused:
            await allocator.allocate("end", 6)
        assert refused.value.metadata == {"sequence": "end", "remaining": "5", "largest_range": "2"}
        with pytest.raises(SequenceExhausted):
            await allocator.allocate("end", 3)  # 3 and 4 come first
        assert ids(await allocator.allocate("end", 2), await allocator.allocate("end", 3)) == [
            3,
            4,
            9_998,
            9_999,
            10_000,
        ]
        assert not allocator.burned.by_cause

    async def test_smaller_requests_behind_a_refused_one_are_served(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        make(store, "end", Sequence(max_value=15))
        large, small = await asyncio.gather(
            allocator.allocate("end", 16), allocator.allocate("end", 10), return_exceptions=True
        )
        assert isinstance(large, SequenceExhausted)
        assert isinstance(small, IdRange)
        assert ids(small) == list(range(1, 11))

    @given(
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
        step=st.sampled_from([1, 3, -1, -4]),
        total=st.integers(0, 60),
        slack=st.integers(0, 3),
    )
    async def test_every_id_up_to_the_bound_is_issued_once(
        self, sizes: list[int], step: int, total: int, slack: int
    ) -> None:
        slack = min(slack, abs(step) - 1)
        end = step * (total - 1) + (slack if step > 0 else -slack)
        settings = Sequence(start=0, step=step, min_value=min(end, 0) - 5 * (step > 0), max_value=max(end, 0))
        if total == 0:
            return
        store = MemoryStore()
        allocator = Allocator(store, FakeClock(), TERMS)
        make(store, "s", settings)
        issued: list[int] = []
        for size in sizes:
            left = total - len(issued)
            if size <= left:
                issued += ids(await allocator.allocate("s", size))
            else:
                with pytest.raises(SequenceExhausted) as refused:
                    await allocator.allocate("s", size)
                assert refused.value.metadata["remaining"] == str(left)
        if left := total - len(issued):
            issued += ids(await allocator.allocate("s", left))
        assert issued == [step * n for n in range(total)]


class TestCancelling:
    async def test_a_caller_who_is_gone_takes_nothing(self, allocator: Allocator, store: MemoryStore) -> None:
        await allocator.allocate("orders", 1)
        gate = store.hold("grant")
        gone = asyncio.create_task(allocator.allocate("orders", 10))
        stays = asyncio.create_task(allocator.allocate("orders", 1))
        await asyncio.sleep(0.01)
        gone.cancel()
        gate.set()
        assert ids(await stays) == [2]
        assert ids(await allocator.allocate("orders", 1)) == [3]
        assert not allocator.burned.by_cause

    async def test_cancelling_the_only_caller_does_not_cancel_the_refill(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        await allocator.allocate("orders", 1)
        gate = store.hold("grant")
        gone = asyncio.create_task(allocator.allocate("orders", 10))
        await asyncio.sleep(0.01)
        gone.cancel()
        gate.set()
        await asyncio.sleep(0.01)
        assert allocator.take("orders", 10) is not None

    async def test_ids_taken_for_a_caller_who_left_before_the_answer_are_burned(
        self, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await allocator.allocate("orders", 1)
        gone = asyncio.create_task(allocator.allocate("orders", 10))
        right_after_serving(allocator._sequence_allocators["orders"], gone.cancel, monkeypatch)
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert allocator.burned.by_cause == {BurnCause.CANCELLED: 10}
        assert (await allocator.allocate("orders", 1)).first_id == 12


class TestStoreFaults:
    async def test_a_lost_reply_burns_what_it_granted(self, allocator: Allocator, store: MemoryStore) -> None:
        await allocator.allocate("orders", 5)
        store.next("grant", lost_reply())
        with pytest.raises(StoreOutcomeUnknown):
            await allocator.allocate("orders", 50)
        burned = allocator.burned.by_cause[BurnCause.UNKNOWN_OUTCOME]
        taken = await allocator.allocate("orders", 1)
        assert burned >= 50
        assert taken.first_id == 6 + burned

    async def test_a_write_applied_twice_issues_nothing_twice(self, allocator: Allocator, store: MemoryStore) -> None:
        await allocator.allocate("orders", 5)
        store.next("grant", twice())
        issued = ids(await allocator.allocate("orders", 5), await allocator.allocate("orders", 5))
        assert len(set(issued)) == 10
        assert min(issued) > 5

    async def test_leases_go_on_serving_while_the_store_is_down_and_it_recovers_by_itself(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        for _ in range(5):
            await allocator.allocate("orders", 10)
        store.down = True
        assert (await allocator.allocate("orders", 10)).first_id == 51
        with pytest.raises(StoreUnavailable):
            await allocator.allocate("orders", 10_000)
        store.down = False
        assert (await allocator.allocate("orders", 10_000)).id_count == 10_000
        assert not allocator.burned.by_cause

    @pytest.mark.parametrize("fault", [unreachable(), rejected()])
    async def test_a_write_that_was_not_applied_burns_nothing(
        self, allocator: Allocator, store: MemoryStore, fault: Fault
    ) -> None:
        await allocator.allocate("orders", 1)
        store.next("grant", fault)
        with pytest.raises(StoreUnavailable):
            await allocator.allocate("orders", 1)
        assert ids(await allocator.allocate("orders", 1)) == [2]
        assert not allocator.burned.by_cause

    async def test_a_store_that_hangs_is_given_up_and_the_next_caller_starts_anew(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        await allocator.allocate("orders", 1)
        store.hold("grant")
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await allocator.allocate("orders", 1)
        assert (await allocator.allocate("orders", 1)).id_count == 1

    async def test_a_failed_refill_refuses_all_who_waited_for_it(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        await allocator.allocate("orders", 1)
        store.next("grant", unreachable())
        answers = await asyncio.gather(*(allocator.allocate("orders", 5) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)


class TestNames:
    @pytest.mark.parametrize("name", ["", "a\x00b", "line\nbreak", "\x7f", "\x9b", "ä" * 128, "x" * 256])
    async def test_a_malformed_name_is_refused_before_anything_is_taken(
        self, allocator: Allocator, store: MemoryStore, name: str
    ) -> None:
        with pytest.raises(InvalidRequest) as refused:
            await allocator.allocate(name, 1)
        assert refused.value.field == "sequence"
        assert not store.calls

    @pytest.mark.parametrize("name", ["a", "x" * 255, "ä" * 127, "with space/and:signs", "订单"])
    async def test_any_other_name_is_one(self, allocator: Allocator, name: str) -> None:
        assert (await allocator.allocate(name, 1)).first_id == 1

    async def test_a_sequence_is_not_created_where_that_is_off(self, store: MemoryStore, clock: FakeClock) -> None:
        allocator = Allocator(store, clock, AllocationConfig(180.0, 0.2, auto_create_sequences=False))
        with pytest.raises(SequenceNotFound):
            await allocator.allocate("orders", 1)
        assert not store.rows
        make(store, "orders", Sequence())
        assert (await allocator.allocate("orders", 1)).first_id == 1
