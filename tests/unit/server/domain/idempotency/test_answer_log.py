"""Recording of answers: it survives cancelled callers, and many answers share a statement (P7)."""

import asyncio

import pytest

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StoreUnreachable
from idalloc_server.domain.idempotency.idempotent_allocator import MAX_BATCH_ROWS
from tests.support.fake_store import Fault, MemoryStore, unreachable
from tests.unit.server.domain.idempotency.conftest import ONE, OTHER, Node, until


class TestCancelled:
    async def test_a_call_cancelled_before_it_has_ids_takes_none(self, node: Node, store: MemoryStore) -> None:
        """P9: a call that is cancelled before it has ids takes none, and records nothing."""
        gate = store.hold("grant")
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("grant"))
        call.cancel()
        await asyncio.wait({call})
        await asyncio.sleep(0)
        gate.set()
        assert (await node.take(3, OTHER)).first_id <= 6
        assert ONE not in store.allocations

    async def test_a_call_cancelled_later_leaves_its_ids_to_a_retry(self, node: Node, store: MemoryStore) -> None:
        """P7: the answer of a cancelled call is recorded, and its retry gets the ids."""
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

    async def test_a_retry_before_the_record_gets_the_same_ids(self, node: Node, store: MemoryStore) -> None:
        """P7: a retry that arrives before the answer is recorded gets the same ids."""
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

    async def test_one_cancelled_caller_does_not_affect_others(self, node: Node, store: MemoryStore) -> None:
        """P7: other callers of the same request get the answer."""
        gate = store.hold("grant")
        calls = [asyncio.create_task(node.take(5)) for _ in range(3)]
        await until(lambda: store.calls_of("grant"))
        calls[0].cancel()
        await asyncio.wait({calls[0]})
        gate.set()
        assert [(await call).first_id for call in calls[1:]] == [1, 1]
        assert len(store.calls_of("record")) == 1

    async def test_a_call_cancelled_with_its_answer_is_counted(self, node: Node, store: MemoryStore) -> None:
        """P9: ids of a call that is cancelled as it is answered count as burned."""
        call = asyncio.create_task(node.take(5))
        await until(lambda: node.request_ids._calls)
        running = node.request_ids._calls[ONE].task
        await until(running.done)
        if not call.done():
            call.cancel()
            await asyncio.wait({call})
        assert node.burned == {BurnCause.CANCELLED: 5}

    async def test_an_error_without_callers_is_not_reported(self, node: Node, store: MemoryStore) -> None:
        """P9: an error after all callers are cancelled counts the ids, and asyncio logs nothing."""
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        gate = asyncio.Event()
        store.next("record", Fault(applied=0, error=StoreUnreachable("away"), before=gate))
        call = asyncio.create_task(node.take(5))
        await until(lambda: store.calls_of("record"))
        call.cancel()
        await asyncio.wait({call})
        gate.set()
        await until(lambda: not node.request_ids._calls)
        await asyncio.sleep(0)
        assert not reported
        assert node.burned == {BurnCause.UNKNOWN_OUTCOME: 5}


class TestSharing:
    async def test_two_hundred_calls_share_a_few_statements(self, node: Node, store: MemoryStore) -> None:
        """P7: 200 concurrent calls are recorded by at most three statements."""
        request_ids = [f"{i:08x}-0000-4000-8000-000000000000" for i in range(200)]
        taken = await asyncio.gather(*(node.take(3, request_id) for request_id in request_ids))
        assert sorted(each.first_id for each in taken) == list(range(1, 601, 3))
        assert len(store.calls_of("record")) <= 3
        assert len(store.allocations) == 200
        again = await asyncio.gather(*(node.take(3, request_id) for request_id in request_ids))
        assert [each.first_id for each in again] == [each.first_id for each in taken]

    async def test_one_statement_runs_at_a_time_with_bounded_rows(self, node: Node, store: MemoryStore) -> None:
        """One statement runs at a time, with at most MAX_BATCH_ROWS rows."""
        gate = store.hold("record")
        first = asyncio.create_task(node.take(1, ONE))
        await until(lambda: store.calls_of("record"))
        calls = [
            asyncio.create_task(node.take(1, f"{i:08x}-0000-4000-8000-000000000000"))
            for i in range(2 * MAX_BATCH_ROWS + 50)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(store.calls_of("record")) == 1
        gate.set()
        await asyncio.gather(first, *calls)
        rows = [len(call.arguments[0]) for call in store.calls_of("record")]  # type: ignore[arg-type]
        assert max(rows) == MAX_BATCH_ROWS
        assert len(rows) <= 5

    async def test_a_failed_statement_fails_only_its_own_calls(self, node: Node, store: MemoryStore) -> None:
        """A failed statement does not fail the calls of the next one."""
        gate = asyncio.Event()
        store.next("record", Fault(applied=0, error=StoreUnreachable("away"), before=gate))
        first = asyncio.create_task(node.take(5, ONE))
        await until(lambda: store.calls_of("record"))
        second = asyncio.create_task(node.take(5, OTHER))
        await until(lambda: node.request_ids._answers._waiting)
        gate.set()
        with pytest.raises(StoreUnreachable):
            await first
        assert (await second).first_id == 6

    async def test_concurrent_equal_requests_are_one_call(self, node: Node, store: MemoryStore) -> None:
        """P7: concurrent equal requests on a node share one allocation."""
        taken = await asyncio.gather(*(node.take(5) for _ in range(50)))
        assert len(set(taken)) == 1
        assert len(store.calls_of("record")) == 1
        assert not node.burned

    async def test_concurrent_equal_requests_on_two_nodes_agree(self, node: Node, other_node: Node) -> None:
        """P7: concurrent equal requests on two nodes get the same ids."""
        taken = await asyncio.gather(*(each.take(5) for each in [node, other_node] * 20))
        assert len({each.first_id for each in taken}) == 1
        assert sum(node.burned.values()) + sum(other_node.burned.values()) == 5

    async def test_an_error_reaches_all_callers_of_the_request(self, node: Node, store: MemoryStore) -> None:
        """All callers of a request get its error."""
        store.next("record", unreachable())
        answers = await asyncio.gather(*(node.take(5) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, StoreUnreachable) for answer in answers)
