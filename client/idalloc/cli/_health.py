"""`idalloc health`, by gRPC's health checking protocol.

Probes start it often: it imports gRPC and little else.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from idalloc.cli._connection import channel_arguments, connect, target_and_timeout
from idalloc.cli._options import with_options
from idalloc.cli._printer import failure, write_stderr

if TYPE_CHECKING:
    from idalloc._transport.config import ChannelArguments

# The service name under which the server reports the health of its store.
STORE = "store"
# By the reply, a HealthCheckResponse: field 1, an enum, absent if 0.
_STATUSES = {b"": "UNKNOWN", b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING", b"\x08\x03": "SERVICE_UNKNOWN"}


@with_options
def health(
    context: typer.Context,
    service: Annotated[
        str, typer.Argument(help="A service of the server, such as idalloc.v1.NodeService; default: the whole server.")
    ] = "",
) -> None:
    """Check the server's health. The exit code is 0 only if the server serves.

    The command reports the error of a failing store. The exit code stays 0 while the server serves
    from its leases.
    """
    target, limit = target_and_timeout(context)
    access = channel_arguments(context, target)
    status = check(target, service, limit, access)
    fails = not service and check(target, STORE, limit, access) == "NOT_SERVING"
    store_error = "see the server's log"
    if fails:
        from idalloc import IdallocError

        with suppress(IdallocError), connect(context) as client:  # only callers with the role `read` get the error
            store_error = client.node().store_error or store_error
    as_json = context.obj.output == "json"
    if as_json or status == "SERVING":
        failing = {"failing": {STORE: store_error}} if fails else {}
        context.obj.lines([status], lambda: {"status": status} | failing)
    if fails and not as_json:
        write_stderr(f"{STORE}: NOT_SERVING: {store_error}")
    if status != "SERVING":
        raise failure(f"{status}: {service or 'the server'} at {target}")


def check(target: str, service: str, timeout: float, arguments: "ChannelArguments") -> str:
    """Return the health status of a service, or of the whole server if `service` is empty.

    Raises:
        IdallocError: The call failed, or its reply is not a HealthCheckResponse.
    """
    import grpc

    from idalloc._transport.config import ChannelConfig

    access = ChannelConfig(target, **arguments)
    try:
        with access.open(grpc, target) as channel:
            call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
            reply = call(_request(service), timeout=timeout, metadata=access.metadata)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return "SERVICE_UNKNOWN"
        from idalloc._core.rpc_errors import cause_of, from_rpc_error

        raise from_rpc_error(error, target) from cause_of(error)
    if reply in _STATUSES:
        return _STATUSES[reply]
    from idalloc import ProtocolError

    raise ProtocolError(f"HealthCheckResponse is {reply[:20].hex()}; expected a status, such as 0801 for SERVING")


def _request(service: str) -> bytes:
    """Encode a HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    size = len(name)
    length = b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return b"\x0a" + length + bytes([size]) + name if name else b""
