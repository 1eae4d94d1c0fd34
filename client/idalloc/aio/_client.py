"""The client for asyncio: ``idalloc.aio.Client`` has the methods of ``idalloc.Client``."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from typing import Self, TypeVar

import grpc

from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._core.errors import IdallocError, translated
from idalloc._core.fork import this_process
from idalloc._core.replies import Chunks
from idalloc._core.requests import (
    StreamRequest,
    StreamResponse,
    doc_ids_request,
    range_request,
    stream_doc_ids_request,
    stream_ranges_request,
    to_doc_ids,
    to_range,
    to_uuids,
    update_node_request,
    uuid_requests,
)
from idalloc._core.resumption import LONGEST_END, Resumption
from idalloc._issued_log.log import log_chunk
from idalloc._transport.access import from_environment
from idalloc._transport.channel import least_busy, leave_behind
from idalloc.aio._base import BaseClient, Stubs
from idalloc.aio._ids import Ids
from idalloc.aio._sequences import Sequences
from idalloc.aio._shared_calls import SharedCalls
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.node_pb2 import GetNodeRequest, Node
from idalloc.v1.sequences_pb2 import ParseIdRequest, ParseIdResponse

T = TypeVar("T")


class Client(BaseClient):
    """Takes ids from an idalloc server, for asyncio.

    One client serves any number of tasks of one event loop. It connects on its first call, and has up to four
    connections, as ``idalloc.Client``. A call that fails because the server or its store is away is tried again up to
    five times within its timeout; that never gives an id twice, at worst it leaves a gap. A call that is cancelled
    leaves at worst a gap, too.

    gRPC does not survive a fork of a process whose client of asyncio is connected: in the child every call, also of
    other clients, raises ``RuntimeError``. Fork before the first call, or close the client before. That is noticed also
    where the fork bypassed Python (uWSGI).

    Args:
        target: The server as ``host:port``, or any other name that gRPC resolves.
        timeout: How many seconds a call may take, retries included. Streams take their own.
        credentials: As of ``idalloc.Client``, and so are the next three.
        token: Says to the server who this is.
        server_name: The name in the server's certificate, where it is not the target's.
        insecure: Whether the token may go to another machine over a connection without TLS.
        log: As of ``idalloc.Client``. The event loop waits for each record: some microseconds on most disks.

    Attributes:
        sequences: Creates, shows, changes, advances and deletes sequences.

    Raises:
        IdallocError: From all methods, when a call failed: one of its subclasses says why.
        ValueError, TypeError: From all methods, for an argument that no request can hold.
        RuntimeError: From all methods, when the client was closed, or gRPC is not usable after a fork.
        OSError: As from ``idalloc.Client``, of its log.
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
        super().__init__(
            target,
            timeout=timeout,
            credentials=credentials,
            token=token,
            server_name=server_name,
            insecure=insecure,
            log=log,
        )
        self.sequences = Sequences(self)
        self._shared_calls = SharedCalls(self)

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
        """As ``idalloc.Client.allocate_range``; but tasks that wait at the same time share calls.

        Without a request id, callers who come while a call for the same sequence is under way wait for its end. Then
        one call is made for all of them, and its ids are given out in the order in which they came. Each has its own
        timeout and its own error. The part of one that was cancelled meanwhile is nobody's: it is a gap.
        """
        request = range_request(sequence, n, request_id=request_id, exactly_once=exactly_once)
        if request.request_id:
            return await self._range(request)
        return await self._shared_calls.allocate(request)

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
        made: list[uuid.UUID] = []
        for request in uuid_requests(n, version):
            made += to_uuids(await self._call(lambda stubs: stubs.ids.GenerateUuid, request))
        return made

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
        resumption = Resumption(total, timeout)  # here and not in the generator: what is wrong is told at once
        return self._resuming(method, request, convert, resumption)

    async def _resuming(
        self,
        method: "Callable[[Stubs], grpc.aio.UnaryStreamMultiCallable[StreamRequest, StreamResponse]]",
        request: Callable[[int], StreamRequest],
        convert: Callable[[StreamResponse], T],
        resumption: Resumption,
    ) -> AsyncIterator[T]:
        while resumption.missing > 0:
            with least_busy(self._connections) as connection:
                stubs = connection.get()
                message = request(resumption.missing)
                asked = 0 if self._log is None else self._log.now()
                process, chunks = this_process(), Chunks(message)
                call = method(stubs)(message, timeout=resumption.time_left(), metadata=self._access.metadata)
                try:
                    with translated(self.target):
                        async for response in call:
                            count = chunks.check(response)
                            if self._log is not None:
                                log_chunk(self._log, message, response, asked)
                            resumption.received(count)
                            yield convert(response)
                            if not next(process):
                                connection.get()  # refuses: the call is the parent's
                            if not chunks.missing:
                                await _end(call, chunks)
                        chunks.end()
                except IdallocError as error:
                    await asyncio.sleep(resumption.pause(error))
                finally:
                    if next(process):
                        call.cancel()
                    else:
                        leave_behind(call)


async def _end(call: AsyncIterable[StreamResponse], chunks: Chunks) -> None:
    """Waits for the end of a stream that has brought its total. A message that comes in its place is refused."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_END):
            async for response in call:
                chunks.check(response)
