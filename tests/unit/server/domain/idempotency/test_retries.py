"""A retry with the same request id gets the same ids, or learns that it may not (P7)."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.errors import (
    RequestIdBurned,
    RequestIdReused,
    SequenceDeleted,
    SequenceExhausted,
    StoreOutcomeUnknown,
    StoreUnavailable,
    StoreUnreachable,
)
from idalloc_server.domain.records import RecordedAllocation
from idalloc_server.domain.sequences.model import MAX_ID, Reset, Sequence
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, lost_request, twice, unreachable
from tests.support.memory_rows import RecordedRow, Row
from tests.unit.server.domain.idempotency.conftest import LEASE_TTL, ONE, OTHER, Node, settings_changed, until, warm


class TestRetry:
    async def test_the_answer_is_in_the_store_before_it_is_given(self, node: Node, store: MemoryStore) -> None:
        gate = store.hold("record")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        assert not call.done()
        gate.set()
        taken = await call
        assert (taken.first_id, taken.id_count, taken.step) == (1, 5, 1)
        written = RecordedAllocation(ONE, "orders", 1, 5, 1, taken.generation, "", 7, "a", 3_600_000)
        assert store.allocations[ONE].allocation == written
        assert not node.burned

    async def test_on_the_same_node_it_gets_the_same(self, node: Node) -> None:
        taken = await node.take(5)
        assert await node.take(5) == taken
        assert node.burned == {BurnCause.REPEATED: 5}
        assert (await node.take(5, OTHER)).first_id == 11

    async def test_on_another_node_it_gets_the_same(self, node: Node, other_node: Node) -> None:
        taken = await node.take(5)
        assert (await other_node.take(5))[:4] == taken[:4]
        assert other_node.burned == {BurnCause.REPEATED: 5}

    @pytest.mark.parametrize("fault", [lost_reply, twice], ids=["applied, reply lost", "applied twice"])
    async def test_what_was_applied_is_what_a_retry_gets(
        self, node: Node, other_node: Node, store: MemoryStore, fault: Callable[[], Fault]
    ) -> None:
        store.next("record", fault())
        with contextlib.suppress(StoreOutcomeUnknown):
            assert (await node.take(5)).first_id == 1
        assert (await other_node.take(5)).first_id == 1
        assert (await node.take(5)).first_id == 1

    @pytest.mark.parametrize("fault", [lost_request, unreachable])
    async def test_what_was_not_applied_is_burned(
        self, node: Node, store: MemoryStore, fault: Callable[[], Fault]
    ) -> None:
        store.next("record", fault())
        assert isinstance(await node.refused(5), StoreUnavailable)
        assert node.burned == {BurnCause.UNKNOWN_OUTCOME: 5}
        assert (await node.take(5)).first_id == 6

    async def test_a_write_that_hangs_ends_in_time_and_the_next_one_goes_on(
        self, node: Node, store: MemoryStore
    ) -> None:
        store.hold("record")  # for ever
        assert isinstance(await node.refused(5), StoreOutcomeUnknown)
        assert (await node.take(5)).first_id == 6

    async def test_a_write_that_is_applied_late_wins(self, node: Node, store: MemoryStore) -> None:
        store.next("record", lost_request())
        await node.refused(5)
        late = RecordedAllocation(ONE, "orders", 1, 5, 1, store.rows["orders"].generation, "", 7, "a")
        store.allocations[ONE] = RecordedRow(late, 1)
        assert (await node.take(5)).first_id == 1

    async def test_a_crash_between_the_increment_and_the_record_burns(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        store.hold("record")
        crashed = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        assert (await other_node.take(5)).first_id == 6
        await asyncio.gather(crashed, return_exceptions=True)

    async def test_what_the_store_does_not_tell_is_unknown(
        self, node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "_record", lambda allocations: {})
        assert isinstance(await node.refused(5), StoreOutcomeUnknown)
        assert node.burned == {BurnCause.UNKNOWN_OUTCOME: 5}

    async def test_an_error_of_the_increment_writes_nothing_down(self, node: Node, store: MemoryStore) -> None:
        store.down = True
        assert isinstance(await node.refused(5), StoreUnreachable)
        store.down = False
        assert not store.calls_of("record")
        assert (await node.take(5)).first_id == 1

    async def test_it_is_answered_with_what_is_needed_for_the_same_texts(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        store.rows["dated"] = Row(Sequence(format="{year}-{prefix}-{value:06d}"), 0)
        first = await node.request_ids.allocate("dated", 1, ONE, 7)
        clock.advance(170.0)
        clock.wall_seconds += 86_400 * 365
        again = await other_node.request_ids.allocate("dated", 1, ONE, 8)
        assert first[0].period == again[0].period == "2023-11-14"
        assert first[1] == again[1] == 7

    async def test_a_sequence_without_dates_in_its_texts_has_none(self, node: Node, store: MemoryStore) -> None:
        store.rows["plain"] = Row(Sequence(format="A-{value:06d}"), 0)
        assert (await node.take(1, sequence="plain")).period == ""


class TestAnotherRequest:
    @pytest.mark.parametrize(("sequence", "count"), [("orders", 6), ("others", 5)])
    async def test_the_same_request_id_is_refused(
        self, node: Node, other_node: Node, sequence: str, count: int
    ) -> None:
        await node.take(5)
        for each in (node, other_node):
            refusal = await each.refused(count, sequence=sequence)
            assert isinstance(refusal, RequestIdReused)
            assert ("5 ids of this sequence" if sequence == "orders" else "another sequence") in str(refusal)
            assert each.burned == {BurnCause.REPEATED: count}

    async def test_also_where_both_come_at_once(self, node: Node, store: MemoryStore) -> None:
        answers = await asyncio.gather(node.take(5), node.take(6), return_exceptions=True)
        assert isinstance(answers[0], IdRange)
        assert isinstance(answers[1], RequestIdReused)

    async def test_one_that_failed_without_a_trace_does_not_stand_in_the_way(
        self, node: Node, store: MemoryStore
    ) -> None:
        store.next("record", unreachable())
        answers = await asyncio.gather(node.take(5), node.take(6), return_exceptions=True)
        assert isinstance(answers[0], StoreUnreachable)
        assert isinstance(answers[1], IdRange)


class TestChangedSequence:
    async def test_a_change_in_between_burns_the_earlier_ids(self, node: Node, store: MemoryStore) -> None:
        await node.take(5)
        settings_changed(store)
        await node.allocator.forget("orders")
        refusal = await node.refused(5)
        assert isinstance(refusal, RequestIdBurned)
        assert "1 to 5" in str(refusal)
        assert isinstance(await node.refused(5), RequestIdBurned)
        assert (await node.take(5, OTHER)).generation == store.rows["orders"].generation

    async def test_until_it_takes_effect_a_node_that_does_not_know_of_a_change_gives_them(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        await warm(node)
        taken = await node.take(5)
        settings_changed(store)
        again = await node.take(5)
        assert (again.first_id, again.generation) == (taken.first_id, taken.generation)
        assert isinstance(await other_node.refused(5), RequestIdBurned)
        clock.advance(LEASE_TTL)
        assert isinstance(await node.refused(5), RequestIdBurned)

    async def test_ids_of_a_change_that_this_node_does_not_know_are_given_with_their_own_settings(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        await warm(node)
        settings_changed(store, Sequence(format="B{value}"))
        newer = await other_node.take(5)
        assert newer.generation == store.rows["orders"].generation
        again = await node.take(5)
        assert (again.first_id, again.generation) == (newer.first_id, newer.generation)
        assert again.sequence.format == "B{value}"

    async def test_ids_of_a_generation_that_the_store_has_lost_are_burned(self, node: Node, store: MemoryStore) -> None:
        ahead = RecordedAllocation(ONE, "orders", 100, 5, 1, 2**60, "", 7, "a")
        store.allocations[ONE] = RecordedRow(ahead, 1)
        assert isinstance(await node.refused(5), RequestIdBurned)

    async def test_a_deleted_sequence_burns_them(self, node: Node, store: MemoryStore) -> None:
        await node.take(5)
        settings_changed(store)
        store.rows["orders"].deleted = True
        await node.allocator.forget("orders")
        assert isinstance(await node.refused(5), RequestIdBurned)
        assert isinstance(await node.refused(5, OTHER), SequenceDeleted)

    async def test_another_period_repeats_numbers_but_not_ids(
        self, node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        store.rows["orders"] = Row(Sequence(reset=Reset.YEARLY, format="{year}-{value:06d}"), 0)
        first = await node.take(5)
        assert (first.first_id, first.period) == (1, "2023")
        clock.wall_seconds += 86_400 * 365
        again = await node.take(5)
        assert (again.first_id, again.period) == (1, "2023")
        assert node.burned[BurnCause.REPEATED] == 5
        assert (await node.take(5, OTHER)).period == "2024"


class TestAtTheBound:
    async def test_a_retry_of_the_last_ids_gets_them(self, node: Node, other_node: Node, store: MemoryStore) -> None:
        store.rows["orders"] = Row(Sequence(max_value=5), 0)
        taken = await node.take(5)
        assert (await other_node.take(5))[:4] == taken[:4]
        assert (await node.take(5))[:4] == taken[:4]
        assert isinstance(await node.refused(5, OTHER), SequenceExhausted)
        assert isinstance(await node.refused(4), RequestIdReused)

    async def test_unless_the_sequence_was_changed_since(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        store.rows["orders"] = Row(Sequence(max_value=5), 0)
        await node.take(5)
        settings_changed(store)
        assert isinstance(await other_node.refused(5), RequestIdBurned)

    async def test_the_largest_ids_of_all(self, node: Node, other_node: Node, store: MemoryStore) -> None:
        store.rows["orders"] = Row(Sequence(), MAX_ID - 5)
        assert (await node.take(5)).last_id == MAX_ID
        assert (await other_node.take(5)).last_id == MAX_ID

    async def test_downwards(self, node: Node, other_node: Node, store: MemoryStore) -> None:
        store.rows["orders"] = Row(Sequence(start=-1, step=-3, min_value=-100, max_value=-1), 2)
        taken = await node.take(3)
        assert [taken.first_id, taken.last_id, taken.step] == [-1, -7, -3]
        assert (await other_node.take(3))[:4] == taken[:4]


class TestLease:
    async def test_one_that_ended_while_the_answer_was_written_down_is_not_given_late(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        gate = store.hold("record")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        clock.advance(LEASE_TTL)
        gate.set()
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert node.burned == {BurnCause.EXPIRED: 5}
        # The retry has the store say anew that the generation stands.
        assert (await other_node.take(5)).first_id == 1

    async def test_nor_is_a_repetition(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        await node.take(5)
        gate = store.hold("record")
        call = asyncio.create_task(other_node.take(5))
        await until(lambda: len(store.calls_of("record")) == 2)
        clock.advance(LEASE_TTL)
        gate.set()
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert other_node.burned == {BurnCause.REPEATED: 5}


class TestLateCaller:
    """The process may be paused between the answer and the moment when its caller runs."""

    async def paused_at_the_answer(self, node: Node, clock: FakeClock) -> "asyncio.Task[IdRange]":
        call = asyncio.create_task(node.take(5))
        await until(lambda: node.request_ids._calls)
        node.request_ids._calls[ONE].task.add_done_callback(lambda _: clock.advance(LEASE_TTL))
        return call

    async def test_it_gets_no_ids_of_a_lease_that_ended(self, node: Node, other_node: Node, clock: FakeClock) -> None:
        """P4: the lease's end is checked again right before the answer; the ids count as burned."""
        call = await self.paused_at_the_answer(node, clock)
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert node.burned == {BurnCause.EXPIRED: 5}
        assert (await other_node.take(5)).first_id == 1  # after the store proved the generation anew

    async def test_nor_ids_of_an_earlier_call(self, node: Node, other_node: Node, clock: FakeClock) -> None:
        """P4: the same for ids that another node took; they are not this node's to burn."""
        await other_node.take(5)
        call = await self.paused_at_the_answer(node, clock)
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert node.burned == {BurnCause.REPEATED: 5}

    @pytest.mark.parametrize("first_in_time", [True, False])
    async def test_ids_that_another_caller_has_are_not_burned(
        self, node: Node, clock: FakeClock, first_in_time: bool
    ) -> None:
        """P9: of several callers of one call one is enough to have issued its ids, and they burn once."""

        async def take_and_pause() -> IdRange:
            try:
                return await node.take(5)
            finally:
                clock.advance(LEASE_TTL)

        if first_in_time:
            calls = [asyncio.create_task(each) for each in (take_and_pause(), node.take(5), node.take(5))]
        else:
            calls = [await self.paused_at_the_answer(node, clock), *(asyncio.create_task(node.take(5)) for _ in "23")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(answer, IdRange) for answer in answers] == [first_in_time, False, False]
        assert node.burned == ({} if first_in_time else {BurnCause.EXPIRED: 5})

    async def test_a_cancelled_one_burns_no_ids_that_another_has(self, node: Node) -> None:
        """P9: a caller who is cancelled right after the answer leaves the ids to those who have them."""
        calls = [asyncio.create_task(node.take(5)) for _ in range(2)]
        calls[0].add_done_callback(lambda _: calls[1].cancel())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], IdRange)
        assert not node.burned
