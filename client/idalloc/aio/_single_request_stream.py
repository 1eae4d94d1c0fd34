"""Calls over one stream, one at a time, in the client for asyncio."""

import asyncio
from typing import Any, TypeVar

import grpc

from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError
from idalloc._core.pipeline import Pending
from idalloc._core.resumption import Retries
from idalloc.aio._allocate_stream import AllocateStream
from idalloc.aio._base import BaseClient

T = TypeVar("T")

# How long calls are unary after a stream that ended without any answer, in seconds: the server may
# be older.
PAUSE = 10.0


class SingleRequestStream(AllocateStream):
    """Makes calls over one stream, which costs less than unary calls.

    A stream answers in order: behind a request that waits for the store, others would wait, too. So
    it has at most one request in flight; other calls are unary. A call is also repeated as a unary
    one if its stream breaks or the store is unavailable: the client retries unary calls.
    """

    def __init__(self, client: BaseClient) -> None:
        super().__init__(client)
        self._retries = Retries()  # of the open stream
        self._paused_until = 0.0

    async def call(self, call: Call[T]) -> T:
        """Make a call, with the result and the errors of a unary one."""
        client = self._client
        loop = asyncio.get_running_loop()
        # The metadata of a stream cannot carry the trace context of each call.
        is_traced = client._metadata() is not client._config.metadata
        if self._waiting or is_traced or loop.time() < self._paused_until:
            return await client._call(call)
        pending = Pending(call, client.timeout)
        try:
            outcome = await self._exchange(pending)
        except TimeoutError:
            error = pending.deadline_error(client.target, client.timeout)
            client._failed(self._connection, error)
            raise error from None
        except IdallocError:
            if not self._retries.has_progressed:
                self._paused_until = loop.time() + PAUSE
            return await client._call(call, timeout=pending.time_left())
        if not isinstance(outcome, IdallocError):
            return client._receive(call, outcome, pending.asked)
        if outcome.code is not grpc.StatusCode.UNAVAILABLE:
            raise outcome
        await asyncio.sleep(pending.retry_delay(outcome))
        return await client._call(call, timeout=pending.time_left())

    async def _exchange(self, pending: Pending[Any]) -> Any:
        try:
            async with asyncio.timeout(self._client.timeout):
                await self._client._find_servers()
                if self._connection.is_suspect:
                    self._end_stream()
                return await super()._exchange(pending)
        except BaseException:
            self._end_stream()  # the next request would wait for the answer to this one
            raise

    async def _run(self) -> None:
        """Open one stream, whose end is raised to the caller."""
        self._retries = Retries()
        try:
            await self._read_answers(self._retries)
        except Exception as error:
            self._fail(error)

    def _end_stream(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
