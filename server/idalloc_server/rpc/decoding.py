"""Requests whose bytes are no message of the method: INVALID_ARGUMENT from every service, on each transport.

By itself grpcio answers UNKNOWN, which tells of a fault of the server, and native INTERNAL, both with
a traceback in the log for each: anyone who sends noise could fill it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from idalloc_server import status
from idalloc_server.auth.door import Context
from idalloc_server.domain.errors import InvalidRequest

# What stands for a request that cannot be read.
UNREADABLE: Any = object()


def unreadable() -> InvalidRequest:
    """Returns how such a request is refused."""
    return InvalidRequest("request", "is not a message that this method takes")


_ANSWER = status.from_refusal(unreadable())


def decoding(server: grpc.aio.Server, own: Collection[str]) -> grpc.aio.Server:
    """Returns what stands for a server where servicers are added to it, and only there.

    Args:
        server: The server.
        own: The services that refuse ``UNREADABLE`` themselves; of the others that is done here.
    """
    return cast(grpc.aio.Server, _Decoding(server, own))


class _Decoding:
    def __init__(self, server: grpc.aio.Server, own: Collection[str]) -> None:
        self._server = server
        self._own = own

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Takes none: generated code gives the same ones once more, by their names."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds the methods of a service."""
        refusing = service not in self._own
        kind = {name: _tolerant(handler, refusing) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, kind),))
        self._server.add_registered_method_handlers(service, kind)


def _tolerant(handler: Any, refusing: bool) -> grpc.RpcMethodHandler[Any, Any]:
    if handler.request_streaming:
        make, behave, around = grpc.stream_stream_rpc_method_handler, handler.stream_stream, _streams
    elif handler.response_streaming:
        make, behave, around = grpc.unary_stream_rpc_method_handler, handler.unary_stream, _one
    else:
        make, behave, around = grpc.unary_unary_rpc_method_handler, handler.unary_unary, _one
    behave = around(behave) if refusing else behave
    return make(behave, _decoder(handler.request_deserializer), handler.response_serializer)


def _decoder(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(content: bytes) -> Any:
        try:
            return deserialize(content)
        except DecodeError:
            return UNREADABLE

    return decode


def _one(behave: Any) -> Any:
    # A coroutine, or the transports would run it in a thread.
    async def call(request: Any, context: Context) -> Any:
        if request is UNREADABLE:
            await _refuse(context)
        return await behave(request, context)

    return call


def _streams(behave: Any) -> Any:
    async def call(requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        async with aclosing(behave(_readable(requests, context), context)) as replies:
            async for reply in replies:
                yield reply

    return call


async def _readable(requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
    async for request in requests:
        if request is UNREADABLE:
            await _refuse(context)
        yield request


async def _refuse(context: Context) -> None:
    await context.abort(_ANSWER.code, _ANSWER.message, _ANSWER.trailers)
