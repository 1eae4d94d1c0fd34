"""The base of the client for threads: its unary calls."""

from typing import ClassVar, Self, TypeVar

import grpc

from idalloc import _base
from idalloc._core.calls import Call
from idalloc._core.rpc_errors import cause_of, from_rpc_error

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
        asked = self._now()
        stubs, metadata = self._connection.stubs(), self._metadata()
        try:
            with self._connection.abandon_if_interrupted(stubs):
                reply = stubs.rpc(call.request)(call.request, timeout=self.timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from cause_of(error)
        return self._receive(call, reply, asked)
