"""The layer around every handler, from the bytes of a call to its status.

    bytes > decode > layer: count, drain, deadline > access control > servicer > reply > bytes
                     layer: refusal, cancellation or fault > status, log, count

Each of gRPC's own interceptors makes a call at least a tenth slower. So the handlers are built
once, at the start, from a service's descriptor. They use only the parts of ``Context`` that all
transports have: docs/explanation/architecture.md lists them.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, Protocol

import grpc
import structlog
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from idalloc_server.auth.access_control import AccessControl, shorten
from idalloc_server.auth.authorize import RULES
from idalloc_server.auth.call_types import Context, IdleStreamLeft, MessageStream, StreamHandler, UnaryHandler
from idalloc_server.auth.rejected_callers import DelayedAnswers
from idalloc_server.auth.turns import StreamShare
from idalloc_server.domain.errors import InvalidRequest, Refusal, ServerDraining
from idalloc_server.domain.store.store_calls import StoreHealth
from idalloc_server.listen.grpcio import GrpcTransport
from idalloc_server.rpc import status
from idalloc_server.rpc.draining import Draining
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import CallMetrics, FailedCalls, MethodCalls
from idalloc_server.telemetry.traces import Traces

# Takes the place of a request that cannot be decoded. By default grpcio answers UNKNOWN and native
# INTERNAL, as for faults of the server, and both log a traceback for each such request, so a caller
# could fill the log.
UNDECODABLE: Any = object()

_CODES = {code.value[0]: code.name for code in grpc.StatusCode}

_FieldReader = Callable[[Any], dict[str, Any]]
_Observer = Callable[[Any, Context, str, float], None]

_log = structlog.get_logger("idalloc.rpc")


def decoder(method: MethodDescriptor) -> Callable[[bytes], Any]:
    """Return a function that decodes a method's requests, or returns ``UNDECODABLE``."""
    parse = GetMessageClass(method.input_type).FromString

    def decode(content: bytes) -> Any:
        try:
            return parse(content)
        except DecodeError:
            return UNDECODABLE

    return decode


def undecodable_request() -> InvalidRequest:
    """Return the refusal of such a request."""
    return InvalidRequest("request", "cannot be decoded as this method's request message")


class Servicer(Protocol):
    """Has a method for each method of a service, with the same name.

    Methods that return serialized replies are in its attribute ``serialized``, if it has one.
    """

    descriptor: ServiceDescriptor  # the service


class Service(NamedTuple):
    """A service for a port."""

    descriptor: ServiceDescriptor  # the service
    name: str  # the full name under which it is served
    # By the name of a method. Each is a coroutine function or an async generator function, since
    # transports run other functions in a thread, and rejects ``UNDECODABLE``.
    handlers: Mapping[str, Any]
    serialized: frozenset[str] = frozenset()  # the methods whose handlers return serialized replies


@dataclass(eq=False)
class _Messages:
    """See ``MessageStream``."""

    answers: Counter[str]  # counts what is written, by status code
    draining: Draining
    requests: AsyncIterable[Any]
    context: Context
    share: StreamShare
    check: Callable[[], None] | None = None

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        # A proxy may end a call whose request is not complete in time, unless its reply has begun.
        await self.context.send_initial_metadata(())
        # Not iterated before: a transport may start work for an iterator that nobody uses.
        async with aclosing(self.draining.read_requests(self.requests, is_call=True)) as requests:
            async for request in requests:
                if request is UNDECODABLE:
                    raise undecodable_request()
                yield request

    async def pause(self, seconds: float) -> None:
        if self.draining.rejects:
            raise ServerDraining
        await asyncio.sleep(seconds)

    def write(self, message: Any) -> Awaitable[None]:
        if self.check is not None:
            self.check()
        self.answers[_CODES[message.error.code] if message.HasField("error") else "OK"] += 1
        return self.context.write(message)


def _field_reader(name: str, method: MethodDescriptor) -> _FieldReader:
    """Return a function that reads the sequence and the number of ids of a request."""
    names = {"sequence": RULES[name].sequence_field}
    names |= {field: field for field in ("id_count", "total_id_count") if field in method.input_type.fields_by_name}
    getters = {key: attrgetter(field) for key, field in names.items() if field}

    def read(request: Any) -> dict[str, Any]:
        if request is UNDECODABLE:
            return {}
        fields = {key: get(request) for key, get in getters.items()}
        return {key: shorten(each) if isinstance(each, str) else each for key, each in fields.items() if each}

    return read


