"""A caller's deadline is the caller's: it ends the call, and changes nothing for others."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc, sequences_pb2, sequences_pb2_grpc
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.document_ids.generator import MAX_SERIAL
from idalloc_server.domain.sequences.sequence import Sequence
from tests.rpc.conftest import Served
from tests.support.memory_rows import Row
from tests.support.rpc_errors import ENDED_DURING_WRITE
from tests.support.waiting import until

CALLS = 10
SHORT = 0.25


class Stubs:
    """The stubs of all services."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.ids = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        self.node = node_pb2_grpc.NodeServiceStub(channel)
        self.sequences = sequences_pb2_grpc.SequenceServiceStub(channel)


# Makes a call on a sequence, with a timeout.
Call = Callable[[Stubs | Served, str, float | None], Awaitable[Any]]


async def read_all(stream: Any) -> list[Any]:
    return [message async for message in stream]


def range_of(sequence: str, **fields: object) -> pb.AllocateRangeRequest:
    return pb.AllocateRangeRequest(sequence=sequence, **fields)  # type: ignore[arg-type]


def batch_of(sequence: str) -> pb.BatchAllocateRangesRequest:
    return pb.BatchAllocateRangesRequest(requests=[range_of(sequence)])


def stream_of(sequence: str) -> pb.StreamRangesRequest:
    return pb.StreamRangesRequest(sequence=sequence, total_id_count=2, chunk_id_count=1)


CALLS_OF: dict[str, Call] = {
    "AllocateRange": lambda to, name, left: to.ids.AllocateRange(range_of(name), timeout=left),
    "AllocateRange with a request_id": lambda to, name, left: to.ids.AllocateRange(
        range_of(name, request_id=str(uuid4())), timeout=left
    ),
    "BatchAllocateRanges": lambda to, name, left: to.ids.BatchAllocateRanges(batch_of(name), timeout=left),
    "StreamRanges": lambda to, name, left: read_all(to.ids.StreamRanges(stream_of(name), timeout=left)),
    "AllocateStream": lambda to, name, left: read_all(
        to.ids.AllocateStream(iter([pb.AllocateStreamRequest(allocate_range=range_of(name))]), timeout=left)
    ),
    "GenerateDocId": lambda to, _, left: to.ids.GenerateDocId(pb.GenerateDocIdRequest(), timeout=left),
    "StreamDocIds": lambda to, _, left: read_all(
        to.ids.StreamDocIds(pb.StreamDocIdsRequest(total_id_count=1), timeout=left)
    ),
    "GenerateUuid": lambda to, _, left: to.ids.GenerateUuid(pb.GenerateUuidRequest(), timeout=left),
    "GetNode": lambda to, _, left: to.node.GetNode(node_pb2.GetNodeRequest(), timeout=left),
    "UpdateNode": lambda to, _, left: to.node.UpdateNode(
        node_pb2.UpdateNodeRequest(node=node_pb2.Node(prefix=9)), timeout=left
    ),
    "CreateSequence": lambda to, _, left: to.sequences.CreateSequence(
        sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name=f"new-{uuid4()}")), timeout=left
    ),
    "GetSequence": lambda to, name, left: to.sequences.GetSequence(
        sequences_pb2.GetSequenceRequest(name=name), timeout=left
    ),
    "ListSequences": lambda to, _, left: to.sequences.ListSequences(sequences_pb2.ListSequencesRequest(), timeout=left),
    "UpdateSequence": lambda to, name, left: to.sequences.UpdateSequence(
        sequences_pb2.UpdateSequenceRequest(sequence=sequences_pb2.Sequence(name=name, description="d")), timeout=left
    ),
    "DeleteSequence": lambda to, name, left: to.sequences.DeleteSequence(
        sequences_pb2.DeleteSequenceRequest(name=name), timeout=left
    ),
    "AdvanceSequence": lambda to, name, left: to.sequences.AdvanceSequence(
        sequences_pb2.AdvanceSequenceRequest(name=name, past=1), timeout=left
    ),
    "ParseId": lambda to, name, left: to.sequences.ParseId(
        sequences_pb2.ParseIdRequest(sequence=name, text="1"), timeout=left
    ),
}


