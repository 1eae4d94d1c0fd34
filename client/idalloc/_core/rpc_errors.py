"""Translation of gRPC errors into the exceptions of the clients."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from idalloc._core import errors
from idalloc._core.errors import DeadlineExceeded, IdallocError, ProtocolError, ServerUnreachable, Unavailable
from idalloc._core.reply_checks import check_duration
from idalloc._core.text import escaped
from idalloc.v1.error_reason_pb2 import ErrorReason

DOMAIN = "idalloc"
DETAILS_KEY = "grpc-status-details-bin"

_BY_REASON: dict[str, type[IdallocError]] = {
    kind.default_reason: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, IdallocError)
    if f"ERROR_REASON_{kind.default_reason}" in ErrorReason.keys()  # noqa: SIM118 - it is no mapping
}
# Of errors without the service's details: gRPC's own, or a proxy's.
_BY_CODE: dict[grpc.StatusCode, type[IdallocError]] = {
    grpc.StatusCode.UNAVAILABLE: ServerUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
}
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_NO_ANSWER = (ServerUnreachable, DeadlineExceeded)

# The largest protobuf Duration in seconds: 10,000 years.
_MAX_DURATION_SECONDS = 315_576_000_000
# The largest ``retry_after``: no server may make a program wait for years.
_MAX_RETRY_AFTER = 3_600.0
# In gRPC's messages if the connection or its HTTP/2 stream broke; also of grpc.aio, if the stream
# ended during a write.
_BROKEN_TRANSPORT = re.compile("RST_STREAM|GOAWAY|Stream removed|Internal error from Core")
# gRPC's message for a reply that it cannot parse.
_UNPARSABLE = "Exception deserializing response!"

# The causes of TLS failures: what gRPC's message, which quotes OpenSSL, has in it; the cause as one
# word, which ``ServerUnreachable`` lists; and as a clause.
TLS_CAUSES = (
    (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", "expired", "the server's certificate has expired"),
    (
        r"CERTIFICATE_VERIFY_FAILED: (unable to|self.signed|certificate signature failure)",
        "untrusted",
        "the server's certificate is signed by an untrusted CA",
    ),
    (
        r"Hostname Verification Check failed|is not in peer certificate",
        "name",
        "the server's certificate is not valid for the expected name",
    ),
    (r"WRONG_VERSION_NUMBER|HTTP_REQUEST", "plaintext", "the server does not use TLS"),
    # A server with TLS does this to a client without TLS, and one that requires client certificates
    # to a client with a wrong one.
    (
        r"failed to connect to all addresses; last error: .*(Socket closed|Connection reset)",
        "closed",
        "the server closed the connection before it answered, as one that requires TLS or a client certificate does",
    ),
)


class FailedCall(Protocol):
    """The methods that the errors of grpc and grpc.aio have in common."""

    def code(self) -> grpc.StatusCode:
        """Return the status code."""

    def details(self) -> str | None:
        """Return the message."""

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Return the trailers."""


@contextmanager
def translate_rpc_errors(target: str) -> Iterator[None]:
    """Raise gRPC's errors of calls to a target as the clients' exceptions."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, target) from cause_of(error)


def cause_of(error: grpc.RpcError) -> grpc.RpcError | None:
    """Return gRPC's error as a cause; None if a traceback would show its unsafe characters."""
    message = cast(FailedCall, error).details() or ""
    return error if escaped(message) == message else None


def from_rpc_error(error: grpc.RpcError, target: str) -> IdallocError:
    """Return the exception for gRPC's error of a call to a target."""
    call = cast(FailedCall, error)
    code = call.code()
    message = call.details() or ""
    packed = [value for key, value in call.trailing_metadata() or () if key == DETAILS_KEY and isinstance(value, bytes)]
    try:
        info, retry_after = _unpack(detail for value in packed for detail in _status(value).details)
    except ProtocolError as invalid:
        return ProtocolError(f"{invalid}; the error is {code.name}: {message}", metadata=invalid.metadata)
    if info is None:
        return _without_details(code, message, target, retry_after)
    return _with_details(code, message, info, retry_after)


def from_status(status: status_pb2.Status) -> IdallocError:
    """Return the exception for the error of one request of several."""
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    try:
        info, retry_after = _unpack(status.details)
    except ProtocolError as invalid:
        return ProtocolError(f"{invalid}; the error is {code.name}: {status.message}", metadata=invalid.metadata)
    return _with_details(code, status.message, info or error_details_pb2.ErrorInfo(reason=code.name), retry_after)


def _with_details(
    code: grpc.StatusCode, message: str, info: error_details_pb2.ErrorInfo, retry_after: float | None
) -> IdallocError:
    kind = _BY_REASON.get(info.reason, Unavailable if code is grpc.StatusCode.UNAVAILABLE else IdallocError)
    return kind(message, code=code, reason=info.reason, metadata=info.metadata, retry_after=retry_after)


def _without_details(code: grpc.StatusCode, message: str, target: str, retry_after: float | None) -> IdallocError:
    if message == _UNPARSABLE:
        return ProtocolError(f"the reply of {target} cannot be parsed as protobuf")
    is_broken = code is not grpc.StatusCode.DEADLINE_EXCEEDED and _BROKEN_TRANSPORT.search(message)
    if is_broken or code is grpc.StatusCode.CANCELLED:
        code = grpc.StatusCode.UNAVAILABLE
    kind = _BY_CODE.get(code, IdallocError)
    reason = None if code in _BY_CODE else code.name
    if kind in _NO_ANSWER:
        for pattern, cause, description in TLS_CAUSES:
            if re.search(pattern, message, re.DOTALL):
                message = f"no answer from {target}: {description} ({message})"
                return kind(message, code=code, metadata={"tls": cause})
        message = f"no answer from {target}: {message}"
    elif code is grpc.StatusCode.UNIMPLEMENTED:
        message = f"{target} does not implement this method: upgrade its idalloc, or check the target: {message}"
    return kind(message, code=code, reason=reason, retry_after=retry_after)


def _unpack(details: Iterable[Any]) -> tuple[error_details_pb2.ErrorInfo | None, float | None]:
    """Return the service's ErrorInfo, and the seconds in RetryInfo, or None for what is absent."""
    info = None
    retry_after = None
    for detail in details:
        found = error_details_pb2.ErrorInfo()
        retry = error_details_pb2.RetryInfo()
        with suppress(DecodeError):  # as in _status
            if detail.Unpack(found) and found.domain == DOMAIN:
                info = found
            elif detail.Unpack(retry):
                check_duration(retry, "retry_delay", retry.retry_delay, _MAX_DURATION_SECONDS)
                retry_after = min(retry.retry_delay.ToTimedelta().total_seconds(), _MAX_RETRY_AFTER)
    return info, retry_after


def _status(value: bytes) -> status_pb2.Status:
    try:
        return status_pb2.Status.FromString(value)
    except DecodeError:  # from a proxy; the status code still names the error
        return status_pb2.Status()
