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
from idalloc._core.errors import IdallocError, Unauthenticated
from idalloc._core.pipeline import Pending
from idalloc._core.rpc_errors import is_answer, translate_rpc_errors
from idalloc._transport.channel import PROBE_LIFETIME, Connection, Stubs

T = TypeVar("T")


class BaseClient(_base.BaseClient):
    """The unary calls of a client. ``Client`` adds the public methods."""

    _is_asyncio: ClassVar[bool] = False

    def close(self) -> None:
        """Close all connections and the log.

        Prefetched ids are discarded. Running calls and streams raise ``ClientClosed``.
        """
        self._close_channels([stubs for each in self._all_connections() if (stubs := each.close())] + self._retired)
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
        try:
            return self._call_with_token(call)
        except Unauthenticated:
            if not self._read_changed_files(at_once=True):
                raise
        return self._call_with_token(call)

    def _call_with_token(self, call: Call[T]) -> T:
        pending = Pending(call, self.timeout)
        self._find_servers()
        if call.is_repeatable:
            return self._repeat(pending)
        metadata = self._metadata()
        tried: list[Connection] = []
        while True:
            connection = self._servers.pick(tried)
            tried.append(connection)
            asked = self._now()
            stubs = connection.stubs()
            began = time.monotonic()
            try:
                with translate_rpc_errors(self.target), connection.abandon_if_interrupted(stubs):
                    reply = stubs.rpc(call.request)(call.request, timeout=pending.time_left(), metadata=metadata)
            except IdallocError as error:
                self._failed(connection, error)
                if delay := pending.retry_delay(error, has_other=self._servers.has_other(tried)):
                    tried.clear()
                    time.sleep(delay)
            else:
                self._servers.answered(time.monotonic() - began)
                return self._receive(call, reply, asked)

    def _repeat(self, pending: Pending[T]) -> T:
        """Make a repeatable call."""
        changed = SimpleQueue[None]()  # see `AllocateStream._exchange`
        attempts = Attempts(self, pending, partial(changed.put, None))
        while seconds := attempts.step():
            with suppress(Empty):
                changed.get(timeout=seconds)
        return self._receive(pending.call, attempts.reply, attempts.asked)

    def _find_servers(self) -> None:
        """Resolve the name of the servers and probe suspect ones, if that is due."""
        if self._must_resolve():
            with suppress(OSError):  # gRPC reports it
                self._use_addresses(socket.getaddrinfo(*self._name, type=socket.SOCK_STREAM))  # type: ignore[misc]
        self._probe_suspects()

    # As in ``idalloc._core.attempts.Client``.

    def _send(
        self, server: Connection, pending: Pending[Any], end: Callable[[list[Any], Any], None]
    ) -> Attempt[Connection]:
        request = pending.call.request
        ended: list[Any] = []
        asked = self._now()
        stubs = server.stubs()
        metadata = self._metadata()
        timeout = pending.time_left()
        with translate_rpc_errors(self.target), server.abandon_if_interrupted(stubs):
            future = stubs.rpc(request).future(request, timeout=timeout, metadata=metadata)
            server.keep_until_done(future)
            future.add_done_callback(partial(end, ended))
        return Attempt(server, future, ended, stubs, asked, time.monotonic())

    def _probe(self, server: Connection, changed: Callable[[], None]) -> list[Any]:
        stubs = server.stubs()
        ended: list[Any] = []

        def end(probe: Any) -> None:
            server.end_probe(is_answered=is_answer(probe.code()))
            ended.append(probe)
            changed()

        with translate_rpc_errors(self.target), server.abandon_if_interrupted(stubs):
            server.is_probed = True
            probe = stubs.rpcs["Probe"].future(b"", timeout=PROBE_LIFETIME)
            server.keep_until_done(probe)
            probe.add_done_callback(end)
        return ended

    def _outcome(self, attempt: Attempt[Connection]) -> Any:
        with (
            translate_rpc_errors(self.target),
            attempt.server.abandon_if_interrupted(attempt.stubs, attempt.future),
        ):
            return attempt.future.result(0)
