"""What a node does when nothing fails: ids of every kind, changes, a move to another store, a stop.

python -m tests.support.mutants.happy_path

``make mutants`` runs it under each mutant. An edit that it fails under, such as with an
AttributeError, is no fault that a test could miss: any use of its module fails.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import structlog

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.turns import Shares, StreamShare
from idalloc_server.backup.export_file import read_export
from idalloc_server.backup.exporter import export_lines
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.document_ids.generator import MAX_SERIAL, DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.errors import Refusal
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.sequences.sequence import Kind, Ordering, Reset
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.domain.witness.store import WitnessedStore
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.items import DocIdSource, RangeSource
from idalloc_server.rpc.status import Status, from_refusal
from idalloc_server.store.cluster.joined_writes import MAX_REQUESTS, JoinedWrites
from idalloc_server.store.cluster.write_mark import WriteMark
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.fake_witness import MemoryWitness
from tests.support.sequence_allocators import CONFIG
from tests.support.waiting import settle

SEQUENCES: dict[str, dict[str, Any]] = {
    "plain": {"json_safe": True},
    "falling": {"start": 10_000, "step": -5, "min_value": 1, "max_value": 10_000},
    "rising": {"ordering": Ordering.RISING},
    "ticks": {"kind": Kind.TIMESTAMP_MS},
    "daily": {"reset": Reset.DAILY, "format": "{year}{month}{day}-{value}"},
}
DAY = 86_400.0
_numbers = itertools.count(1)


class SlowStore(MemoryStore):
    """Takes so long for the grants of a period that the period is looked up again after them."""

    async def _call(self, method: str, *arguments: Any) -> Any:
        if method == "grant" and arguments[0].startswith("daily"):
            cast(FakeClock, self.clock).advance(1.2)
        return await super()._call(method, *arguments)


class Messages:
    """A stream that asks for ids of each sequence, and reads all answers."""

    check = None

    def __init__(self) -> None:
        self.share = StreamShare(Shares(), lambda: "caller")
        self.answers: list[pb.AllocateStreamResponse] = []

    async def __aiter__(self) -> AsyncGenerator[pb.AllocateStreamRequest, None]:
        for name in ("of-the-stream", *SEQUENCES, ""):  # the last one has an error, which is answered
            yield pb.AllocateStreamRequest(allocate_range=pb.AllocateRangeRequest(sequence=name))

    async def write(self, message: pb.AllocateStreamResponse) -> None:
        self.answers.append(message)


class Node:
    """A node on a store with a witness, which begins shortly before midnight."""

    async def start(self, clock: FakeClock) -> None:
        self.clock = clock
        self.store = cast(Store, WitnessedStore(SlowStore(clock), MemoryWitness()))
        await self.store.open()
        starts = StartTimestamps(self.store, clock, prefix=7, holder="here:1", max_clock_skew=60.0)
        start = await starts.start()
        self.doc_ids = doc_ids = DocIdGenerator(starts, start)
        self.allocator = Allocator(self.store, clock, CONFIG, bytes)
        self.service = SequenceService(self.store, clock, self.allocator)
        self.request_ids = IdempotentAllocator(self.allocator, self.store, clock, node="here:1", window=60.0)
        ranges = RangeSource(
            self.allocator, self.request_ids, doc_ids=doc_ids, clock=clock, max_ids=100, node_id=start.node
        )
        uuids = UuidGenerator(clock)
        self.ids = IdAllocatorServicer(ranges, DocIdSource(doc_ids, 100), uuids=uuids, record_failure=_record)

    async def use(self) -> None:
        """Take ids of each sequence, in more than one refill, with and without a request id."""
        for name, number in itertools.product((*SEQUENCES, "of-a-call"), range(10)):
            request_id = f"11111111-1111-4111-8111-{next(_numbers):012d}" if number > 7 else ""
            for _ in range(2):  # the second is a retry
                request = pb.AllocateRangeRequest(sequence=name, id_count=1 + number, request_id=request_id)
                await self.ids.AllocateRange(request, Mock())
            self.clock.advance(0.2)
            await settle()

    async def use_otherwise(self) -> None:
        """Take ids by each other method."""
        requests = [pb.AllocateRangeRequest(sequence=name) for name in (*SEQUENCES, "of-a-batch")]
        context = Mock(time_remaining=lambda: 60.0)
        await self.ids.BatchAllocateRanges(pb.BatchAllocateRangesRequest(requests=requests), context, Mock())
        await self.ids.GenerateDocId(pb.GenerateDocIdRequest(id_count=100), context)
        self.doc_ids._serial = MAX_SERIAL  # the next one overflows
        await self.ids.GenerateDocId(pb.GenerateDocIdRequest(), context)
        await self.ids.GenerateUuid(pb.GenerateUuidRequest(), context)
        messages = Messages()
        await self.ids.AllocateStream(cast(Any, messages), context, None)
        assert [answer.HasField("error") for answer in messages.answers] == [False] * 6 + [True]
        await self.doc_ids.change(prefix=8)

    async def change(self) -> None:
        """Change sequences while their leases are in use."""
        service = self.service
        keys = (service.change_key("", b"") for _ in itertools.count())
        for name in SEQUENCES:
            await service.advance(name, 5_000, "", "", next(keys))
            await service.update(name, {"min_lease_size": 10}, "", next(keys))
        await service.update("falling", {"min_value": 10}, "", next(keys))
        await service.delete("plain", "", next(keys))
        await service.create("plain", {}, next(keys))

    async def close(self) -> None:
        """Move all sequences to another store, then stop with the tails that are left."""
        lines = [line.encode() async for line in export_lines(self.store)]
        importer = Importer(MemoryStore(self.clock), self.clock)
        await importer.run(read_export(lines))
        await importer.run(read_export(lines))
        await self.allocator.survey()
        await self.allocator.check_idle_sequences()
        await self.request_ids.prune()
        self.clock.advance(1_000)
        await self.request_ids.prune()
        await self.allocator.return_leases()
        self.allocator.forget_after_fork()


async def run() -> None:
    """Run a node from its start to its stop; raise what fails, also what is only logged."""
    clock = FakeClock()
    clock.wall_seconds += DAY - clock.wall_seconds % DAY - 60
    node = Node()
    with structlog.testing.capture_logs() as logs:
        await node.start(clock)
        for name, given in SEQUENCES.items():
            await node.service.create(name, given, node.service.change_key("", b""))
        for part in (node.use, node.use, node.use_otherwise, node.change, node.use, node.use, node.close):
            await part()
            clock.advance(5)
        await join_writes()
    if errors := [line for line in logs if line["log_level"] == "error"]:
        raise RuntimeError(f"logged: {errors}")


async def join_writes() -> None:
    """Join writes of rows in requests, as the stores of clusters do."""
    mark = WriteMark("rows")

    async def send(write: Mock) -> int:
        await asyncio.sleep(0)
        mark.accept(next(_numbers), mark.floor())
        return 1

    async def send_many(writes: Sequence[Mock]) -> list[int]:
        return [await send(write) for write in writes]

    joined = JoinedWrites[Any, int](send, send_many)
    writes = [SimpleNamespace(name=str(number)) for number in range(2 * MAX_REQUESTS)]
    await asyncio.gather(*map(joined.write, writes))


def _record(_: str, error: Exception) -> Status:
    """Return the status of a refusal; others are faults."""
    if not isinstance(error, Refusal):
        raise error
    return from_refusal(error)


if __name__ == "__main__":
    asyncio.run(run())
