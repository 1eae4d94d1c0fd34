"""The one layer around every RPC: errors, logs, metrics, access control and draining.

Each of gRPC's own interceptors makes a call at least a tenth slower. So the layer wraps a servicer's methods in place.
It uses only the parts of ``Context`` that all transports have, see docs/architecture.md.
"""

import asyncio
from contextlib import aclosing, suppress
from time import perf_counter
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor

from idalloc_server import status
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.errors import Refusal, ServerDraining
from idalloc_server.domain.store.health import StoreHealth
from idalloc_server.grpc_types import Context, StreamHandler, UnaryHandler
from idalloc_server.rpc.decoding import UNDECODABLE, undecodable_request
from idalloc_server.telemetry.metrics import CallMetrics, FailedCalls, MethodCalls

_log = structlog.get_logger("idalloc.rpc")


class RpcLayer:
    """Wraps the handlers of all RPCs of this server.

    Args:
        metrics: Counts the calls.
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
        access_control: AccessControl,
        store_health: StoreHealth,
        *,
        log_each: bool,
        push_back: bool = True,
    ) -> None:
        self.failed = FailedCalls()
        self._metrics = metrics
        self._store_health = store_health
        self._log_each = log_each
        self._push_back = push_back
        self._access_control = access_control
        self._draining = False
        self._rejecting = asyncio.Event()
        self._held = 0
        self._ending_streams = False
        self._none_running = asyncio.Event()

    def wrap(self, servicer: object, service: ServiceDescriptor) -> None:
        """Wrap every method of a servicer."""
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            handler = self._access_control.wrap(name, getattr(servicer, method.name), streams=method.server_streaming)
            unary = self._write_replies(handler) if method.server_streaming else handler
            setattr(servicer, method.name, self._wrap_handler(name, self._metrics.method(name), unary))

    def hold(self) -> None:
        """Hold new calls from now on, until ``drain`` rejects them."""
        self._draining = True
        self._rejecting.clear()

    def drain(self) -> None:
        """Reject new and held calls from now on."""
        self._draining = True
        self._rejecting.set()

    def end_streams(self) -> None:
        """End open streams before their next message."""
        self._ending_streams = True
        self._access_control.end_streams()

    async def wait_until_quiet(self, pause: float, timeout: float) -> None:
        """Wait until no call runs and none has come for ``pause`` seconds, for ``timeout`` seconds at most."""
        deadline = perf_counter() + timeout
        known = -1
        while (self._running or known < self._metrics.started) and perf_counter() + pause < deadline:
            known = self._metrics.started
            await asyncio.sleep(pause)

    async def wait_for_calls(self, timeout: float) -> bool:
        """Wait for running calls, for ``timeout`` seconds at most; return whether all have ended."""
        if self._running:
            self._none_running.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_running.wait(), timeout)
        return not self._running

    @property
    def _running(self) -> int:
        """The number of running calls, without held ones."""
        return self._metrics.in_flight - self._held

    async def reject(self, refusal: Refusal, context: Context) -> None:
        """End a call with the status of a refusal."""
        await self._abort(context, status.from_refusal(refusal))

    async def _abort(self, context: Context, failure: status.Status) -> None:
        # native leaves a call unanswered if it cannot send one of the trailers.
        trailers = [each for each in failure.trailers if self._push_back or each[0] != status.PUSHBACK]
        await context.abort(failure.code, failure.message, tuple(trailers))

    def _wrap_handler(self, name: str, calls: MethodCalls, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            began = perf_counter()
            calls.started += 1
            code = "OK"
            try:
                if self._draining:
                    await self._hold_call(context)
                    self._access_control.reject(name, context, ServerDraining())
                if request is UNDECODABLE:
                    self._access_control.reject(name, context, undecodable_request())
                if context.time_remaining() == 0:
                    raise asyncio.CancelledError  # The deadline has passed: take no ids.
                return await handler(request, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                self.failed.add(name, code, "", "the caller left, its deadline passed, or the server stopped")
                raise
            except Exception as error:
                failure = self._status_of(name, error)
                code = failure.code.name
                await self._abort(context, failure)
            finally:
                seconds = perf_counter() - began
                calls.end(code, seconds)
                if self._draining and not self._running:
                    self._none_running.set()
                if self._log_each:
                    _log.debug("call", method=name, code=code, ms=round(seconds * 1000, 3))

        return call

    async def _hold_call(self, context: Context) -> None:
        seconds_left: float | None = context.time_remaining()
        self._held += 1
        try:
            # Half of the caller's time is left for a call to another server.
            async with asyncio.timeout(None if seconds_left is None else seconds_left / 2):
                await self._rejecting.wait()
        except TimeoutError:
            pass
        finally:
            self._held -= 1

    def _write_replies(self, handler: StreamHandler) -> UnaryHandler:
        async def write_all(request: Any, context: Context) -> None:
            # aclosing: the handler learns at once that its last reply was not written.
            async with aclosing(handler(request, context)) as replies:
                async for reply in replies:
                    if self._ending_streams:
                        raise ServerDraining
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
