"""``client.sequences`` of the client for asyncio."""

from collections.abc import AsyncIterator
from typing import Unpack

from idalloc._core import sequences as calls
from idalloc._core.types import Sequence, SequenceChange
from idalloc.aio._base import BaseClient


class Sequences:
    """Administration of sequences: ``client.sequences``, as ``idalloc.Client.sequences``."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    async def create(self, name: str, **settings: Unpack[calls.SequenceSettings]) -> Sequence:
        """As ``idalloc.Client.sequences.create``."""
        return await self._client._call(calls.create(name, settings))

    async def get(self, name: str, *, period: str = "") -> Sequence:
        """As ``idalloc.Client.sequences.get``."""
        return await self._client._call(calls.get(name, period))

    async def list(self, prefix: str = "", *, show_deleted: bool = False) -> AsyncIterator[Sequence]:
        """As ``idalloc.Client.sequences.list``; an asynchronous iterator."""
        pages = calls.Pages(prefix, show_deleted)
        while pages.more:
            for sequence in await self._client._call(pages.next_page()):
                yield sequence

    async def update(self, name: str, *, etag: str = "", **settings: Unpack[calls.SequenceSettings]) -> SequenceChange:
        """As ``idalloc.Client.sequences.update``."""
        return await self._client._call(calls.update(name, settings, etag))

    async def delete(self, name: str, *, etag: str = "") -> SequenceChange:
        """As ``idalloc.Client.sequences.delete``."""
        return await self._client._call(calls.delete(name, etag))

    async def advance(self, name: str, past: int, *, period: str = "", etag: str = "") -> SequenceChange:
        """As ``idalloc.Client.sequences.advance``."""
        return await self._client._call(calls.advance(name, past, period, etag))
