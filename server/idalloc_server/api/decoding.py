"""Requests whose bytes are no message of the method: INVALID_ARGUMENT from every service, on each transport.

By itself grpcio answers UNKNOWN, which tells of a fault of the server, and native INTERNAL, both with
a traceback in the log for each: anyone who sends noise could fill it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from idalloc_server.api import status
from idalloc_server.api.door import Context
from idalloc_server.domain.errors import InvalidRequest

_UNREADABLE = object()
_ANSWER = status.from_refusal(InvalidRequest("request", "is not a message that this method takes"))


def decoding(server: grpc.aio.Server) -> grpc.aio.Server:
    """Returns what stands for a server where servicers are added to it, and only there."""
    return cast(grpc.aio.Server, _Decoding(server))


class _Decoding:
    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Takes none: generated code gives the same ones once more, by their names."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds the methods of a service."""
        kind = {name: _tolerant(handler) for name, handler in handlers.items() if _has_code(handler)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, kind),))
        self._server.add_registered_method_handlers(service, kind)


def _has_code(handler: Any) -> bool:
    """Tells a method from one that generated code has and the servicer does not: each call of that logs a traceback.

    The health service of grpcio has such a one, List. Left out it is UNIMPLEMENTED without more ado.
    """
    behave = handler.unary_unary or handler.unary_stream or handler.stream_stream
    return inspect.iscoroutinefunction(behave) or inspect.isasyncgenfunction(behave)


def _tolerant(handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
    if handler.request_streaming:
        make, behave = grpc.stream_stream_rpc_method_handler, _streams(handler.stream_stream)
    elif handler.response_streaming:
        make, behave = grpc.unary_stream_rpc_method_handler, _one(handler.unary_stream)
    else:
        make, behave = grpc.unary_unary_rpc_method_handler, _one(handler.unary_unary)
    return make(behave, _decoder(handler.request_deserializer), handler.response_serializer)


def _decoder(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(content: bytes) -> Any:
        try:
            return deserialize(content)
        except DecodeError:
            return _UNREADABLE

    return decode


def _one(behave: Any) -> Any:
    # Stands around every call: a coroutine, or the transports would run it in a thread.
    async def call(request: Any, context: Context) -> Any:
        if request is _UNREADABLE:
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
        if request is _UNREADABLE:
            await _refuse(context)
        yield request


async def _refuse(context: Context) -> None:
    await context.abort(_ANSWER.code, _ANSWER.message, _ANSWER.trailers)
