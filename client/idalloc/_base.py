"""The base of both clients: their arguments, their connections and their log."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import grpc
from google.protobuf.message import Message

from idalloc._core.calls import Call
from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._core.errors import invalid
from idalloc._core.reply_checks import check_reply
from idalloc._issued_log.log import IssuedLog
from idalloc._transport.channel import MAX_CONNECTIONS, Connection, open_stubs
from idalloc._transport.config import ChannelConfig, ChannelConfigError, from_environment
from idalloc._transport.tracing import with_trace_context

T = TypeVar("T")


@contextmanager
def _invalid_arguments() -> Iterator[None]:
    """Raise errors of the channel's settings as the clients' exception."""
    try:
        yield
    except ChannelConfigError as error:
        raise invalid(error.setting, error.problem) from None


class BaseClient:
    """The connections of a client and its log. ``_sync`` and ``aio`` add the calls."""

    _is_asyncio: ClassVar[bool]

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        server_name: str | None = None,
        insecure: bool = False,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            math.isfinite(timeout)
        except TypeError:
            raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}") from None
        if not isinstance(credentials, grpc.ChannelCredentials | None):
            found = type(credentials).__name__  # type: ignore[unreachable]
            raise TypeError(f"credentials must be of grpc, such as grpc.ssl_channel_credentials(…), not {found}")
        self.target = target
        self.timeout = timeout
        with _invalid_arguments():
            self._config = ChannelConfig(
                target, token=token, credentials=credentials, server_name=server_name, insecure=insecure
            )
        self._log = None if log is None else IssuedLog(log)
        open_channel = partial(open_stubs, target, self._config, is_asyncio=self._is_asyncio)
        self._connections = [Connection(open_channel, is_asyncio=self._is_asyncio) for _ in range(MAX_CONNECTIONS)]
        self._connection = self._connections[0]
        self._add_parts()

    @classmethod
    def from_environment(cls, *, timeout: float = DEFAULT_TIMEOUT, log: str | os.PathLike[str] | None = None) -> Self:
        """Return a client configured by the environment variables of the command ``idalloc``.

        They are IDALLOC_SERVER, IDALLOC_TLS, IDALLOC_CA, IDALLOC_CERT, IDALLOC_KEY,
        IDALLOC_SERVER_NAME, IDALLOC_TOKEN, IDALLOC_TOKEN_FILE and IDALLOC_TOKEN_INSECURE. Files are
        read once.

        Args:
            timeout: As in ``Client``.
            log: As in ``Client``.

        Raises:
            InvalidRequest: A variable is invalid, or its file cannot be read; the message names the
                variable.
        """
        with _invalid_arguments():
            target, arguments = from_environment()
        return cls(target, timeout=timeout, log=log, **arguments)

    def _add_parts(self) -> None:
        """Create the parts that differ between the clients."""
        raise NotImplementedError

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        """Return the metadata of a call that begins now."""
        return with_trace_context(self._config.metadata)

    def _now(self) -> int:
        """Return the time on the log's clock; call it before a request is sent."""
        return 0 if self._log is None else self._log.now()

    def _record(self, request: Message, response: Message, asked: int) -> None:
        """Write the ids of a checked reply to the log."""
        if self._log is not None:
            self._log.reply(request, response, asked)

    def _receive(self, call: Call[T], reply: Any, asked: int) -> T:
        """Check the reply to a call, record its ids, and return what the caller gets."""
        check_reply(call.request, reply)
        converted = call.convert(reply)  # it may raise, and then there is no record
        self._record(call.request, reply, asked)
        return converted
