"""The base of the client for threads: its unary calls."""

import time
from typing import ClassVar, Self, TypeVar

from idalloc import _base
from idalloc._core.calls import Call
from idalloc._core.errors import IdallocError
from idalloc._core.pipeline import Pending
from idalloc._core.rpc_errors import translate_rpc_errors

T = TypeVar("T")


class BaseClient(_base.BaseClient):
    """The unary calls of a client. ``Client`` adds the public methods."""

    _is_asyncio: ClassVar[bool] = False

    def close(self) -> None:
        """Close all connections and the log.

        Prefetched ids are discarded. Running calls and streams raise ``RuntimeError``.
        """
        for stubs in [connection.close() for connection in self._connections]:
            if stubs is not None:
                stubs.channel.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _call(self, call: Call[T]) -> T:
        pending = Pending(call, self.timeout)
        metadata = self._metadata()
        while True:
            asked = self._now()
            stubs = self._connection.stubs()
            try:
                with translate_rpc_errors(self.target), self._connection.abandon_if_interrupted(stubs):
                    reply = stubs.rpc(call.request)(call.request, timeout=pending.time_left(), metadata=metadata)
            except IdallocError as error:
                time.sleep(pending.retry_delay(error))
            else:
                return self._receive(call, reply, asked)
