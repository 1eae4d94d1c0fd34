"""The client for asyncio: ``idalloc.aio.Client`` has the methods of ``idalloc.Client``."""

import uuid
from collections.abc import AsyncIterator, Iterable

from idalloc._core import calls
from idalloc._core.errors import IdallocError
from idalloc._core.refill import OUTAGE_LIMIT
from idalloc._core.types import Node, ParsedId, Range
from idalloc.aio._allocate_stream import AllocateStream
from idalloc.aio._base import BaseClient
from idalloc.aio._coalescing import CallCoalescer
from idalloc.aio._ids import Ids
from idalloc.aio._sequences import Sequences
from idalloc.aio._streams import read_stream


class Client(BaseClient):
    """Client of an idalloc server, for asyncio.

    The tasks of one event loop may share a client. It connects on its first call, and belongs to
    that event loop: a call in another one, such as in a second ``asyncio.run``, raises
    ``RuntimeError``. Concurrent streams use up to four connections. If the server or its store is
    unavailable, a unary call has up to five attempts within its timeout. A retry never returns an
    id twice; at worst it leaves a gap, and so does a cancelled call.

    Forks: gRPC does not survive a fork while an asyncio client is connected. In the child, each
    call of any client then raises ``RuntimeError``, also if the fork bypassed Python (uWSGI). Fork
    before the first call, or close the client before the fork.

    Args:
        target: This and the other arguments are those of ``idalloc.Client``.
        log: Each record blocks the event loop, for some microseconds on most disks.

    Attributes:
        sequences: Methods to create, read, update, advance and delete sequences.

    Raises:
        IdallocError: From all methods: the call failed; the subclass is the cause.
        InvalidRequest, TypeError: From all methods: an argument does not fit into the request.
        ClientClosed: From all methods: the client is closed. It is also a RuntimeError.
        RuntimeError: From all methods: the client belongs to another event loop, or gRPC is
            unusable after a fork.
        OSError: The log cannot be created or written, as in ``idalloc.Client``.
    """

    def _add_parts(self) -> None:
        super()._add_parts()
        self.sequences = Sequences(self)
        self._coalescer = CallCoalescer(self)

    async def allocate_range(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        idempotent: bool = False,
        texts: bool = False,
    ) -> Range:
        """As ``idalloc.Client.allocate_range``; concurrent calls for one sequence are coalesced.

        A call with neither a request id nor texts waits while another call for the same sequence is
        in flight. Then one call allocates the ids of all that wait, in the order of arrival. Each
        caller has its own timeout and its own error. The ids of a caller that was cancelled
        meanwhile are a gap.

        Such a call is a request of AllocateStream on one stream that the client keeps open, unless
        a request for another sequence is in flight there, or an OpenTelemetry span is active.
        """
        call = calls.allocate_range(sequence, n, request_id=request_id, idempotent=idempotent, texts=texts)
        if request_id is not None or idempotent or texts:
            return await self._call(call)
        return await self._coalescer.allocate(sequence, n, call)

    async def allocate_ranges(self, requests: Iterable[tuple[str, int]]) -> list[Range | IdallocError]:
        """As ``idalloc.Client.allocate_ranges``; it shares no call with others."""
        return await self._call(calls.allocate_ranges(requests))

    async def parse_id(self, sequence: str, text: str) -> ParsedId:
        """As ``idalloc.Client.parse_id``."""
        return await self._call(calls.parse_id(sequence, text))

    def ids(self, sequence: str, *, timeout: float = OUTAGE_LIMIT) -> Ids:
        """As ``idalloc.Client.ids``; an asynchronous iterator."""
        return Ids(self, sequence, timeout)

    def stream_ranges(
        self, sequence: str, total: int, chunk: int = 0, *, texts: bool = False, timeout: float | None = None
    ) -> AsyncIterator[Range]:
        """As ``idalloc.Client.stream_ranges``; an asynchronous iterator, for one task."""
        return read_stream(self, calls.stream_ranges(sequence, total, chunk, texts=texts, timeout=timeout))

    def allocate_stream(self) -> AllocateStream:
        """As ``idalloc.Client.allocate_stream``; an asynchronous context manager."""
        return AllocateStream(self)

    async def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """As ``idalloc.Client.doc_ids``."""
        return await self._call(calls.doc_ids(n, offset, increment))

    def stream_doc_ids(
        self,
        total: int,
        chunk: int = 0,
        *,
        offset: int = 0,
        increment: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[list[str]]:
        """As ``idalloc.Client.stream_doc_ids``; an asynchronous iterator, for one task."""
        stream = calls.stream_doc_ids(total, chunk, offset=offset, increment=increment, timeout=timeout)
        return read_stream(self, stream)

    async def uuids(self, n: int = 1, version: int = 7) -> list[uuid.UUID]:
        """As ``idalloc.Client.uuids``."""
        return [each for call in calls.uuids(n, version) for each in await self._call(call)]

    async def node(self) -> Node:
        """As ``idalloc.Client.node``."""
        return await self._call(calls.node())

    async def update_node(
        self,
        *,
        prefix: int | None = None,
        auto_increment_offset: int | None = None,
        auto_increment_increment: int | None = None,
        persist: bool = False,
    ) -> Node:
        """As ``idalloc.Client.update_node``."""
        call = calls.update_node(prefix, auto_increment_offset, auto_increment_increment, persist)
        return await self._call(call)
