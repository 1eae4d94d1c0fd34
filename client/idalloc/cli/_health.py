"""`idalloc health`, in gRPC's own health protocol. It starts often, so it loads gRPC and nothing else."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from idalloc.cli import _output
from idalloc.cli._options import Json, Server, Timeout, arguments, connect, settings

if TYPE_CHECKING:
    from idalloc._transport.config import ChannelArguments

# What the server calls the check of its store.
STORE = "store"
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
    """Ask whether the server serves; the exit code is 0 only if it does.

    A store that fails is named, with the cause: the server may still serve from its leases.
    """
    target, limit = settings(context, server, timeout)
    shown = arguments(context, target)
    status = check(target, service, limit, shown)
    failing = {}
    if not service and check(target, STORE, limit, shown) == "NOT_SERVING":
        failing[STORE] = _why(context, server, timeout)
    if as_json:
        _output.write_lines([json.dumps({"status": status, "failing": failing} if failing else {"status": status})])
    elif status == "SERVING":
        _output.write_lines([status])
    if not as_json:
        for name, why in failing.items():
            _output.say(f"{name}: NOT_SERVING: {why}")
    if status != "SERVING":
        _output.say(f"{status}: {service or 'the server'} at {target}")
        raise typer.Exit(1)


def _why(context: typer.Context, server: str | None, timeout: str | None) -> str:
    """Returns why the store fails, which callers with the role `read` may know."""
    from idalloc import IdallocError

    try:
        with connect(context, server, timeout) as client:
            return client.node().store_error or "its log says why"
    except IdallocError:
        return "its log says why"


def check(target: str, service: str, timeout: float, shown: "ChannelArguments") -> str:
    """Asks a server for a service's health.

    Raises:
        IdallocError: It did not answer.
    """
    import grpc

    from idalloc._transport.config import ChannelConfig

    access = ChannelConfig(target, **shown)
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
        from idalloc._core.rpc_errors import from_rpc_error

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
    from idalloc._core.errors import ProtocolError

    raise ProtocolError(f"HealthCheckResponse is {reply[:20].hex()}; expected a status, such as 0801 for SERVING")
