"""A retry with the same request id gets the same ids, or learns that it may not (P7)."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from idalloc_server.domain.allocator import Allocator
from idalloc_server.domain.burned import Cause
from idalloc_server.domain.errors import (
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    SequenceDeleted,
    SequenceExhausted,
    StoreOutcomeUnknown,
    StoreUnavailable,
    StoreUnreachable,
)
from idalloc_server.domain.lane import Terms
from idalloc_server.domain.range import Range
from idalloc_server.domain.request_ids import MOST_ROWS, PRUNE_ROWS, RequestIds
from idalloc_server.domain.sequence import MAX_ID, Reset, Sequence
from idalloc_server.domain.store import Allocation
from tests.fakes import FakeClock, Fault, MemoryStore, Row, Written, lost_reply, lost_request, twice, unreachable

ONE = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
WINDOW = 3600.0
LEASE_TTL = 180.0


class Node:
    """One process: all that it has in memory."""

    def __init__(self, store: MemoryStore, clock: FakeClock, name: str = "a", store_timeout: float = 3.0) -> None:
        self.allocator = Allocator(store, clock, Terms(LEASE_TTL, store_timeout, auto_create_sequences=True))
        self.request_ids = RequestIds(
            self.allocator, store, clock, node=name, window=WINDOW, store_timeout=store_timeout
        )

    async def take(self, count: int = 5, request_id: str = ONE, sequence: str = "orders", prefix: int = 7) -> Range:
        taken, _ = await self.request_ids.allocate(sequence, count, request_id, prefix)
        return taken

    async def refused(self, count: int = 5, request_id: str = ONE, sequence: str = "orders") -> Refusal:
        with pytest.raises(Refusal) as refused:
            await self.take(count, request_id, sequence)
        return refused.value

    @property
    def burned(self) -> dict[Cause, int]:
        return dict(self.allocator.burned.by_cause)


@pytest.fixture
def node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


@pytest.fixture
def other_node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock, "b")


def settings_changed(store: MemoryStore, sequence: Sequence | None = None) -> None:
    """What any change of a sequence does to its row."""
    row = store.rows["orders"]
    row.generation += 1
    row.sequence = sequence or row.sequence


async def until(what: Callable[[], object]) -> None:
    for turn in range(5_000):
        if what():
            return
        await asyncio.sleep(0.001 if turn > 4_000 else 0)
    raise AssertionError("it never came to that")


async def warm(node: Node) -> None:
    """Uses the sequence until the node has ids ahead, and so does not ask the store for the next ones."""
    for _ in range(5):
        await node.allocator.allocate("orders", 100)
    assert node.allocator.take("orders", 1)


class TestRetry:
    async def test_the_answer_is_in_the_store_before_it_is_given(self, node: Node, store: MemoryStore) -> None:
        gate = store.hold("record")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        assert not call.done()
        gate.set()
        taken = await call
        assert (taken.first_id, taken.id_count, taken.step, taken.generation) == (1, 5, 1, 1)
        assert store.allocations[ONE].allocation == Allocation(ONE, "orders", 1, 5, 1, 1, "", 7, "a")
        assert not node.burned

    async def test_on_the_same_node_it_gets_the_same(self, node: Node) -> None:
        taken = await node.take(5)
        assert await node.take(5) == taken
        assert node.burned == {Cause.REPEATED: 5}
        assert (await node.take(5, OTHER)).first_id == 11

    async def test_on_another_node_it_gets_the_same(self, node: Node, other_node: Node) -> None:
        taken = await node.take(5)
        assert (await other_node.take(5))[:4] == taken[:4]
        assert other_node.burned == {Cause.REPEATED: 5}

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
        assert node.burned == {Cause.UNKNOWN_OUTCOME: 5}
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
        late = Allocation(ONE, "orders", 1, 5, 1, 1, "", 7, "a")
        store.allocations[ONE] = Written(late, store.clock.wall())
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
        assert node.burned == {Cause.UNKNOWN_OUTCOME: 5}

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
            assert "5 ids of sequence 'orders'" in str(refusal)
            assert each.burned == {Cause.REPEATED: count}

    async def test_also_where_both_come_at_once(self, node: Node, store: MemoryStore) -> None:
        answers = await asyncio.gather(node.take(5), node.take(6), return_exceptions=True)
        assert isinstance(answers[0], Range)
        assert isinstance(answers[1], RequestIdReused)

    async def test_one_that_failed_without_a_trace_does_not_stand_in_the_way(
        self, node: Node, store: MemoryStore
    ) -> None:
        store.next("record", unreachable())
        answers = await asyncio.gather(node.take(5), node.take(6), return_exceptions=True)
        assert isinstance(answers[0], StoreUnreachable)
        assert isinstance(answers[1], Range)


class TestChangedSequence:
    async def test_a_change_in_between_burns_the_earlier_ids(self, node: Node, store: MemoryStore) -> None:
        await node.take(5)
        settings_changed(store)
        await node.allocator.forget("orders")
        refusal = await node.refused(5)
        assert isinstance(refusal, RequestIdBurned)
        assert "1 to 5" in str(refusal)
        assert isinstance(await node.refused(5), RequestIdBurned)
        assert (await node.take(5, OTHER)).generation == 2

    async def test_until_it_takes_effect_a_node_that_does_not_know_of_a_change_gives_them(
        self, node: Node, other_node: Node, store: MemoryStore, clock: FakeClock
    ) -> None:
        await warm(node)
        taken = await node.take(5)
        settings_changed(store)
        again = await node.take(5)
        assert (again.first_id, again.generation) == (taken.first_id, 1)
        assert isinstance(await other_node.refused(5), RequestIdBurned)
        clock.advance(LEASE_TTL)
        assert isinstance(await node.refused(5), RequestIdBurned)

    async def test_ids_of_a_change_that_this_node_does_not_know_are_given_with_their_own_settings(
        self, node: Node, other_node: Node, store: MemoryStore
    ) -> None:
        await warm(node)
        settings_changed(store, Sequence(format="B{value}"))
        newer = await other_node.take(5)
        assert newer.generation == 2
        again = await node.take(5)
        assert (again.first_id, again.generation) == (newer.first_id, 2)
        assert again.sequence.format == "B{value}"

    async def test_ids_of_a_generation_that_the_store_has_lost_are_burned(self, node: Node, store: MemoryStore) -> None:
        ahead = Allocation(ONE, "orders", 100, 5, 1, 9, "", 7, "a")
        store.allocations[ONE] = Written(ahead, store.clock.wall())
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
        assert node.burned[Cause.REPEATED] == 5
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
        with pytest.raises(StoreUnavailable, match="ended before the answer"):
            await call
        assert node.burned == {Cause.EXPIRED: 5}
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
        with pytest.raises(StoreUnavailable, match="ended before the answer"):
            await call
        assert other_node.burned == {Cause.REPEATED: 5}


class TestCancelled:
    async def test_before_ids_were_taken_it_takes_none(self, node: Node, store: MemoryStore) -> None:
        gate = store.hold("grant")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("grant"))
        call.cancel()
        await asyncio.wait({call})
        await asyncio.sleep(0)
        gate.set()
        assert (await node.take(3, OTHER)).first_id <= 6
        assert ONE not in store.allocations

    async def test_after_that_a_retry_gets_them(self, node: Node, store: MemoryStore) -> None:
        gate = store.hold("record")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        call.cancel()
        await asyncio.wait({call})
        gate.set()
        await until(lambda: ONE in store.allocations)
        await until(lambda: not node.request_ids._calls)
        assert node.burned == {Cause.CANCELLED: 5}
        assert (await node.take(5)).first_id == 1

    async def test_a_retry_may_come_before_the_answer_was_written_down(self, node: Node, store: MemoryStore) -> None:
        gate = store.hold("record")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        call.cancel()
        await asyncio.wait({call})
        retry = asyncio.create_task(node.take(5))
        await asyncio.sleep(0)
        gate.set()
        assert (await retry).first_id == 1
        assert not node.burned

    async def test_it_does_not_take_the_answer_from_another_caller(self, node: Node, store: MemoryStore) -> None:
        gate = store.hold("grant")
        calls = [asyncio.create_task(node.take(5)) for _ in range(3)]
        await until(lambda: store.calls_of("grant"))
        calls[0].cancel()
        await asyncio.wait({calls[0]})
        gate.set()
        assert [(await call).first_id for call in calls[1:]] == [1, 1]
        assert len(store.calls_of("record")) == 1

    async def test_at_the_very_moment_of_the_answer_it_is_counted(self, node: Node, store: MemoryStore) -> None:
        call = asyncio.create_task(node.take(5))
        await until(lambda: node.request_ids._calls)
        running = node.request_ids._calls[ONE].task
        await until(running.done)
        if not call.done():
            call.cancel()
            await asyncio.wait({call})
        assert node.burned == {Cause.CANCELLED: 5}

    async def test_an_error_that_nobody_hears_is_no_complaint(self, node: Node, store: MemoryStore) -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        gate = asyncio.Event()
        store.next("record", Fault(applied=0, error=StoreUnreachable("away"), before=gate))
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        call.cancel()
        await asyncio.wait({call})
        gate.set()
        await until(lambda: not node.request_ids._calls)
        await asyncio.sleep(0)
        assert not complaints
        assert node.burned == {Cause.UNKNOWN_OUTCOME: 5}


class TestSharing:
    async def test_two_hundred_calls_share_a_few_statements(self, node: Node, store: MemoryStore) -> None:
        request_ids = [f"{i:08x}-0000-4000-8000-000000000000" for i in range(200)]
        taken = await asyncio.gather(*(node.take(3, request_id) for request_id in request_ids))
        assert sorted(each.first_id for each in taken) == list(range(1, 601, 3))
        assert len(store.calls_of("record")) <= 3
        assert len(store.allocations) == 200
        again = await asyncio.gather(*(node.take(3, request_id) for request_id in request_ids))
        assert [each.first_id for each in again] == [each.first_id for each in taken]

    async def test_one_statement_is_under_way_at_a_time_and_has_no_more_rows_than_allowed(
        self, node: Node, store: MemoryStore
    ) -> None:
        gate = store.hold("record")
        first = asyncio.create_task(node.take(1, ONE))
        await until(lambda: store.calls_of("record"))
        calls = [
            asyncio.create_task(node.take(1, f"{i:08x}-0000-4000-8000-000000000000")) for i in range(2 * MOST_ROWS + 50)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.calls_of("record")) == 1
        gate.set()
        await asyncio.gather(first, *calls)
        rows = [len(call.arguments[0]) for call in store.calls_of("record")]  # type: ignore[arg-type]
        assert max(rows) == MOST_ROWS
        assert len(rows) <= 5

    async def test_a_statement_that_fails_fails_its_own_riders_only(self, node: Node, store: MemoryStore) -> None:
        gate = asyncio.Event()
        store.next("record", Fault(applied=0, error=StoreUnreachable("away"), before=gate))
        first = asyncio.create_task(node.take(5, ONE))
        await until(lambda: store.calls_of("record"))
        second = asyncio.create_task(node.take(5, OTHER))
        await until(lambda: node.request_ids._writer._waiting)
        gate.set()
        with pytest.raises(StoreUnreachable):
            await first
        assert (await second).first_id == 6

    async def test_the_same_request_at_once_is_one(self, node: Node, store: MemoryStore) -> None:
        taken = await asyncio.gather(*(node.take(5) for _ in range(50)))
        assert len(set(taken)) == 1
        assert len(store.calls_of("record")) == 1
        assert not node.burned

    async def test_the_same_request_at_once_on_two_nodes_gets_the_same(self, node: Node, other_node: Node) -> None:
        taken = await asyncio.gather(*(each.take(5) for each in [node, other_node] * 20))
        assert len({each.first_id for each in taken}) == 1
        assert sum(node.burned.values()) + sum(other_node.burned.values()) == 5

    async def test_the_same_error_reaches_all_who_share_it(self, node: Node, store: MemoryStore) -> None:
        store.next("record", unreachable())
        answers = await asyncio.gather(*(node.take(5) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, StoreUnreachable) for answer in answers)


class TestPruning:
    async def test_it_goes_on_in_small_batches_until_none_is_left_and_survives_errors(
        self, store: MemoryStore, clock: FakeClock
    ) -> None:
        node = Node(store, clock)
        node.request_ids._window = 0.05
        for i in range(2 * PRUNE_ROWS + 1):
            store.allocations[str(i)] = Written(Allocation(str(i), "orders", 1, 1, 1, 1, "", 0, "a"), clock.wall())
        clock.advance(1.0)
        store.allocations["young"] = Written(Allocation("young", "orders", 1, 1, 1, 1, "", 0, "a"), clock.wall())
        store.next("forget_recorded", unreachable())
        task = asyncio.create_task(node.request_ids.run())
        await until(lambda: list(store.allocations) == ["young"])
        task.cancel()
        assert all(call.arguments == (0.05, PRUNE_ROWS) for call in store.calls_of("forget_recorded"))
        assert len(store.calls_of("forget_recorded")) >= 4

    async def test_after_the_window_a_request_id_is_new(self, node: Node, store: MemoryStore, clock: FakeClock) -> None:
        await node.take(5)
        clock.advance(WINDOW + 1)
        await node.request_ids._prune()
        assert (await node.take(5)).first_id > 5
