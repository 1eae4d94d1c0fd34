"""The base of the client for threads: its unary calls."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Self, TypeVar

from idalloc import _base
from idalloc._core.attempts import Attempt, Attempts
from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError
from idalloc._core.pipeline import Pending
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._transport.channel import Connection, Stubs

T = TypeVar("T")


class BaseClient(_base.BaseClient):
    """The unary calls of a client. ``Client`` adds the public methods."""

    _is_asyncio: ClassVar[bool] = False

    def close(self) -> None:
        """Close all connections and the log.

        Prefetched ids are discarded. Running calls and streams raise ``ClientClosed``.
        """
        self._close_channels([stubs for each in [*self._by_target.values()] if (stubs := each.close())] + self._retired)
        if self._log is not None:
            self._log.close()

    def _close_channels(self, opened: list[Stubs]) -> None:
        for stubs in opened:
            stubs.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _call(self, call: Call[T]) -> T:
        pending = Pending(call, self.timeout)
        self._find_servers()
        if call.is_repeatable:
            changed = SimpleQueue[None]()  # see `AllocateStream._exchange`
            attempts = Attempts(self, pending, partial(changed.put, None))
            while seconds := attempts.step():
                with suppress(Empty):
                    changed.get(timeout=seconds)
            return self._receive(call, attempts.reply, attempts.asked)
        tried: list[Connection] = []
        while True:
            connection = self._servers.pick(tried)
            tried.append(connection)
            metadata = self._metadata()
            asked = self._now()
            stubs = connection.stubs()
            began = time.monotonic()
            try:
                with translate_rpc_errors(self.target), connection.abandon_if_interrupted(stubs):
                    reply = stubs.rpc(call.request)(call.request, timeout=pending.time_left(), metadata=metadata)
            except IdallocError as error:
                self._failed(connection, error)
                time.sleep(self._retry_delay(pending, tried, error))
            else:
                self._servers.answered(time.monotonic() - began)
                return self._receive(call, reply, asked)

    def _find_servers(self) -> None:
        """Resolve the name of the servers and probe suspect ones, if that is due."""
        if self._must_resolve():
            with suppress(OSError):  # gRPC reports it
                self._use_addresses(socket.getaddrinfo(*self._name, type=socket.SOCK_STREAM))  # type: ignore[misc]
        self._probe_suspects()

    # As in ``idalloc._core.attempts.Client``.

    def _send(
        self, server: Connection, pending: Pending[Any], end: Callable[[Attempt[Connection], Any], None]
    ) -> Attempt[Connection]:
        request = pending.call.request
        metadata = self._metadata()
        attempt = Attempt(server, server.stubs(), self._now(), time.monotonic())
        timeout = pending.time_left()
        with translate_rpc_errors(self.target), server.abandon_if_interrupted(attempt.stubs):
            future = attempt.stubs.rpc(request).future(request, timeout=timeout, metadata=metadata)
            server.keep_until_done(future)
            future.add_done_callback(partial(end, attempt))
            attempt.future = future
        return attempt

    def _outcome(self, attempt: Attempt[Connection]) -> Any:
        with (
            translate_rpc_errors(self.target),
            attempt.server.abandon_if_interrupted(attempt.stubs, attempt.future),
        ):
            return attempt.future.result(0)
