"""A retry with the same request id gets the same ids, or an error if they are burned (P7)."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import (
    RequestIdBurned,
    RequestIdReused,
    SequenceDeleted,
    SequenceExhausted,
    StoreOutcomeUnknown,
    StoreUnavailable,
    StoreUnreachable,
)
from idalloc_server.domain.sequences.sequence import MAX_ID, Reset, Sequence
from idalloc_server.domain.store.records import RecordedAllocation
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, lost_request, twice, unreachable
from tests.support.memory_rows import RecordedRow, Row
from tests.unit.server.domain.idempotency.conftest import LEASE_TTL, ONE, OTHER, Node, settings_changed, until, warm


class TestRetry:
    async def test_the_answer_is_recorded_before_it_is_returned(self, node: Node, store: MemoryStore) -> None:
        """P7: an answer is in the store before the caller gets it."""
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

    async def test_a_retry_on_the_same_node_gets_the_same_ids(self, node: Node) -> None:
        """P7: a retry on the same node gets the same ids, and the new ones are burned."""
        taken = await node.take(5)
        assert await node.take(5) == taken._replace(created=False)
        assert node.burned == {BurnCause.REPEATED: 5}
        assert (await node.take(5, OTHER)).first_id == 11

    async def test_a_retry_on_another_node_gets_the_same_ids(self, node: Node, other_node: Node) -> None:
        """P7: a retry on another node gets the same ids."""
        taken = await node.take(5)
        assert (await other_node.take(5))[:4] == taken[:4]
        assert other_node.burned == {BurnCause.REPEATED: 5}

    @pytest.mark.parametrize("fault", [lost_reply, twice], ids=["applied, reply lost", "applied twice"])
    async def test_a_retry_gets_an_applied_answer(
        self, node: Node, other_node: Node, store: MemoryStore, fault: Callable[[], Fault]
    ) -> None:
        """P7: an answer that was recorded without a reply, or twice, is what a retry gets."""
        store.next("record", fault())
        with contextlib.suppress(StoreOutcomeUnknown):
            assert (await node.take(5)).first_id == 1
        assert (await other_node.take(5)).first_id == 1
        assert (await node.take(5)).first_id == 1

    @pytest.mark.parametrize("fault", [lost_request, unreachable])
    async def test_an_answer_that_is_not_applied_is_burned(
        self, node: Node, store: MemoryStore, fault: Callable[[], Fault]
    ) -> None:
        """P9: the ids of an answer that was not recorded are burned."""
        store.next("record", fault())
        assert isinstance(await node.refused(5), StoreUnavailable)
        assert node.burned == {BurnCause.UNKNOWN_OUTCOME: 5}
        assert (await node.take(5)).first_id == 6

    async def test_a_hanging_write_times_out(self, node: Node, store: MemoryStore) -> None:
        """A write that hangs fails after store_timeout; the next one succeeds."""
        store.hold("record")  # never released
        assert isinstance(await node.refused(5), StoreOutcomeUnknown)
        assert (await node.take(5)).first_id == 6

    async def test_an_answer_that_is_applied_late_wins(self, node: Node, store: MemoryStore) -> None:
        """P7: an answer that the store applies late is what a retry gets."""
        store.next("record", lost_request())
        await node.refused(5)
        late = RecordedAllocation(ONE, "orders", 1, 5, 1, store.rows["orders"].generation, "", 7, "a")
        store.allocations[ONE] = RecordedRow(late, 1)
        assert (await node.take(5)).first_id == 1

    async def test_a_crash_before_the_record_burns_the_ids(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        """P1: ids that a node took before it crashed are not issued by the retry."""
        store.hold("record")
        crashed = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        assert (await other_node.take(5)).first_id == 6
        await asyncio.gather(crashed, return_exceptions=True)

    async def test_an_answer_missing_from_the_reply_is_unknown(
        self, node: Node, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """P9: an answer that is missing from the store's reply counts as unknown, and burned."""
        monkeypatch.setattr(store, "_record", lambda allocations: {})
        assert isinstance(await node.refused(5), StoreOutcomeUnknown)
        assert node.burned == {BurnCause.UNKNOWN_OUTCOME: 5}

    async def test_a_failed_allocation_records_nothing(self, node: Node, store: MemoryStore) -> None:
        """A failed allocation records no answer."""
        store.down = True
        assert isinstance(await node.refused(5), StoreUnreachable)
        store.down = False
        assert not store.calls_of("record")
        assert (await node.take(5)).first_id == 1

    async def test_a_retry_formats_the_same_texts(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P7: a retry gets the date and prefix of the first answer's texts."""
        store.rows["dated"] = Row(Sequence(format="{year}-{prefix}-{value:06d}"), 0)
        first = await node.request_ids.allocate_once("dated", 1, ONE, 7)
        clock.advance(170.0)
        clock.wall_seconds += 86_400 * 365
        again = await other_node.request_ids.allocate_once("dated", 1, ONE, 8)
        assert first[0].period == again[0].period == "2023-11-14"
        assert first[1] == again[1] == 7

    async def test_a_format_without_a_date_records_no_date(self, node: Node, store: MemoryStore) -> None:
        """An answer has a date only if its format has one."""
        store.rows["plain"] = Row(Sequence(format="A-{value:06d}"), 0)
        assert (await node.take(1, sequence="plain")).period == ""


class TestAnotherRequest:
    @pytest.mark.parametrize(("sequence", "count"), [("orders", 6), ("others", 5)])
    async def test_a_reused_request_id_is_rejected(
        self, node: Node, other_node: Node, sequence: str, count: int
    ) -> None:
        """P7: a request id of another sequence or count is rejected on every node."""
        await node.take(5)
        for each in (node, other_node):
            refusal = await each.refused(count, sequence=sequence)
            assert isinstance(refusal, RequestIdReused)
            assert ("5 ids of this sequence" if sequence == "orders" else "another sequence") in str(refusal)
            assert each.burned == {BurnCause.REPEATED: count}

    async def test_a_concurrently_reused_request_id_is_rejected(self, node: Node, store: MemoryStore) -> None:
        """P7: of two concurrent requests with one request id, the second is rejected."""
        answers = await asyncio.gather(node.take(5), node.take(6), return_exceptions=True)
        assert isinstance(answers[0], IdRange)
        assert isinstance(answers[1], RequestIdReused)

    async def test_a_failed_request_does_not_use_up_its_request_id(self, node: Node, store: MemoryStore) -> None:
        """A request id whose request recorded nothing may be used again."""
        store.next("record", unreachable())
        answers = await asyncio.gather(node.take(5), node.take(6), return_exceptions=True)
        assert isinstance(answers[0], StoreUnreachable)
        assert isinstance(answers[1], IdRange)


class TestChangedSequence:
    async def test_a_change_of_the_sequence_burns_earlier_ids(self, node: Node, store: MemoryStore) -> None:
        """P5: a retry after a change of the sequence gets no ids of the old generation."""
        await node.take(5)
        settings_changed(store)
        await node.allocator.drop_lease("orders")
        refusal = await node.refused(5)
        assert isinstance(refusal, RequestIdBurned)
        assert "1 to 5" in str(refusal)
        assert isinstance(await node.refused(5), RequestIdBurned)
        assert (await node.take(5, OTHER)).generation == store.rows["orders"].generation

    async def test_an_old_generation_is_replayed_until_its_lease_ends(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P5: a node that has not seen a change replays old ids until its lease expires."""
        await warm(node)
        taken = await node.take(5)
        settings_changed(store)
        again = await node.take(5)
        assert (again.first_id, again.generation) == (taken.first_id, taken.generation)
        assert isinstance(await other_node.refused(5), RequestIdBurned)
        clock.advance(LEASE_TTL)
        assert isinstance(await node.refused(5), RequestIdBurned)

    async def test_a_newer_generation_is_replayed_with_its_settings(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        """P7: a node that has not seen a change replays newer ids with their own settings."""
        await warm(node)
        settings_changed(store, Sequence(format="B{value}"))
        newer = await other_node.take(5)
        assert newer.generation == store.rows["orders"].generation
        again = await node.take(5)
        assert (again.first_id, again.generation) == (newer.first_id, newer.generation)
        assert again.sequence.format == "B{value}"

    async def test_ids_of_a_lost_generation_are_burned(self, node: Node, store: MemoryStore) -> None:
        """P3: ids of a generation that a restored store has lost are not issued."""
        ahead = RecordedAllocation(ONE, "orders", 100, 5, 1, 2**60, "", 7, "a")
        store.allocations[ONE] = RecordedRow(ahead, 1)
        assert isinstance(await node.refused(5), RequestIdBurned)

    async def test_a_deleted_sequence_burns_earlier_ids(self, node: Node, store: MemoryStore) -> None:
        """P5: a retry after the sequence is deleted gets no ids."""
        await node.take(5)
        settings_changed(store)
        store.rows["orders"].deleted = True
        await node.allocator.drop_lease("orders")
        assert isinstance(await node.refused(5), RequestIdBurned)
        assert isinstance(await node.refused(5, OTHER), SequenceDeleted)

    async def test_a_retry_in_the_next_period_gets_the_old_period(
        self, node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P7: a retry in the next period gets the ids of the old period."""
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
        """P7: a retry gets the last ids of an exhausted sequence."""
        store.rows["orders"] = Row(Sequence(max_value=5), 0)
        taken = await node.take(5)
        assert (await other_node.take(5))[:4] == taken[:4]
        assert (await node.take(5))[:4] == taken[:4]
        assert isinstance(await node.refused(5, OTHER), SequenceExhausted)
        assert isinstance(await node.refused(4), RequestIdReused)

    async def test_a_changed_sequence_burns_its_last_ids(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        """P5: a retry gets no last ids after the sequence is changed."""
        store.rows["orders"] = Row(Sequence(max_value=5), 0)
        await node.take(5)
        settings_changed(store)
        assert isinstance(await other_node.refused(5), RequestIdBurned)

    async def test_the_largest_ids_are_replayed(self, node: Node, other_node: Node, store: MemoryStore) -> None:
        """P7: a retry gets ids at the largest id."""
        store.rows["orders"] = Row(Sequence(), MAX_ID - 5)
        assert (await node.take(5)).last_id == MAX_ID
        assert (await other_node.take(5)).last_id == MAX_ID

    async def test_a_falling_sequence_is_replayed(self, node: Node, other_node: Node, store: MemoryStore) -> None:
        """P7: a retry gets ids of a sequence with a negative step."""
        store.rows["orders"] = Row(Sequence(start=-1, step=-3, min_value=-100, max_value=-1), 2)
        taken = await node.take(3)
        assert [taken.first_id, taken.last_id, taken.step] == [-1, -7, -3]
        assert (await other_node.take(3))[:4] == taken[:4]


class TestLease:
    async def test_an_expired_lease_is_not_answered_after_the_record(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P4: ids whose lease expires while the answer is recorded are not issued."""
        gate = store.hold("record")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        clock.advance(LEASE_TTL)
        gate.set()
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert node.burned == {BurnCause.EXPIRED: 5}
        # The retry gets a new proof of the generation.
        assert (await other_node.take(5)).first_id == 1

    async def test_an_expired_lease_is_not_answered_after_a_replay(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        """P4: recorded ids are not replayed with an expired proof."""
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
    """Callers that resume after the lease has expired, since the process was paused."""

    async def pause_after_the_answer(self, node: Node, clock: FakeClock) -> "asyncio.Task[IdRange]":
        call = asyncio.create_task(node.take(5))
        await until(lambda: node.request_ids._calls)
        node.request_ids._calls[ONE].task.add_done_callback(lambda _: clock.advance(LEASE_TTL))
        return call

    async def test_a_late_caller_gets_no_ids_of_an_expired_lease(
        self, node: Node, other_node: Node, clock: FakeClock
    ) -> None:
        """P4: the lease is checked again right before the answer; the ids count as burned."""
        call = await self.pause_after_the_answer(node, clock)
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert node.burned == {BurnCause.EXPIRED: 5}
        assert (await other_node.take(5)).first_id == 1  # with a new proof of the generation

    async def test_a_late_caller_gets_no_replayed_ids(self, node: Node, other_node: Node, clock: FakeClock) -> None:
        """P4: the same holds for ids of another node, which this node does not count as burned."""
        await other_node.take(5)
        call = await self.pause_after_the_answer(node, clock)
        with pytest.raises(StoreUnavailable, match="expired before the reply"):
            await call
        assert node.burned == {BurnCause.REPEATED: 5}

    @pytest.mark.parametrize("first_in_time", [True, False])
    async def test_ids_that_another_caller_has_are_not_burned(
        self, node: Node, clock: FakeClock, first_in_time: bool
    ) -> None:
        """P9: ids that one of several callers has received are not burned; others burn once."""

        async def take_then_pause() -> IdRange:
            try:
                return await node.take(5)
            finally:
                clock.advance(LEASE_TTL)

        if first_in_time:
            calls = [asyncio.create_task(each) for each in (take_then_pause(), node.take(5), node.take(5))]
        else:
            calls = [await self.pause_after_the_answer(node, clock), *(asyncio.create_task(node.take(5)) for _ in "23")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(answer, IdRange) for answer in answers] == [first_in_time, False, False]
        assert node.burned == ({} if first_in_time else {BurnCause.EXPIRED: 5})

    async def test_a_cancelled_caller_burns_no_ids_of_another(self, node: Node) -> None:
        """P9: a caller that is cancelled after the answer does not burn ids that another has."""
        calls = [asyncio.create_task(node.take(5)) for _ in range(2)]
        calls[0].add_done_callback(lambda _: calls[1].cancel())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(answers[0], IdRange)
        assert not node.burned