@dataclass(eq=False)
class CallLayer:
    """The layer around the calls of this server's own services."""

    metrics: CallMetrics  # counts the calls
    draining: Draining  # holds or rejects calls
    access_control: AccessControl  # authenticates, authorizes and limits the calls
    store_health: StoreHealth  # which failed calls change
    _: KW_ONLY
    transport: GrpcTransport
    log_each: bool  # whether to log each call at level debug
    traces: Traces | None = None  # None if traces are off
    failed: FailedCalls = field(init=False, default_factory=FailedCalls)  # the causes of failed calls
    _delayed: DelayedAnswers = field(init=False, default_factory=DelayedAnswers)

    def service(self, servicer: Servicer) -> Service:
        """Return a servicer's service, with this layer and access control around each method."""
        descriptor = servicer.descriptor
        handlers = {method.name: self._handler(servicer, method) for method in descriptor.methods}
        return Service(descriptor, descriptor.full_name, handlers, getattr(servicer, "serialized", frozenset()))

    def _handler(self, servicer: Servicer, method: MethodDescriptor) -> UnaryHandler:
        name = f"/{servicer.descriptor.full_name}/{method.name}"
        streams = method.server_streaming
        inner = self.access_control.add_checks(name, getattr(servicer, method.name), streams=streams)
        if method.client_streaming:
            inner = self._streaming_messages(inner)
        elif streams:
            inner = self._writing_replies(inner)
        fields_of = _field_reader(name, method)
        traces = self.traces

        def observe(request: Any, context: Context, code: str, seconds: float) -> None:
            if traces is not None:
                traces.end_call(code)
            if self.log_each:
                identity = self.access_control.authenticator.name_of(context)
                caller = {"peer": self.access_control.peer_of(context), "identity": identity}
                _log.debug("call", method=name, code=code, ms=round(seconds * 1000, 3), **fields_of(request), **caller)

        call = self._surround(name, self.metrics.method(name), inner, observe if self.log_each or traces else None)
        return call if traces is None else traces.trace_call(name, call, fields_of, self.access_control.metadata_of)

    def _surround(
        self, name: str, calls: MethodCalls, handler: UnaryHandler, observe: _Observer | None
    ) -> UnaryHandler:
        draining = self.draining

        async def call(request: Any, context: Context) -> Any:
            began = perf_counter()
            calls.started += 1
            code = "OK"
            ended = 0.0
            try:
                if draining.has_begun or request is UNDECODABLE:
                    await self._refuse_unread(name, context)
                if context.time_remaining() == 0:
                    raise asyncio.CancelledError  # The deadline has passed: take no ids.
                return await handler(request, context)
            except asyncio.CancelledError as error:
                code = "CANCELLED"
                if not isinstance(error, IdleStreamLeft):
                    why = "the caller cancelled the call, its deadline passed, or the server stopped"
                    self.failed.add(name, "CANCELLED", "", why)
                raise
            except Exception as error:
                failure = self.record_failure(name, error)
                code = failure.code.name
                ended = perf_counter()  # without a delay that is on purpose
                if isinstance(error, Refusal) and error.wait and not draining.has_begun:
                    await self._delayed.wait(context.time_remaining())
                await self._abort(context, failure)
            finally:
                seconds = (ended or perf_counter()) - began
                calls.end(code, seconds)
                if draining.has_begun:
                    draining.call_ended()
                if observe is not None:
                    observe(request, context, code, seconds)

        return call

    async def _refuse_unread(self, name: str, context: Context) -> NoReturn:
        """Refuse a call because the server drains, or else because it cannot be decoded."""
        if self.draining.has_begun:
            await self.draining.hold_call(context)
            self.access_control.refuse_unread(name, context, ServerDraining())
        self.access_control.refuse_unread(name, context, undecodable_request())

    def _writing_replies(self, handler: StreamHandler) -> UnaryHandler:
        async def write_all(request: Any, context: Context) -> None:
            share = self.access_control.share_of(context)

            async def admit(ids: int) -> None:
                await self.draining.admit_message(ids)
                if ids:
                    await share.begin_turn()

            # aclosing: the handler learns at once that its last reply was not written.
            async with aclosing(handler(request, context, admit)) as replies:
                async for reply in replies:
                    try:
                        await context.write(reply)
                    except self.transport.left_errors:
                        raise asyncio.CancelledError from None  # The client left.
                    finally:
                        share.end_turn()
                    # native's write may not yield, nor report that the client left. Without this, a
                    # stream would block all other calls and miss its cancellation.
                    await asyncio.sleep(0)

        return write_all

    def _streaming_messages(self, handler: Callable[[MessageStream, Context], Awaitable[None]]) -> UnaryHandler:
        async def serve(requests: AsyncIterable[Any], context: Context) -> None:
            share = self.access_control.share_of(context)
            messages = _Messages(self.metrics.stream_answers, self.draining, requests, context, share=share)
            try:
                await handler(messages, context)
            except self.transport.left_errors:
                raise asyncio.CancelledError from None  # The client left.

        return serve

    def record_failure(self, name: str, error: Exception) -> status.Status:
        """Record the error of a call, or of one request of several, and return its status.

        Args:
            name: The full name of the method.
            error: The error; one that is no ``Refusal`` is a fault of the server.
        """
        if isinstance(error, Refusal):
            failure = status.from_refusal(error)
            self.failed.add(name, failure.code.name, error.reason, failure.message)
            self.store_health.record_failure(error)
            return failure
        failure = status.internal()
        if self.failed.add(name, failure.code.name, "INTERNAL", type(error).__name__):
            _log.error("call_failed", method=name, **logs.failure_fields(error))
        return failure

    async def abort(self, context: Context, refusal: Refusal) -> None:
        """End a call with the status of a refusal."""
        await self._abort(context, status.from_refusal(refusal))

    async def _abort(self, context: Context, failure: status.Status) -> NoReturn:
        # native leaves a call unanswered if it cannot send one of the trailers.
        trailers = [each for each in failure.trailers if self.transport.can_push_back or each[0] != status.PUSHBACK]
        await context.abort(failure.code, failure.message, tuple(trailers))
