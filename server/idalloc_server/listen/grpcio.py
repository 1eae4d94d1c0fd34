"""The gRPC transport grpcio, and what may differ in another one."""

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from idalloc_server.auth.call_types import MetadataReader, invocation_metadata


@dataclass(frozen=True, kw_only=True)
class GrpcTransport:
    """A gRPC transport with grpcio's interface; what is not given is as in grpcio."""

    name: str
    # Returns a server on the running event loop from ``options``. It raises StartRefused if the
    # package of the transport is not installed.
    make: Callable[..., grpc.aio.Server] = grpc.aio.server
    metadata_of: MetadataReader = invocation_metadata  # reads the metadata of a call
    can_push_back: bool = True  # whether it sends trailers named ``grpc-…``, as retry pushback needs
    can_send_goaway: bool = True  # whether a stop sends HTTP/2's GOAWAY at once and lets running calls continue
    can_limit_connections: bool = True
    # Whether it must know all methods before the start. grpcio also serves other methods, and at
    # less cost: at each call it waits anew for a call of each registered method.
    needs_registered_methods: bool = False
    # What it raises when a stream is written whose client has left: grpcio may raise it before it
    # cancels the call.
    left_errors: tuple[type[Exception], ...] = (grpc.aio.InternalError,)
    has_one_address: bool = False  # whether it serves on one address of a host only
    unsupported: tuple[str, ...] = ()  # the settings that it does not support
    exposure: str = ""  # a further risk if other machines reach it


GRPCIO = GrpcTransport(name="grpcio")
