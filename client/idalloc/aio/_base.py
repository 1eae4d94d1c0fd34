"""The base of the client for asyncio: its connections, its log, its tasks and its unary calls."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import grpc

from idalloc._core.conversions import to_range
from idalloc._core.reply_checks import check_reply
from idalloc._core.requests import AnyRequest, AnyResponse
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._issued_log.log import IssuedLog
from idalloc._transport.channel import MAX_CONNECTIONS, Connection, channel_options
from idalloc._transport.config import ChannelConfig
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceStub
from idalloc.v1.node_pb2_grpc import NodeServiceStub
from idalloc.v1.sequences_pb2_grpc import SequenceServiceStub

if TYPE_CHECKING:
    from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceAsyncStub
    from idalloc.v1.node_pb2_grpc import NodeServiceAsyncStub
    from idalloc.v1.sequences_pb2_grpc import SequenceServiceAsyncStub

T = TypeVar("T")


class Stubs(NamedTuple):
    """An open channel and its stubs."""

    channel: grpc.aio.Channel
    ids: "IdAllocatorServiceAsyncStub"
    nodes: "NodeServiceAsyncStub"
    sequences: "SequenceServiceAsyncStub"


class BaseClient:
    """The connections of a client, its log, its tasks and its unary calls. ``Client`` adds the public methods."""

    def __init__(self, target: str, timeout: float, config: ChannelConfig, log: str | os.PathLike[str] | None) -> None:
        self.target = target
        self.timeout = timeout
        self._config = config
        self._log = None if log is None else IssuedLog(log)
        self._connections = [Connection(self._open_channel, is_asyncio=True) for _ in range(MAX_CONNECTIONS)]
        self._connection = self._connections[0]
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Close all connections and the log. Prefetched ids are discarded; running calls and streams fail."""
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

    def _open_channel(self) -> Stubs:
        config = self._config
        if config.credentials is None:
            channel = grpc.aio.insecure_channel(self.target, channel_options(config))
        else:
            channel = grpc.aio.secure_channel(self.target, config.credentials, channel_options(config))
        return Stubs(channel, IdAllocatorServiceStub(channel), NodeServiceStub(channel), SequenceServiceStub(channel))

    async def _call(
        self,
        method: "Callable[[Stubs], grpc.aio.UnaryUnaryMultiCallable[AnyRequest, AnyResponse]]",
        request: AnyRequest,
        timeout: float | None = None,
    ) -> AnyResponse:
        with translate_rpc_errors(self.target):
            stub = method(self._connection.stubs())
            seconds = self.timeout if timeout is None else timeout
            reply = await stub(request, timeout=seconds, metadata=self._config.metadata)
        return check_reply(request, reply)

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

    async def _allocate_range(self, request: pb.AllocateRangeRequest, timeout: float | None = None) -> range:
        return to_range(await self._allocate(request, timeout))

    def _start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that is cancelled when the client is closed."""
        try:
            task = asyncio.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        except BaseException:  # of a signal handler: nothing else would cancel the task
            for each in asyncio.all_tasks():
                if each.get_coro() is coroutine:
                    each.cancel()
            raise
        return task
