"""What happens to a call, from its bytes to its status: this is the one place that surrounds every handler.

    bytes > decode > layer: count, drain, deadline > access control > servicer > reply > bytes
                     layer: refusal, cancellation or fault > status, log, count

Each of gRPC's own interceptors makes a call at least a tenth slower. So the handlers are built once, at the start, from
a service's descriptor. They use only the parts of ``Context`` that all transports have, see docs/architecture.md.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from time import perf_counter
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from idalloc_server import status
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.errors import InvalidRequest, Refusal, ServerDraining
from idalloc_server.domain.store.health import StoreHealth
from idalloc_server.grpc_types import Context, StreamHandler, UnaryHandler
from idalloc_server.rpc.draining import Draining
from idalloc_server.telemetry.metrics import CallMetrics, FailedCalls, MethodCalls

# Takes the place of a request that cannot be decoded. By default grpcio answers UNKNOWN and native INTERNAL, as for
# faults of the server, and both log a traceback for each such request, so a caller could fill the log.
UNDECODABLE: Any = object()

_METHOD_HANDLERS: dict[tuple[bool, bool], Any] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
_log = structlog.get_logger("idalloc.rpc")


def undecodable_request() -> InvalidRequest:
    """Return the refusal of such a request."""
    return InvalidRequest("request", "cannot be decoded as this method's request message")


class Servicer(Protocol):
    """Has a method for each method of a service, with the same name.

    Attributes:
        descriptor: The service.
    """

    descriptor: ServiceDescriptor


def add_handlers(
    server: grpc.aio.Server, service: ServiceDescriptor, handler_of: Callable[[MethodDescriptor], Any]
) -> None:
    """Serve a service.

    Args:
        server: The server.
        service: The service.
        handler_of: Returns the handler of a method. It must be a coroutine function or an async generator function,
            since transports run other functions in a thread, and must reject ``UNDECODABLE``.
    """
    handlers = {}
    for method in service.methods:
        make = _METHOD_HANDLERS[method.client_streaming, method.server_streaming]
        serialize = GetMessageClass(method.output_type).SerializeToString
        handlers[method.name] = make(handler_of(method), _decoder(method), serialize)
    # Older versions of grpcio ignore registered handlers; native passes calls of others to a grpcio server behind it.
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
    server.add_registered_method_handlers(service.full_name, handlers)


def _decoder(method: MethodDescriptor) -> Callable[[bytes], Any]:
    parse = GetMessageClass(method.input_type).FromString

    def decode(content: bytes) -> Any:
        try:
            return parse(content)
        except DecodeError:
            return UNDECODABLE

    return decode


class CallLayer:
    """The layer around the calls of this server's own services.

    Args:
        metrics: Counts the calls.
        draining: Whether calls are held or rejected.
        access_control: Authenticates, authorizes and limits the calls.
        store_health: The store's health, which failed calls change.
        log_each: Whether to log each call at level debug.
        push_back: Whether the transport can send ``grpc-retry-pushback-ms``.

    Attributes:
        failed: The causes of failed calls.
    """

    def __init__(
        self,
        metrics: CallMetrics,
        draining: Draining,
        access_control: AccessControl,
        store_health: StoreHealth,
        *,
        log_each: bool,
        push_back: bool = True,
    ) -> None:
        self.failed = FailedCalls()
        self._metrics = metrics
        self._draining = draining
        self._access_control = access_control
        self._store_health = store_health
        self._log_each = log_each
        self._push_back = push_back

    def add_service(self, server: grpc.aio.Server, servicer: Servicer) -> None:
        """Serve the service of a servicer, with this layer and access control around each method."""

        def handler_of(method: MethodDescriptor) -> UnaryHandler:
            name = f"/{servicer.descriptor.full_name}/{method.name}"
            streams = method.server_streaming
            checked = self._access_control.add_checks(name, getattr(servicer, method.name), streams=streams)
            return self._surround(
                name, self._metrics.method(name), self._writing_replies(checked) if streams else checked
            )

        add_handlers(server, servicer.descriptor, handler_of)

    def _surround(self, name: str, calls: MethodCalls, handler: UnaryHandler) -> UnaryHandler:
        draining = self._draining

        async def call(request: Any, context: Context) -> Any:
            began = perf_counter()
            calls.started += 1
            code = "OK"
            try:
                if draining.has_begun:
                    await draining.hold_call(context)
                    self._access_control.refuse_unread(name, context, ServerDraining())
                if request is UNDECODABLE:
                    self._access_control.refuse_unread(name, context, undecodable_request())
                if context.time_remaining() == 0:
                    raise asyncio.CancelledError  # The deadline has passed: take no ids.
                return await handler(request, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                self.failed.add(
                    name, code, "", "the caller cancelled the call, its deadline passed, or the server stopped"
                )
                raise
            except Exception as error:
                failure = self._status_of(name, error)
                code = failure.code.name
                await self._abort(context, failure)
            finally:
                seconds = perf_counter() - began
                calls.end(code, seconds)
                if draining.has_begun:
                    draining.call_ended()
                if self._log_each:
                    _log.debug("call", method=name, code=code, ms=round(seconds * 1000, 3))

        return call

    def _writing_replies(self, handler: StreamHandler) -> UnaryHandler:
        async def write_all(request: Any, context: Context) -> None:
            # aclosing: the handler learns at once that its last reply was not written.
            async with aclosing(handler(request, context, self._draining.admit_message)) as replies:
                async for reply in replies:
                    try:
                        await context.write(reply)
                    except grpc.aio.InternalError:
                        raise asyncio.CancelledError from None  # The client left; grpcio may raise before it cancels.
                    # native's write may not yield, nor report that the client left. Without this, a stream would block
                    # all other calls and miss its cancellation.
                    await asyncio.sleep(0)

        return write_all

    def _status_of(self, name: str, error: Exception) -> status.Status:
        if isinstance(error, Refusal):
            failure = status.from_refusal(error)
            self.failed.add(name, failure.code.name, error.reason, failure.message)
            self._store_health.record_failure(error)
            return failure
        failure = status.internal()
        if self.failed.add(name, failure.code.name, "INTERNAL", repr(error)):
            _log.error("call_failed", method=name, exc_info=error)
        return failure

    async def abort(self, context: Context, refusal: Refusal) -> None:
        """End a call with the status of a refusal."""
        await self._abort(context, status.from_refusal(refusal))

    async def _abort(self, context: Context, failure: status.Status) -> None:
        # native leaves a call unanswered if it cannot send one of the trailers.
        trailers = [each for each in failure.trailers if self._push_back or each[0] != status.PUSHBACK]
        await context.abort(failure.code, failure.message, tuple(trailers))
