"""``client.sequences`` of the client for asyncio."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from idalloc._core.sequences import (
    Pages,
    SequenceSettings,
    advance_request,
    create_request,
    delete_request,
    update_request,
)
from idalloc.aio._base import BaseClient
from idalloc.v1 import sequences_pb2 as pb

if TYPE_CHECKING:
    from typing import Unpack


class Sequences:
    """Administration of sequences: ``client.sequences``, as ``idalloc.Client.sequences``."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    async def create(self, name: str, **settings: "Unpack[SequenceSettings]") -> pb.Sequence:
        """As ``idalloc.Client.sequences.create``."""
        request = create_request(name, settings)
        return (await self._client._call(lambda stubs: stubs.sequences.CreateSequence, request)).sequence

    async def get(self, name: str, period: str = "") -> pb.Sequence:
        """As ``idalloc.Client.sequences.get``."""
        request = pb.GetSequenceRequest(name=name, period=period)
        return (await self._client._call(lambda stubs: stubs.sequences.GetSequence, request)).sequence

    async def list(self, prefix: str = "", *, show_deleted: bool = False) -> AsyncIterator[pb.Sequence]:
        """As ``idalloc.Client.sequences.list``; an asynchronous iterator."""
        pages, more = Pages(prefix, show_deleted), True
        while more:
            response = await self._client._call(lambda stubs: stubs.sequences.ListSequences, pages.request)
            more = pages.advance(response)
            for sequence in response.sequences:
                yield sequence

    async def update(
        self, name: str, *, etag: str = "", **settings: "Unpack[SequenceSettings]"
    ) -> pb.UpdateSequenceResponse:
        """As ``idalloc.Client.sequences.update``."""
        request = update_request(name, settings, etag)
        return await self._client._call(lambda stubs: stubs.sequences.UpdateSequence, request)

    async def delete(self, name: str, *, etag: str = "") -> pb.DeleteSequenceResponse:
        """As ``idalloc.Client.sequences.delete``."""
        return await self._client._call(lambda stubs: stubs.sequences.DeleteSequence, delete_request(name, etag))

    async def advance(self, name: str, past: int, *, period: str = "", etag: str = "") -> pb.AdvanceSequenceResponse:
        """As ``idalloc.Client.sequences.advance``."""
        request = advance_request(name, past, period, etag)
        return await self._client._call(lambda stubs: stubs.sequences.AdvanceSequence, request)
