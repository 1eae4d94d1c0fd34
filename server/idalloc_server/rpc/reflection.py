"""Server reflection that works with both ghz and grpcurl."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.errors import Refusal, ServerDraining
from idalloc_server.grpc_types import Context
from idalloc_server.rpc.calls import UNDECODABLE, CallLayer, add_handlers, undecodable_request

# Its annotations declare a coroutine, but it is an async generator.
_Base: Any = reflection.aio.ReflectionServicer
_METHOD = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"


class AuthenticatedReflection(_Base):  # type: ignore[misc]
    """Serves the protos of services, and of reflection itself, to authenticated callers. They need no role.

    Args:
        services: The full names of the services.
        access_control: Authenticates callers.
        calls: Answers rejected callers.
    """

    descriptor: Any = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

    def __init__(self, services: Iterable[str], access_control: AccessControl, calls: CallLayer) -> None:
        super().__init__([*services, reflection.SERVICE_NAME], pool=_MethodAwarePool())
        self._access_control = access_control
        self._calls = calls
        self._waiting: set[asyncio.Task[Any]] = set()
        self._ending = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve reflection on a server."""
        add_handlers(server, self.descriptor, lambda _: self.ServerReflectionInfo)

    def end(self) -> None:
        """End all streams: a stream does not end by itself."""
        self._ending.set()
        for stream in self._waiting:
            stream.cancel()

    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        """See reflection.proto."""
        try:
            self._access_control.authenticate(_METHOD, context)
            async with aclosing(super().ServerReflectionInfo(self._charge(requests, context), context)) as replies:
                async for reply in replies:
                    yield reply
        except Refusal as refusal:
            await self._calls.abort(context, refusal)

    async def _charge(self, requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        incoming = aiter(requests)
        stream: Any = asyncio.current_task()
        while not self._ending.is_set():
            self._waiting.add(stream)
            try:
                request = await anext(incoming, None)
            except asyncio.CancelledError:
                if self._ending.is_set():
                    break
                raise
            finally:
                self._waiting.discard(stream)
            if request is None:
                return
            if request is UNDECODABLE:
                raise undecodable_request()
            self._access_control.authenticate_and_charge(_METHOD, context)
            yield request
        raise ServerDraining


class _MethodAwarePool:
    """The default descriptor pool, which also finds the file of a method.

    ghz requests the file of ``idalloc.v1.NodeService.GetNode``. Protobuf's pool finds services by name, but no methods.
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
