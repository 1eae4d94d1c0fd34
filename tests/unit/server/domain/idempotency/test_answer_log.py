"""How answers are written down: to the end, many at once (P7)."""

import asyncio

import pytest

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.domain.idempotency.request_ids import MOST_ROWS
from tests.support.fake_store import Fault, MemoryStore, unreachable
from tests.unit.server.domain.idempotency.conftest import ONE, OTHER, Node, until


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
        assert node.burned == {BurnCause.CANCELLED: 5}
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
        assert node.burned == {BurnCause.CANCELLED: 5}

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
        assert node.burned == {BurnCause.UNKNOWN_OUTCOME: 5}


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
