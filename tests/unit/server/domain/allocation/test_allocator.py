"""Ranges of ids from leases, at bounds and through faults of the store (P1, P2, P9)."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import (
    InvalidRequest,
    SequenceExhausted,
    SequenceNotFound,
    StoreOutcomeUnknown,
    StoreUnavailable,
)
from idalloc_server.domain.sequences.sequence import MAX_ID, Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, rejected, twice, unreachable
from tests.support.sequence_allocators import CONFIG, ids, make, own_counter, right_after_serving
from tests.support.waiting import settle


async def test_first_use_creates_the_sequence_and_starts_at_one(allocator: Allocator, store: MemoryStore) -> None:
    """The first use of a sequence creates it and issues ids from 1."""
    taken = await allocator.issue("orders", 3)
    assert ids(taken) == [1, 2, 3]
    assert taken.generation == store.rows["orders"].generation
    assert store.rows["orders"].last_value == 3


async def test_first_grant_is_just_what_was_requested(allocator: Allocator, store: MemoryStore) -> None:
    """A sequence without a lease requests exactly the ids of its caller."""
    await allocator.issue("orders", 7)
    assert [call.arguments[1] for call in store.calls_of("grant")] == [7]  # it found no row
    assert store.rows["orders"].last_value == 7


async def test_leases_grow_with_use(allocator: Allocator, store: MemoryStore) -> None:
    """Leases grow with use, so that 10,000 ids take fewer than 20 writes."""
    taken = [allocator.issue_now("orders", 1) or await allocator.issue("orders", 1) for _ in range(10_000)]
    assert ids(*taken) == list(range(1, 10_001))
    assert len(store.calls_of("grant")) < 20


async def test_a_lease_does_not_grow_when_the_rate_is_low(
    allocator: Allocator, store: MemoryStore, clock: FakeClock
) -> None:
    """A call a minute counts as two in 5 s at most, so a slowly used sequence holds few ids."""
    for _ in range(20):
        clock.advance(60)
        await allocator.issue("orders", 1)
        await settle()
    held = (store.rows["orders"].last_value or 0) - 20
    assert 0 < held <= 3 * CONFIG.outage_reserve * 2 / 5 + 2


async def test_a_lease_takes_a_limited_share_of_the_remaining_ids(allocator: Allocator, store: MemoryStore) -> None:
    """A lease prefetches at most a hundredth of the remaining ids."""
    make(store, "short", Sequence(max_value=500))
    for _ in range(100):
        await allocator.issue("short", 1)
    last_value = store.rows["short"].last_value
    assert last_value is not None
    assert last_value <= 105


async def test_a_thousand_callers_share_refills(allocator: Allocator, store: MemoryStore) -> None:
    """P1: concurrent callers share refills in FIFO order, and no id is issued twice."""
    await allocator.issue("orders", 1)
    gate = store.hold("grant")
    calls = [asyncio.create_task(allocator.issue("orders", 1 + n % 5)) for n in range(1_000)]
    await settle()
    before = len(store.calls_of("grant"))
    gate.set()
    taken = await asyncio.gather(*calls)
    assert len(set(ids(*taken))) == sum(1 + n % 5 for n in range(1_000))
    assert len(store.calls_of("grant")) - before <= 2
    assert [r.first_id for r in taken] == sorted(r.first_id for r in taken)  # FIFO


async def test_a_large_request_gets_one_contiguous_range(allocator: Allocator) -> None:
    """A request larger than the lease gets one contiguous range, and no id is burned."""
    for _ in range(5):
        await allocator.issue("orders", 10)
    taken = await allocator.issue("orders", 1_000)
    assert ids(taken) == list(range(51, 1_051))
    assert not allocator.burned.by_cause


async def test_a_large_request_burns_a_range_that_is_too_small(
    allocator: Allocator, store: MemoryStore, clock: FakeClock
) -> None:
    """P9: ids before a contiguous range for a large request are burned as leftover."""
    other = Allocator(store, clock, CONFIG)
    make(store, "orders", Sequence(max_lease_size=2))
    await allocator.issue("orders", 1)
    await allocator.issue("orders", 1)  # 2 ids are prefetched by now
    taken_by_other = await other.issue("orders", 1)
    taken = await allocator.issue("orders", 5)
    later = await allocator.issue("orders", 1)
    assert taken.id_count == 5
    assert taken.first_id > taken_by_other.last_id
    assert later.first_id > taken.last_id  # the ids of a node rise
    assert allocator.burned.by_cause == {BurnCause.LEFTOVER: 2}


async def test_two_nodes_never_issue_the_same_id(store: MemoryStore, clock: FakeClock) -> None:
    """P1: two nodes that share a sequence issue no id twice."""
    nodes = [Allocator(store, clock, CONFIG) for _ in range(2)]
    taken = await asyncio.gather(*(nodes[n % 2].issue("orders", n % 7 + 1) for n in range(500)))
    everything = ids(*taken)
    assert len(everything) == len(set(everything))


class TestBound:
    async def test_every_id_up_to_max_value_is_issued(self, allocator: Allocator, store: MemoryStore) -> None:
        """Requests that fit are served up to the last id; larger ones fail with the number left."""
        make(store, "end", Sequence(start=MAX_ID - 14))
        with pytest.raises(SequenceExhausted) as refused:
            await allocator.issue("end", 100)
        assert refused.value.metadata["remaining"] == "15"
        assert ids(await allocator.issue("end", 15)) == list(range(MAX_ID - 14, MAX_ID + 1))
        with pytest.raises(SequenceExhausted) as refused:
            await allocator.issue("end", 1)
        assert refused.value.metadata["remaining"] == "0"

    async def test_a_rejected_request_leaves_ids_for_other_nodes(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """A request for too many ids takes none: another node can have them."""
        other = Allocator(store, clock, CONFIG)
        make(store, "end", Sequence(max_value=15))
        with pytest.raises(SequenceExhausted):
            await allocator.issue("end", 16)
        assert ids(await other.issue("end", 15)) == list(range(1, 16))

    async def test_at_the_bound_no_range_is_skipped(
        self, allocator: Allocator, store: MemoryStore, clock: FakeClock
    ) -> None:
        """At the bound small ranges are kept for smaller requests, and not burned."""
        other = Allocator(store, clock, CONFIG)
        make(store, "end", Sequence(max_value=300))
        for _ in range(2):
            await allocator.issue("end", 1)  # 2 ids are prefetched by now: 3 and 4
        await other.issue("end", 293)
        with pytest.raises(SequenceExhausted) as refused:
            await allocator.issue("end", 6)
        assert refused.value.metadata == {"sequence": "end", "remaining": "5", "largest_range": "2"}
        with pytest.raises(SequenceExhausted):
            await allocator.issue("end", 3)  # the first range has only 3 and 4
        assert ids(await allocator.issue("end", 2), await allocator.issue("end", 3)) == [
            3,
            4,
            298,
            299,
            300,
        ]
        assert not allocator.burned.by_cause

    async def test_smaller_requests_after_a_rejected_one_are_served(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """A rejected large request does not fail smaller ones in the queue."""
        make(store, "end", Sequence(max_value=15))
        large, small = await asyncio.gather(
            allocator.issue("end", 16), allocator.issue("end", 10), return_exceptions=True
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
        """P1: every id up to the bound is issued exactly once, for any step and request sizes."""
        slack = min(slack, abs(step) - 1)
        end = step * (total - 1) + (slack if step > 0 else -slack)
        settings = Sequence(start=0, step=step, min_value=min(end, 0) - 5 * (step > 0), max_value=max(end, 0))
        if total == 0:
            return
        store = MemoryStore()
        allocator = Allocator(store, FakeClock(), CONFIG)
        make(store, "s", settings)
        issued: list[int] = []
        for size in sizes:
            left = total - len(issued)
            if size <= left:
                issued += ids(await allocator.issue("s", size))
            else:
                with pytest.raises(SequenceExhausted) as refused:
                    await allocator.issue("s", size)
                assert refused.value.metadata["remaining"] == str(left)
        if left := total - len(issued):
            issued += ids(await allocator.issue("s", left))
        assert issued == [step * n for n in range(total)]


class TestCancelling:
    async def test_a_caller_cancelled_while_waiting_takes_no_ids(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """A caller cancelled before the refill takes no ids, and none are burned."""
        await allocator.issue("orders", 1)
        gate = store.hold("grant")
        gone = asyncio.create_task(allocator.issue("orders", 10))
        stays = asyncio.create_task(allocator.issue("orders", 1))
        await settle()
        gone.cancel()
        gate.set()
        assert ids(await stays) == [2]
        assert ids(await allocator.issue("orders", 1)) == [3]
        assert not allocator.burned.by_cause

    async def test_a_cancelled_caller_does_not_cancel_the_refill(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """A refill whose only caller was cancelled completes, and its ids stay in the lease."""
        await allocator.issue("orders", 1)
        gate = store.hold("grant")
        gone = asyncio.create_task(allocator.issue("orders", 10))
        await settle()
        gone.cancel()
        gate.set()
        await settle()
        assert allocator.issue_now("orders", 10) is not None

    async def test_ids_of_a_caller_cancelled_after_serving_are_burned(
        self, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: ids taken for a caller that is cancelled before its reply count as cancelled."""
        await allocator.issue("orders", 1)
        gone = asyncio.create_task(allocator.issue("orders", 10))
        right_after_serving(own_counter(allocator, "orders"), gone.cancel, monkeypatch)
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert allocator.burned.by_cause == {BurnCause.CANCELLED: 10}
        assert (await allocator.issue("orders", 1)).first_id == 12


