"""`idalloc health`, in gRPC's own health protocol. It starts often, so it loads gRPC and nothing else."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from idalloc.cli._options import Json, Server, Timeout, arguments, settings

if TYPE_CHECKING:
    from idalloc._access import Arguments

STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_REPLIES = (b"", b"\x08\x01", b"\x08\x02", b"\x08\x03")


def health(
    context: typer.Context,
    service: Annotated[
        str, typer.Argument(help="One of the server's services, as in idalloc.v1.NodeService; all if left out.")
    ] = "",
    server: Server = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Ask whether the server serves; the exit code is 0 only if it does."""
    target, limit = settings(context, server, timeout)
    status = check(target, service, limit, arguments(context, target))
    if as_json:
        print(json.dumps({"status": status}))
    elif status == "SERVING":
        print(status)
    if status != "SERVING":
        print(f"{status}: {service or 'the server'} at {target}", file=sys.stderr)
        raise typer.Exit(1)


def check(target: str, service: str, timeout: float, shown: "Arguments") -> str:
    """Asks a server for a service's health.

    Raises:
        IdallocError: It did not answer.
    """
    import grpc

    from idalloc._access import Access

    access = Access(target, **shown)
    if access.credentials is None:
        opened = grpc.insecure_channel(target, access.options)
    else:
        opened = grpc.secure_channel(target, access.credentials, access.options)
    try:
        with opened as channel:
            ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
            reply = ask(_request(service), timeout=timeout, metadata=access.metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return "SERVICE_UNKNOWN"
        from idalloc._errors import from_rpc_error

        raise from_rpc_error(error, target) from error
    return _status(reply)


def _request(service: str) -> bytes:
    """A HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    size, length = len(name), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return b"\x0a" + length + bytes([size]) + name if name else b""


def _status(reply: bytes) -> str:
    """The status in a HealthCheckResponse: field 1, an enum, which is left out if it is 0.

    Raises:
        ProtocolError: It is no such message.
    """
    if reply in _REPLIES:
        return STATUSES[_REPLIES.index(reply)]
    from idalloc._errors import ProtocolError

    raise ProtocolError(f"HealthCheckResponse is {reply[:20].hex()}; expected a status, such as 0801 for SERVING")
