"""``IdAllocatorServicer`` without a transport."""

from unittest.mock import Mock

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.domain.sequences.sequence import Reset, Sequence
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.items import DocIdSource
from tests.support.sequence_allocators import make
from tests.unit.server.rpc.test_batches import Callers, status_of


async def test_a_reused_reply_keeps_nothing() -> None:
    """Replies from memory share one message: none has the period or generation of another one."""
    callers = Callers([])
    source = callers.source
    servicer = IdAllocatorServicer(
        source, DocIdSource(source.doc_ids, 1), uuids=UuidGenerator(source.clock), record_failure=Mock(status_of)
    )
    for name, sequence, generation in (
        ("a", Sequence(), 1),
        ("b", Sequence(), 7),
        ("days", Sequence(reset=Reset.DAILY), 9),
    ):
        make(callers.store, name, sequence).generation = generation

    async def allocate(name: str) -> tuple[str, int]:
        reply = await servicer.AllocateRange(pb.AllocateRangeRequest(sequence=name), Mock())
        shown = pb.AllocateRangeResponse.FromString(reply)
        return shown.period, shown.generation

    for _ in range(3):
        for name in ("a", "b", "days"):
            await allocate(name)
    grants = len(callers.store.calls_of("grant"))
    replies = [await allocate(name) for name in ("a", "b", "days", "a", "b")]
    assert replies == [("", 1), ("", 7), ("2023-11-14", 9), ("", 1), ("", 7)]
    assert len(callers.store.calls_of("grant")) == grants  # all were from memory