class TestStoreFaults:
    async def test_a_lost_reply_burns_its_grant(self, allocator: Allocator, store: MemoryStore) -> None:
        """P1: the ids of a write without an answer are burned and never issued."""
        await allocator.issue("orders", 5)
        store.next("grant", lost_reply())
        with pytest.raises(StoreOutcomeUnknown):
            await allocator.issue("orders", 50)
        burned = allocator.burned.by_cause[BurnCause.UNKNOWN_OUTCOME]
        taken = await allocator.issue("orders", 1)
        assert burned >= 50
        assert taken.first_id == 6 + burned

    async def test_a_write_applied_twice_issues_nothing_twice(self, allocator: Allocator, store: MemoryStore) -> None:
        """P1: a write that the store applies twice causes no id to be issued twice."""
        await allocator.issue("orders", 5)
        store.next("grant", twice())
        issued = ids(await allocator.issue("orders", 5), await allocator.issue("orders", 5))
        assert len(set(issued)) == 10
        assert min(issued) > 5

    async def test_leases_serve_while_the_store_is_down(self, allocator: Allocator, store: MemoryStore) -> None:
        """Leases serve while the store is down, and refills resume when it is back."""
        for _ in range(5):
            await allocator.issue("orders", 10)
        store.down = True
        assert (await allocator.issue("orders", 10)).first_id == 51
        with pytest.raises(StoreUnavailable):
            await allocator.issue("orders", 10_000)
        store.down = False
        assert (await allocator.issue("orders", 10_000)).id_count == 10_000
        assert not allocator.burned.by_cause

    @pytest.mark.parametrize("fault", [unreachable(), rejected()])
    async def test_a_write_that_was_not_applied_burns_nothing(
        self, allocator: Allocator, store: MemoryStore, fault: Fault
    ) -> None:
        """A write that was certainly not applied burns no ids."""
        await allocator.issue("orders", 1)
        store.next("grant", fault)
        with pytest.raises(StoreUnavailable):
            await allocator.issue("orders", 1)
        assert ids(await allocator.issue("orders", 1)) == [2]
        assert not allocator.burned.by_cause

    async def test_a_refill_times_out_and_the_next_call_starts_another(
        self, allocator: Allocator, store: MemoryStore
    ) -> None:
        """A refill fails after store_timeout, and the next call starts a new one."""
        await allocator.issue("orders", 1)
        store.hold("grant")
        with pytest.raises(StoreUnavailable, match="did not answer"):
            await allocator.issue("orders", 1)
        assert (await allocator.issue("orders", 1)).id_count == 1

    async def test_a_failed_refill_fails_all_its_callers(self, allocator: Allocator, store: MemoryStore) -> None:
        """A failed refill fails every caller that waited for it."""
        await allocator.issue("orders", 1)
        store.next("grant", unreachable())
        answers = await asyncio.gather(*(allocator.issue("orders", 5) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(answer, StoreUnavailable) for answer in answers)


class TestNames:
    @pytest.mark.parametrize("name", ["", "a\x00b", "line\nbreak", "\x7f", "\x9b", "ä" * 128, "x" * 256])
    async def test_an_invalid_name_is_rejected_before_a_store_call(
        self, allocator: Allocator, store: MemoryStore, name: str
    ) -> None:
        """An invalid sequence name is rejected without a store call."""
        with pytest.raises(InvalidRequest) as refused:
            await allocator.issue(name, 1)
        assert refused.value.field == "sequence"
        assert not store.calls

    @pytest.mark.parametrize("name", ["a", "x" * 255, "ä" * 127, "with space/and:signs", "订单"])
    async def test_any_other_name_is_valid(self, allocator: Allocator, name: str) -> None:
        """Any other name of 1 to 255 bytes of UTF-8 is valid."""
        assert (await allocator.issue(name, 1)).first_id == 1

    async def test_auto_create_off_requires_an_existing_sequence(self, store: MemoryStore, clock: FakeClock) -> None:
        """With auto_create_sequences off, only existing sequences issue ids."""
        allocator = Allocator(store, clock, AllocationConfig(180.0, 0.2, auto_create_sequences=False))
        with pytest.raises(SequenceNotFound):
            await allocator.issue("orders", 1)
        assert not store.rows
        make(store, "orders", Sequence())
        assert (await allocator.issue("orders", 1)).first_id == 1
