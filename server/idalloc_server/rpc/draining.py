"""Draining: which calls a stopping process holds, rejects and waits for."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from idalloc_server.auth.call_types import Context
from idalloc_server.domain.errors import ServerDraining
from idalloc_server.telemetry.metrics import CallMetrics


@dataclass(eq=False)
class Draining:
    """The state of draining.

    It begins with ``hold_new_calls`` or ``reject_calls``, and never ends.
    """

    metrics: CallMetrics  # counts the calls
    has_begun: bool = field(init=False, default=False)  # whether new calls are held or rejected
    rejects: bool = field(init=False, default=False)  # whether new calls and requests are rejected
    _rejecting: asyncio.Event = field(init=False, default_factory=asyncio.Event)  # the same, to wait for
    _held: int = field(init=False, default=0)
    _ends_streams: bool = field(init=False, default=False)
    _none_running: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    # The tasks that wait for a stream's next request, and whether the stream counts as a call.
    _readers: dict[asyncio.Task[Any], bool] = field(init=False, default_factory=dict)

    def hold_new_calls(self) -> None:
        """Hold new calls from now on, until ``reject_calls``."""
        self.has_begun = True

    def reject_calls(self) -> None:
        """Reject new and held calls from now on, and further requests of open streams."""
        self.has_begun = True
        self.rejects = True
        self._rejecting.set()
        for reader in self._readers:
            reader.cancel()

    def end_streams(self) -> None:
        """End open streams before their next message."""
        self._ends_streams = True

    async def admit_message(self, ids: int) -> None:
        """See ``Admit``.

        Raises:
            ServerDraining: Streams are ended.
        """
        if self._ends_streams:
            raise ServerDraining

    async def read_requests(self, requests: AsyncIterable[Any], *, is_call: bool) -> AsyncGenerator[Any, None]:
        """Yield the requests of a stream, read by one task.

        Args:
            requests: The transport's requests.
            is_call: Whether ``metrics`` counts the stream as a call.

        Raises:
            ServerDraining: Calls are rejected.
        """
        incoming = aiter(requests)
        readers = self._readers
        reader: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        while True:
            if self.rejects:
                raise ServerDraining
            readers[reader] = is_call
            try:
                request = await anext(incoming)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                if not self._rejecting.is_set():
                    raise
                reader.uncancel()
                raise ServerDraining from None
            finally:
                del readers[reader]
            yield request

    async def hold_call(self, context: Context) -> None:
        """Wait until the call can be rejected."""
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

    def call_ended(self) -> None:
        """Record the end of a call, once draining has begun."""
        if not self._running:
            self._none_running.set()

    async def wait_until_quiet(self, pause: float, timeout: float) -> None:
        """Wait until no call runs and none has come for ``pause`` seconds.

        A stream that waits for its next request counts as a call that has ended. The wait ends
        after ``timeout`` seconds in any case.
        """
        deadline = perf_counter() + timeout
        known = -1
        while perf_counter() + pause < deadline:
            if self._running <= sum(self._readers.values()) and known == self.metrics.started:
                return
            known = self.metrics.started
            await asyncio.sleep(pause)

    async def wait_for_calls(self, timeout: float) -> bool:
        """Wait for running calls at most ``timeout`` seconds; return whether all have ended."""
        if self._running:
            self._none_running.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_running.wait(), timeout)
        return not self._running

    @property
    def _running(self) -> int:
        """The number of running calls, without held ones."""
        return self.metrics.in_flight - self._held
