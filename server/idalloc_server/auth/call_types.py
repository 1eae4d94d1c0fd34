"""Types of gRPC handlers, and of the call's context that every transport passes to them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

import grpc

Context = grpc.aio.ServicerContext[Any, Any]
UnaryHandler = Callable[[Any, Context], Awaitable[Any]]
# Awaited with the number of ids in the next message of a stream, before they are taken. It waits until the caller may
# have them, and ends the stream by raising a ``Refusal``.
Admit = Callable[[int], Awaitable[None]]
StreamHandler = Callable[[Any, Context, Admit], AsyncGenerator[Any, None]]
# Called with the sequence and id_count of each request of a batch, before its ids are taken. It raises a ``Refusal``,
# or returns what refunds the ids; None if none were charged.
Refund = Callable[[], None]
AdmitRequest = Callable[[str, int], Refund | None]
BatchHandler = Callable[[Any, Context, AdmitRequest], Awaitable[Any]]
MetadataReader = Callable[[Context], Iterable[tuple[str, Any]]]
PeerReader = Callable[[Context], str]


def invocation_metadata(context: Context) -> Iterable[tuple[str, Any]]:
    """Return the metadata of a call."""
    return context.invocation_metadata() or ()


def connection_peer(context: Context) -> str:
    """Return the address of the other end of a call's connection."""
    return context.peer()
