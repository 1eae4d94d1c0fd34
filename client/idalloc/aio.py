"""The client for asyncio: ``idalloc.aio.Client`` has the methods of ``idalloc.Client``."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypeVar

import grpc

from idalloc._access import Access, from_environment
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
    count_ids,
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
from idalloc._pool import Asked, Pool
from idalloc._shared_calls import SharedCalls
from idalloc._stream import Resumption
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

# What comes of a range that was asked for ahead; an OSError is of the log.
_Answer: TypeAlias = pb.AllocateRangeResponse | IdallocError | OSError


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

    def ids(self, sequence: str) -> "Ids":
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
            return await stub(request, timeout=seconds, metadata=self._access.metadata)

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
                process = this_process()
                call = method(stubs)(message, timeout=resumption.time_left(), metadata=self._access.metadata)
                try:
                    with translated(self.target):
                        async for response in call:
                            if self._log is not None:
                                log_chunk(self._log, message, response, asked)
                            resumption.received(count_ids(response))
                            yield convert(response)
                            if not next(process):
                                connection.get()  # refuses: the call is the parent's
                        resumption.ended()
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


class Ids(AsyncIterator[int]):
    """The ids of one sequence, one by one, without end: as ``idalloc.Ids``.

    Any number of tasks may share one: each id goes to one of them. A task that is cancelled while it waits takes none.
    """

    def __init__(self, client: Client, sequence: str) -> None:
        self._client = client
        self._pool = Pool(sequence)
        self._coming: _Coming | None = None
        client._connection.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        while True:
            for value in self._pool.piece.ids:
                return value
            await self._more()

    def drop(self) -> None:
        """Drops what is at hand."""
        self._pool.drop()

    def forget(self) -> None:
        """Drops what the parent of this process has at hand."""
        leave_behind(self._coming)
        self._coming = None
        self._pool.drop()

    async def _more(self) -> None:
        # Without a lock: to leave `async with` takes an await, before which a signal's handler may raise. What is done
        # between two awaits is done by one task alone.
        self._client._connection.get()  # refuses when the client was closed
        deadline = time.monotonic() + self._client.timeout
        while not self._pool.advance():
            coming = self._coming
            ahead = coming is not None
            if coming is None:
                coming = self._coming = self._ask()
            # Who is cancelled while it waits leaves the range to the next one.
            await asyncio.wait([coming.task])
            if self._coming is coming:
                self._coming = None
                self._receive(coming, ahead, deadline)
        if self._coming is None and self._pool.wants_more():
            self._coming = self._ask()

    def _ask(self) -> "_Coming":
        self._client._connection.get()  # refuses when the client was closed
        asked = self._pool.ask()
        return _Coming(asked, self._client._own(self._fetch(asked.request)))

    async def _fetch(self, request: pb.AllocateRangeRequest) -> _Answer:
        try:
            return await self._client._allocate(request)
        except (IdallocError, OSError) as error:  # returned, for it may be that no one wants to know
            return error

    def _receive(self, coming: "_Coming", ahead: bool, deadline: float) -> None:
        """Takes in what came. After a refusal for a quota, the end of a pause comes next."""
        if coming.task.cancelled():
            self._client._connection.get()  # says that the client was closed
        answer = coming.task.result()
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, pb.AllocateRangeResponse):
            self._pool.accept(coming.asked, answer)
        elif answer is not None and not self._pool.refused(answer) and not ahead:
            pause = self._pool.pause(answer, deadline)
            self._coming = _Coming(coming.asked, self._client._own(asyncio.sleep(pause)))


class _Coming(NamedTuple):
    """A range that was asked for ahead, or the end of a pause: then its task gives None."""

    asked: Asked
    task: asyncio.Task[_Answer] | asyncio.Task[None]
