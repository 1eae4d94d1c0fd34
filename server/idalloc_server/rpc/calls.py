"""The one layer around every RPC: errors, logs, metrics, draining.

One layer, since each of grpc's own interceptors costs a call a tenth and more. It wraps the methods of a servicer
in place, and it and the door use only what every transport's context has: see docs/architecture.md.
"""

import asyncio
from contextlib import aclosing, suppress
from time import perf_counter
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor

from idalloc_server import status
from idalloc_server.auth.door import Context, Door, StreamHandler, UnaryHandler
from idalloc_server.domain.errors import Refusal, ServerDraining
from idalloc_server.domain.store_health import StoreHealth
from idalloc_server.rpc.decoding import UNREADABLE, unreadable
from idalloc_server.telemetry.metrics import CallMetrics, FailedCalls, MethodCalls

_log = structlog.get_logger("idalloc.rpc")


class RpcLayer:
    """All calls of this server.

    Args:
        metrics: Where they are counted.
        log_each: Whether each call is logged, at debug.
        push_back: Whether the transport can send the trailer that gRPC's own retry policy heeds.
        door: Lets calls in.
        store_check: Judges by calls whether the store works.

    Attributes:
        failed: Why calls failed.
    """

    def __init__(
        self, metrics: CallMetrics, door: Door, store_check: StoreHealth, *, log_each: bool, push_back: bool = True
    ) -> None:
        self.failed = FailedCalls()
        self._metrics = metrics
        self._store_check = store_check
        self._log_each = log_each
        self._push_back = push_back
        self._door = door
        self._draining = False
        self._refusing = asyncio.Event()
        self._held = 0
        self._ending_streams = False
        self._ended = asyncio.Event()

    def wrap(self, servicer: object, service: ServiceDescriptor) -> None:
        """Puts the layer around every method of a servicer."""
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            handler = self._door.guard(name, getattr(servicer, method.name), streams=method.server_streaming)
            handle = self._written(handler) if method.server_streaming else handler
            setattr(servicer, method.name, self._around(name, self._metrics.method(name), handle))

    def hold(self) -> None:
        """Lets new calls wait from now on, until ``drain`` refuses them."""
        self._draining = True
        self._refusing.clear()

    def drain(self) -> None:
        """Refuses new calls from now on, and those that wait."""
        self._draining = True
        self._refusing.set()

    def end_streams(self) -> None:
        """Ends running streams before their next message."""
        self._ending_streams = True
        self._door.end_streams()

    async def fall_silent(self, pause: float, within: float) -> None:
        """Waits until no call runs, and none came for a while: their callers wait for those that are held.

        Args:
            pause: For how long none came, in seconds.
            within: How long to wait at most, in seconds.
        """
        deadline = perf_counter() + within
        known = -1
        while (self._running or known < self._metrics.started) and perf_counter() + pause < deadline:
            known = self._metrics.started
            await asyncio.sleep(pause)

    async def all_ended(self, within: float) -> bool:
        """Waits for the calls that run, once new ones are held or refused.

        Args:
            within: Seconds.

        Returns:
            Whether all ended in time.
        """
        if self._running:
            self._ended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), within)
        return not self._running

    @property
    def _running(self) -> int:
        """How many calls run, less those that are held."""
        return self._metrics.in_flight - self._held

    async def refuse(self, refusal: Refusal, context: Context) -> None:
        """Ends a call with a refusal."""
        await self._abort(context, status.from_refusal(refusal))

    async def _abort(self, context: Context, answer: status.Status) -> None:
        # Native leaves a call without any answer where a trailer of it cannot be sent.
        trailers = [each for each in answer.trailers if self._push_back or each[0] != status.PUSHBACK]
        await context.abort(answer.code, answer.message, tuple(trailers))

    def _around(self, name: str, calls: MethodCalls, handle: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            began = perf_counter()
            calls.started += 1
            code = "OK"
            try:
                if self._draining:
                    await self._wait_for_refusal(context)
                    self._door.turn_away(name, context, ServerDraining())
                if request is UNREADABLE:
                    self._door.turn_away(name, context, unreadable())
                if context.time_remaining() == 0:
                    raise asyncio.CancelledError  # Nobody waits for the answer: nothing may be taken for it.
                return await handle(request, context)
            except asyncio.CancelledError:
                code = "CANCELLED"
                self.failed.add(name, code, "", "the caller left, its deadline passed, or the server stopped")
                raise
            except Exception as error:
                answer = self._answer(name, error)
                code = answer.code.name
                await self._abort(context, answer)
            finally:
                seconds = perf_counter() - began
                calls.end(code, seconds)
                if self._draining and not self._running:
                    self._ended.set()
                if self._log_each:
                    _log.debug("call", method=name, code=code, ms=round(seconds * 1000, 3))

        return call

    async def _wait_for_refusal(self, context: Context) -> None:
        seconds_left: float | None = context.time_remaining()
        self._held += 1
        try:
            # A caller who gives up soon is refused while it still has time to call another server.
            async with asyncio.timeout(None if seconds_left is None else seconds_left / 2):
                await self._refusing.wait()
        except TimeoutError:
            pass
        finally:
            self._held -= 1

    def _written(self, handler: StreamHandler) -> UnaryHandler:
        async def write_all(request: Any, context: Context) -> None:
            # Closed at once, so that a handler learns that its last reply was not written.
            async with aclosing(handler(request, context)) as replies:
                async for reply in replies:
                    if self._ending_streams:
                        raise ServerDraining
                    try:
                        await context.write(reply)
                    except grpc.aio.InternalError:
                        raise asyncio.CancelledError from None  # The client left; grpcio may say so before it cancels.
                    # Native's write need not wait, nor does it tell that the client left: without this a stream would
                    # hold up all other calls, and never learn that it was cancelled.
                    await asyncio.sleep(0)

        return write_all

    def _answer(self, name: str, error: Exception) -> status.Status:
        if isinstance(error, Refusal):
            answer = status.from_refusal(error)
            self.failed.add(name, answer.code.name, error.reason, answer.message)
            self._store_check.record_failure(error)
            return answer
        answer = status.internal()
        if self.failed.add(name, answer.code.name, "INTERNAL", repr(error)):
            _log.error("call_failed", method=name, exc_info=error)
        return answer
