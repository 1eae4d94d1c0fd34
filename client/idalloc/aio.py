"""The client for asyncio: ``idalloc.aio.Client`` has the methods of ``idalloc.Client``."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import grpc

from idalloc._access import Access, from_environment
from idalloc._aio_ids import Ids
from idalloc._aio_sequences import Sequences
from idalloc._channel import MAX_CONNECTIONS, Connection, channel_options, least_busy, leave_behind
from idalloc._defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._errors import IdallocError, translated
from idalloc._fork import this_process
from idalloc._log import IssuedLog
from idalloc._messages import (
    AnyRequest,
    AnyResponse,
    StreamRequest,
    StreamResponse,
    doc_ids_request,
    log_chunk,
    range_request,
    stream_doc_ids_request,
    stream_ranges_request,
    to_doc_ids,
    to_range,
    to_uuids,
    update_node_request,
    uuid_requests,
)
from idalloc._replies import Chunks, checked
from idalloc._shared_calls import SharedCalls
from idalloc._stream import LONGEST_END, Resumption
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceStub
from idalloc.v1.node_pb2 import GetNodeRequest, Node
from idalloc.v1.node_pb2_grpc import NodeServiceStub
from idalloc.v1.sequences_pb2 import ParseIdRequest, ParseIdResponse
from idalloc.v1.sequences_pb2_grpc import SequenceServiceStub

if TYPE_CHECKING:
    from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceAsyncStub
    from idalloc.v1.node_pb2_grpc import NodeServiceAsyncStub
    from idalloc.v1.sequences_pb2_grpc import SequenceServiceAsyncStub

__all__ = ["Client", "Ids"]

T = TypeVar("T")


class Stubs(NamedTuple):
    """An open channel, and the services on it."""

    channel: grpc.aio.Channel
    ids: "IdAllocatorServiceAsyncStub"
    nodes: "NodeServiceAsyncStub"
    sequences: "SequenceServiceAsyncStub"


class Client:
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
        self.target = target
        self.timeout = timeout
        self._access = Access(target, token=token, credentials=credentials, server_name=server_name, insecure=insecure)
        self._log = None if log is None else IssuedLog(log)
        self._connections = [Connection(self._open, of_asyncio=True) for _ in range(MAX_CONNECTIONS)]
        self._connection = self._connections[0]
        self.sequences = Sequences(self)
        self._shared_calls = SharedCalls(self)
        self._tasks: set[asyncio.Task[Any]] = set()

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

    async def close(self) -> None:
        """Closes all connections. Ids at hand in ``ids()`` are dropped, running calls and streams fail."""
        opened = [connection.close() for connection in self._connections]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stubs in opened:
            if stubs is not None:
                await stubs.channel.close()
        if self._log is not None:
            self._log.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _open(self) -> Stubs:
        access = self._access
        if access.credentials is None:
            channel = grpc.aio.insecure_channel(self.target, channel_options(access))
        else:
            channel = grpc.aio.secure_channel(self.target, access.credentials, channel_options(access))
        return Stubs(channel, IdAllocatorServiceStub(channel), NodeServiceStub(channel), SequenceServiceStub(channel))

    async def _call(
        self,
        method: "Callable[[Stubs], grpc.aio.UnaryUnaryMultiCallable[AnyRequest, AnyResponse]]",
        request: AnyRequest,
        timeout: float | None = None,
    ) -> AnyResponse:
        with translated(self.target):
            stub = method(self._connection.get())
            seconds = self.timeout if timeout is None else timeout
            reply = await stub(request, timeout=seconds, metadata=self._access.metadata)
        return checked(request, reply)

    async def _allocate(
        self, request: pb.AllocateRangeRequest, timeout: float | None = None
    ) -> pb.AllocateRangeResponse:
        if self._log is None:
            return await self._call(lambda stubs: stubs.ids.AllocateRange, request, timeout)
        asked = self._log.now()
        response = await self._call(lambda stubs: stubs.ids.AllocateRange, request, timeout)
        self._log.range(request, response, asked)
        return response

    async def _generate(self, request: pb.GenerateDocIdRequest) -> pb.GenerateDocIdResponse:
        if self._log is None:
            return await self._call(lambda stubs: stubs.ids.GenerateDocId, request)
        asked = self._log.now()
        response = await self._call(lambda stubs: stubs.ids.GenerateDocId, request)
        self._log.doc_ids(response, asked)
        return response

    async def _range(self, request: pb.AllocateRangeRequest, timeout: float | None = None) -> range:
        return to_range(await self._allocate(request, timeout))

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

    def _own(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task that ends with the client at the latest."""
        try:
            task = asyncio.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        except BaseException:  # of a signal's handler: nobody would wait for the task, or end it
            for each in asyncio.all_tasks():
                if each.get_coro() is coroutine:
                    each.cancel()
            raise
        return task


async def _end(call: AsyncIterable[StreamResponse], chunks: Chunks) -> None:
    """Waits for the end of a stream that has brought its total. A message that comes in its place is refused."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_END):
            async for response in call:
                chunks.check(response)
