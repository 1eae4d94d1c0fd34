"""Calls over one stream, one at a time, in the client for asyncio."""

import asyncio
from typing import Any, TypeVar

import grpc

from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError, ServerUnreachable
from idalloc._core.pipeline import Pending, Pipeline
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._transport.channel import leak
from idalloc.aio._base import BaseClient

T = TypeVar("T")

# How long calls are unary after a stream that ended without any answer, in seconds: the server may
# be older.
PAUSE = 10.0


class SingleRequestStream:
    """Makes calls over one stream, which costs less than unary calls.

    A stream answers in order: behind a request that waits for the store, others would wait, too. So
    it has at most one request in flight; other calls are unary. A call is also repeated as a unary
    one if its stream breaks or the store is unavailable: the client retries unary calls.

    Args:
        client: The client.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client
        self._call: Any = None  # the open stream
        self._server = client._connection  # of the open stream
        self._pipeline = Pipeline()  # of the open stream
        self._has_answered = False  # whether the open stream has answered a request
        self._timeout: asyncio.Timeout | None = None  # of the call in flight
        self._paused_until = 0.0
        client._connection.register(self)

    async def call(self, call: Call[T]) -> T:
        """Make a call, with the result and the errors of a unary one."""
        client, loop = self._client, asyncio.get_running_loop()
        # The metadata of a stream cannot carry the trace context of each call.
        is_traced = client._metadata() is not client._config.metadata
        if self._timeout is not None or is_traced or loop.time() < self._paused_until:
            return await client._call(call)
        pending = Pending(call, client.timeout)
        try:
            outcome = await self._exchange(pending)
        except TimeoutError:
            client._connection.raise_if_closed()
            self._server.is_suspect = True
            client._probe_suspects()
            raise pending.deadline_error(client.target, client.timeout) from None
        except asyncio.CancelledError:
            client._raise_if_closed()
            raise
        except IdallocError:
            if not self._has_answered:
                self._paused_until = loop.time() + PAUSE
            return await client._call(call, timeout=pending.time_left())
        if not isinstance(outcome, IdallocError):
            return client._receive(call, outcome, pending.asked)
        if outcome.code is not grpc.StatusCode.UNAVAILABLE:
            raise outcome
        await asyncio.sleep(pending.retry_delay(outcome))
        return await client._call(call, timeout=pending.time_left())

    async def _exchange(self, pending: Pending[Any]) -> Any:
        """Return the reply or error of a request, unless the timeout or ``_discard`` ends it."""
        timeout = self._timeout = asyncio.timeout(self._client.timeout)
        try:
            async with timeout:
                return await self._send(pending)
        finally:
            self._timeout = None

    async def _send(self, pending: Pending[Any]) -> Any:
        """Send a request and return its reply or error.

        Any exception ends the stream: its answers would belong to other requests.
        """
        client = self._client
        await client._find_servers()
        if self._call is None or self._call.done() or self._server.is_suspect:
            self._end()
            self._server = client._servers.pick()
            stubs = self._server.stubs()
            self._call = stubs.rpcs["AllocateStream"](metadata=client._metadata())
            self._pipeline, self._has_answered = Pipeline(), False
        call = self._call
        try:
            with translate_rpc_errors(client.target):
                await call.write(self._pipeline.send(pending, client._now()))
                answer = await call.read()
            if answer is grpc.aio.EOF:
                raise ServerUnreachable(f"no answer from {client.target}: the stream ended")
            _, outcome = self._pipeline.answered(answer)
        except BaseException as error:
            self._end()
            if isinstance(error, IdallocError):
                client._failed(self._server, error)
            raise
        self._has_answered = True
        return outcome

    def _discard(self) -> None:
        """End the stream and the call in flight, whose reads and writes gRPC may not end."""
        self._end()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0)

    def _end(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _clear_after_fork(self) -> None:
        leak(self._call)
        self._call = None
