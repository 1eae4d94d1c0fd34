"""The client for asyncio: ``idalloc.aio.Client`` has the methods of ``idalloc.Client``."""

import os
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Self, TypeVar

import grpc

from idalloc._core.conversions import to_doc_ids, to_range, to_uuids
from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._core.requests import (
    StreamRequest,
    StreamResponse,
    doc_ids_request,
    range_request,
    stream_doc_ids_request,
    stream_ranges_request,
    update_node_request,
    uuid_requests,
)
from idalloc._core.resumption import Resumption
from idalloc._transport.config import ChannelConfig, from_environment
from idalloc.aio._base import BaseClient, Stubs
from idalloc.aio._coalescing import CallCoalescer
from idalloc.aio._ids import Ids
from idalloc.aio._sequences import Sequences
from idalloc.aio._streams import read_stream
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.node_pb2 import GetNodeRequest, Node
from idalloc.v1.sequences_pb2 import ParseIdRequest, ParseIdResponse

T = TypeVar("T")


class Client(BaseClient):
    """Client of an idalloc server, for asyncio.

    The tasks of one event loop may share a client. It connects on its first call. Concurrent streams use up to four
    connections. If the server or its store is unavailable, a unary call has up to five attempts within its
    timeout. A retry never returns an id twice; at worst it leaves a gap, and so does a cancelled call.

    Forks: gRPC does not survive a fork while an asyncio client is connected. In the child, each call of any client then
    raises ``RuntimeError``, also if the fork bypassed Python (uWSGI). Fork before the first call, or close the client
    before the fork.

    Args:
        target: The server as ``host:port``, or another name that gRPC resolves.
        timeout: Limit of a call in seconds, including retries. Streams have a parameter of their own.
        credentials: TLS credentials, such as ``grpc.ssl_channel_credentials()``; None for a plaintext connection.
        token: Bearer token that identifies the client. It is sent with each call, over TLS or to this machine only.
        server_name: The name in the server's certificate, if it is not the target's.
        insecure: Whether the token may be sent to another machine without TLS.
        log: As in ``idalloc.Client``. Each record blocks the event loop, for some microseconds on most disks.

    Attributes:
        sequences: Methods to create, read, update, advance and delete sequences.

    Raises:
        IdallocError: From all methods: the call failed; the subclass is the cause.
        ValueError, TypeError: From all methods: an argument does not fit into the request.
        RuntimeError: From all methods: the client is closed, or gRPC is unusable after a fork.
        OSError: The log cannot be created or written, as in ``idalloc.Client``.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        server_name: str | None = None,
        insecure: bool = False,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        config = ChannelConfig(target, token=token, credentials=credentials, server_name=server_name, insecure=insecure)
        super().__init__(target, timeout, config, log)
        self.sequences = Sequences(self)
        self._coalescer = CallCoalescer(self)

    @classmethod
    def from_environment(cls, *, timeout: float = DEFAULT_TIMEOUT, log: str | os.PathLike[str] | None = None) -> Self:
        """As ``idalloc.Client.from_environment``."""
        target, arguments = from_environment()
        return cls(target, timeout=timeout, log=log, **arguments)

    async def allocate_range(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        exactly_once: bool = False,
    ) -> range:
        """As ``idalloc.Client.allocate_range``; but concurrent calls for one sequence are coalesced.

        Calls without a request id wait while another call for the same sequence is in flight. Then one call allocates
        the ids of all of them, in the order of arrival. Each caller has its own timeout and its own error. The ids of a
        caller that was cancelled meanwhile are a gap.
        """
        request = range_request(sequence, n, request_id=request_id, exactly_once=exactly_once)
        if request.request_id:
            return await self._allocate_range(request)
        return await self._coalescer.allocate(request)

    async def allocate_texts(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        exactly_once: bool = False,
    ) -> list[str]:
        """As ``idalloc.Client.allocate_texts``."""
        request = range_request(sequence, n, request_id=request_id, exactly_once=exactly_once, view=pb.RANGE_VIEW_TEXTS)
        return list((await self._allocate(request)).texts)

    async def parse_id(self, sequence: str, text: str) -> ParseIdResponse:
        """As ``idalloc.Client.parse_id``."""
        request = ParseIdRequest(sequence=sequence, text=text)
        return await self._call(lambda stubs: stubs.sequences.ParseId, request)

    def ids(self, sequence: str) -> Ids:
        """As ``idalloc.Client.ids``; an asynchronous iterator."""
        return Ids(self, sequence)

    def stream_ranges(
        self, sequence: str, total: int, chunk: int = 0, *, timeout: float | None = None
    ) -> AsyncIterator[range]:
        """As ``idalloc.Client.stream_ranges``; an asynchronous iterator, for one task."""
        request = stream_ranges_request(sequence, chunk)
        return self._stream(lambda stubs: stubs.ids.StreamRanges, request, to_range, total, timeout)

    async def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """As ``idalloc.Client.doc_ids``."""
        request = doc_ids_request(n, offset, increment)
        return to_doc_ids(await self._generate(request))

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
        request = stream_doc_ids_request(chunk, offset, increment)
        return self._stream(lambda stubs: stubs.ids.StreamDocIds, request, to_doc_ids, total, timeout)

    async def uuids(self, n: int = 1, version: int = 7) -> list[uuid.UUID]:
        """As ``idalloc.Client.uuids``."""
        uuids: list[uuid.UUID] = []
        for request in uuid_requests(n, version):
            uuids += to_uuids(await self._call(lambda stubs: stubs.ids.GenerateUuid, request))
        return uuids

    async def node(self) -> Node:
        """As ``idalloc.Client.node``."""
        return (await self._call(lambda stubs: stubs.nodes.GetNode, GetNodeRequest())).node

    async def update_node(
        self,
        *,
        prefix: int | None = None,
        auto_increment_offset: int | None = None,
        auto_increment_increment: int | None = None,
        persist: bool = False,
    ) -> Node:
        """As ``idalloc.Client.update_node``."""
        request = update_node_request(prefix, auto_increment_offset, auto_increment_increment, persist)
        return (await self._call(lambda stubs: stubs.nodes.UpdateNode, request)).node

    def _stream(
        self,
        method: "Callable[[Stubs], grpc.aio.UnaryStreamMultiCallable[StreamRequest, StreamResponse]]",
        request: Callable[[int], StreamRequest],
        convert: Callable[[StreamResponse], T],
        total: int,
        timeout: float | None,
    ) -> AsyncIterator[T]:
        resumption = Resumption(total, timeout)  # not in the generator: invalid arguments raise at once
        return read_stream(self, method, request, convert, resumption)
