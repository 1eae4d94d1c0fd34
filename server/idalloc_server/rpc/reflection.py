"""Server reflection that ghz and grpcurl both understand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from idalloc_server.auth.door import Context, Door
from idalloc_server.domain.errors import Refusal, ServerDraining
from idalloc_server.rpc.calls import RpcLayer

# Its own annotations say that it is a coroutine, which it is not.
_Base: Any = reflection.aio.ReflectionServicer
_METHOD = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"


def enable(server: grpc.aio.Server, services: Sequence[str], door: Door, calls: RpcLayer) -> "_Guarded":
    """Lets clients ask a server for the protos of these services, and of reflection itself.

    Args:
        server: Where it is added.
        services: The services.
        door: Knows who may: whoever it knows.
        calls: Answers those who may not.

    Returns:
        Its streams, which a server that stops has to end.
    """
    servicer = _Guarded([*services, reflection.SERVICE_NAME], door, calls)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
    return servicer


class _Guarded(_Base):  # type: ignore[misc]
    """Reflection for those whom the door knows."""

    def __init__(self, names: Sequence[str], door: Door, calls: RpcLayer) -> None:
        super().__init__(names, pool=_MethodAwarePool())
        self._door = door
        self._calls = calls
        self._waiting: set[asyncio.Task[Any]] = set()
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Ends all streams, which would last as long as their clients."""
        self._ending.set()
        for stream in self._waiting:
            stream.cancel()

    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        """See reflection.proto."""
        try:
            self._door.identify(_METHOD, context)
            async with aclosing(super().ServerReflectionInfo(self._admitted(requests, context), context)) as replies:
                async for reply in replies:
                    yield reply
        except Refusal as refusal:
            await self._calls.refuse(refusal, context)

    async def _admitted(self, requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        coming = aiter(requests)
        stream: Any = asyncio.current_task()
        while not self._ending.is_set():
            self._waiting.add(stream)
            try:
                request = await anext(coming, None)
            except asyncio.CancelledError:
                if self._ending.is_set():
                    break
                raise
            finally:
                self._waiting.discard(stream)
            if request is None:
                return
            self._door.admit(_METHOD, context)
            yield request
        raise ServerDraining


class _MethodAwarePool:
    """The default descriptor pool, which also finds the file of a method.

    ghz asks for the file of ``idalloc.v1.NodeService.GetNode``. Protobuf's pool knows no methods by name, only
    the service, one name up.
    """

    def __init__(self) -> None:
        self._pool = descriptor_pool.Default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def FindFileContainingSymbol(self, symbol: str) -> Any:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindFileContainingSymbol(symbol.rpartition(".")[0])
