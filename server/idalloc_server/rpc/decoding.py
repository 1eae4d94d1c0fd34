"""Undecodable requests: INVALID_ARGUMENT from every service, on each transport.

By default grpcio answers UNKNOWN and native INTERNAL, as for faults of the server. Both log a traceback for each such
request, so a caller could fill the log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from idalloc_server import status
from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.grpc_types import Context

# Takes the place of a request that cannot be decoded.
UNDECODABLE: Any = object()


def undecodable_request() -> InvalidRequest:
    """Return the refusal of such a request."""
    return InvalidRequest("request", "cannot be decoded as this method's request message")


_FAILURE = status.from_refusal(undecodable_request())


def decoding(server: grpc.aio.Server, own: Collection[str]) -> grpc.aio.Server:
    """Return a stand-in for a server, to which servicers can be added and nothing else.

    Args:
        server: The server.
        own: The services whose handlers reject ``UNDECODABLE``. The handlers of others are wrapped to reject it.
    """
    return cast(grpc.aio.Server, _Decoding(server, own))


class _Decoding:
    def __init__(self, server: grpc.aio.Server, own: Collection[str]) -> None:
        self._server = server
        self._own = own

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Ignore them: generated code also calls ``add_registered_method_handlers`` with the same handlers."""

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Add the methods of a service."""
        rejects = service not in self._own
        tolerant = {name: _make_tolerant(handler, rejects) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, tolerant),))
        self._server.add_registered_method_handlers(service, tolerant)


def _make_tolerant(handler: Any, rejects: bool) -> grpc.RpcMethodHandler[Any, Any]:
    if handler.request_streaming:
        make, behavior, wrap = grpc.stream_stream_rpc_method_handler, handler.stream_stream, _wrap_stream
    elif handler.response_streaming:
        make, behavior, wrap = grpc.unary_stream_rpc_method_handler, handler.unary_stream, _wrap_unary
    else:
        make, behavior, wrap = grpc.unary_unary_rpc_method_handler, handler.unary_unary, _wrap_unary
    behavior = wrap(behavior) if rejects else behavior
    return make(behavior, _make_decoder(handler.request_deserializer), handler.response_serializer)


def _make_decoder(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(content: bytes) -> Any:
        try:
            return deserialize(content)
        except DecodeError:
            return UNDECODABLE

    return decode


def _wrap_unary(behavior: Any) -> Any:
    # A coroutine function: transports run other functions in a thread.
    async def call(request: Any, context: Context) -> Any:
        if request is UNDECODABLE:
            await _reject(context)
        return await behavior(request, context)

    return call


def _wrap_stream(behavior: Any) -> Any:
    async def call(requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
        async with aclosing(behavior(_check(requests, context), context)) as replies:
            async for reply in replies:
                yield reply

    return call


async def _check(requests: AsyncIterable[Any], context: Context) -> AsyncGenerator[Any, None]:
    async for request in requests:
        if request is UNDECODABLE:
            await _reject(context)
        yield request


async def _reject(context: Context) -> None:
    await context.abort(_FAILURE.code, _FAILURE.message, _FAILURE.trailers)
