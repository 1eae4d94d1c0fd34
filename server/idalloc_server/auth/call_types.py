"""Types of gRPC handlers, and of the call's context that every transport passes to them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from operator import methodcaller
from typing import Any, NoReturn, Protocol

import grpc

from idalloc_server.auth.turns import StreamShare
from idalloc_server.domain.sequences.patterns import Patterns


class Context(Protocol):
    """The context of a call: the methods that every transport has."""

    def peer(self) -> str:
        """Return the address of the other end of the connection."""

    def invocation_metadata(self) -> Iterable[tuple[str, Any]] | None:
        """Return the metadata of the call."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the properties of the TLS connection."""

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""

    async def send_initial_metadata(self, metadata: tuple[tuple[str, Any], ...]) -> None:
        """Send the headers of a stream's reply now instead of with its first message."""

    async def write(self, message: Any) -> None:
        """Send a message of a stream."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, Any], ...] = ()
    ) -> NoReturn:
        """End the call with a status."""


class IdleStreamLeft(asyncio.CancelledError):
    """The caller left a stream in which no request waits: the usual end, and no failure."""


class MessageStream(Protocol):
    """The requests and answers of a call that streams both."""

    share: StreamShare  # not used before the caller is authenticated
    check: Callable[[], None] | None  # raises the error that ends the stream before an answer is written

    def __aiter__(self) -> AsyncGenerator[Any, None]:
        """Return the requests, to be read once by one task, and closed.

        Raises:
            Refusal: The stream ends, since the request cannot be decoded or the server drains.
        """

    async def pause(self, seconds: float) -> None:
        """Wait before a request is admitted, or raise ``ServerDraining``."""

    def write(self, message: Any) -> Awaitable[None]:
        """Count an answer, and send it. Raises an exception of the transport if the client left."""


UnaryHandler = Callable[[Any, Context], Awaitable[Any]]
# The server awaits it with the number of ids in a stream's next message, before it takes them. It
# waits until the caller may have them, and ends the stream by raising a ``Refusal``. With 0 ids it
# only checks that the stream may continue.
Admit = Callable[[int], Awaitable[None]]
StreamHandler = Callable[[Any, Context, Admit], AsyncGenerator[Any, None]]
# The server calls it with the sequence (None for document ids) and id_count of each request of a
# batch, before it takes the ids. It raises a ``Refusal``, or returns the function that
# refunds the ids; None if none were charged.
Refund = Callable[[], None]
AdmitRequest = Callable[[str | None, int], Refund | None]
# The same for a stream of requests. It waits at most the given seconds for the identity's quota.
AdmitStreamed = Callable[[str | None, int, float], Awaitable[Refund | None]]
BatchHandler = Callable[[Any, Context, AdmitRequest], Awaitable[Any]]
# With the sequences on which the caller has the role read.
ListHandler = Callable[[Any, Context, Patterns], Awaitable[Any]]
RequestsHandler = Callable[[MessageStream, Context, AdmitStreamed | None], Awaitable[None]]
MetadataReader = Callable[[Context], Iterable[tuple[str, Any]]]
PeerReader = Callable[[Context], str]


def invocation_metadata(context: Context) -> Iterable[tuple[str, Any]]:
    """Return the metadata of a call."""
    return context.invocation_metadata() or ()


connection_peer: PeerReader = methodcaller("peer")  # the address of the other end of a call's connection