def methods() -> Iterator[str]:
    for file in (pb, node_pb2, sequences_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            yield from (method.name for method in service.methods)


def test_every_rpc_is_called() -> None:
    """The calls of this file are those of all RPCs."""
    assert {name.partition(" ")[0] for name in CALLS_OF} == {*methods()}


@asynccontextmanager
async def callers(served: Served) -> AsyncIterator[list[Stubs]]:
    """Open connections for callers that leave.

    Each makes one call of an RPC: native closes a connection with more than 20 calls that end
    before it has begun them, as all may on a busy machine.
    """
    async with AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(served.address, options=options) for _ in range(CALLS)]
        yield [Stubs(await stack.enter_async_context(each)) for each in channels]


async def test_short_deadlines_change_no_health(served: Served) -> None:
    """While callers wait for a slow store, all others are served; it is not reported as failed."""
    for name in CALLS_OF:
        served.store.rows[name] = Row(Sequence(), 0)
    served.store.rows["steady"] = Row(Sequence(min_lease_size=100_000), 0)
    for _ in range(2):  # a first grant is just what was requested
        await served.ids.AllocateRange(range_of("steady"))
    served.doc_ids._serial = MAX_SERIAL  # the next id claims a start timestamp in the store
    served.store.gate = asyncio.Event()

    async def call_steadily() -> None:
        while True:
            await served.ids.AllocateRange(range_of("steady"))

    steady = asyncio.create_task(call_steadily())
    async with callers(served) as all_stubs:
        short = [make(stubs, name, SHORT) for stubs in all_stubs for name, make in CALLS_OF.items()]
        outcomes = await asyncio.gather(*short, return_exceptions=True)
    await until(lambda: served.metrics.in_flight <= 1)
    failed = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
    codes = {each.code() for each in failed if each.details() != ENDED_DURING_WRITE}
    # Native may answer just when the client's own timer ends.
    assert codes - {grpc.StatusCode.CANCELLED} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    served.allocator.store_health.evaluate()
    assert not served.allocator.store_health.error
    assert not steady.done()
    # No deadline cancelled a call of the store that others share: it serves them when it answers.
    names = ("StreamRanges", "GenerateDocId")
    counts = [served.metrics.method(f"/idalloc.v1.IdAllocatorService/{name}") for name in names]
    started = [each.started for each in counts]
    waiting = [asyncio.ensure_future(CALLS_OF[name](served, name, None)) for name in names]
    await until(lambda: [each.started - 1 for each in counts] == started)
    served.store.gate.set()
    [ranges, _] = await asyncio.gather(*waiting)
    assert [each.range.first_id for each in ranges] == [1, 2]
    assert [call.arguments[0] for call in served.store.calls_of("claim_start")].count(7) == 2  # the other by the start
    assert not steady.done()
    steady.cancel()
    assert served.allocator.burned.by_cause.keys() <= {BurnCause.CANCELLED}
    served.allocator.store_health.evaluate()
    assert not served.allocator.store_health.error


@pytest.mark.parametrize("deadline", [0.05, 0.02])
async def test_short_batches_get_ids(served: Served, deadline: float) -> None:
    """A batch of 50 ms or less gets ids from a store that is in time, also without a lease."""
    served.store.latency = 0.002

    async def try_once(number: int) -> bool:
        try:
            reply = await served.ids.BatchAllocateRanges(batch_of(f"new-{number}"), timeout=deadline)
        except grpc.aio.AioRpcError:  # this machine was too slow
            return False
        return reply.results[0].HasField("response")

    for number in range(200):
        if await try_once(number):
            return
    pytest.fail("no batch got ids")
