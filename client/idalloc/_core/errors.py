"""Every error of the service as an exception.

* IdallocError
    x InvalidRequest              a field of the request breaks its rule
    x SequenceNotFound            and the server does not create it on first use
    x SequenceExhausted           more ids were asked for than the sequence has left
    x SequenceInvalid             the sequence's row in the store cannot be counted on
    x TooManySequences            the server process serves as many sequences as it may
    x SequenceExists              a sequence of that name exists
    x SequenceChanged             someone else changed the sequence meanwhile
    x RequestIdReused             the request_id was used before, for another request
    x RequestIdBurned             the ids taken under the request_id may not be given any more
    x PrefixInUse                 another live node holds the prefix
    x StoreRefused                the store refuses until an operator acts; a retry does not help
    x StoreWentBackwards          the store is older than what the server saw before
    x DocIdTimestampRefused       no start timestamp for document ids can be claimed
    x InternalError               a fault of the server
    x ProtocolError               a reply that breaks the service's contract; nothing of it was given out
    x Unauthenticated             the server does not know who this is
    x PermissionDenied            who this is may not do that
    * Unavailable                 the same call may succeed later
        x StoreUnavailable        the server's store is down or too slow
        x ServerDraining          the server is stopping
        x QuotaExceeded           more was asked for than this caller, or the sequence, has in a second
        x SequenceAheadOfClock    a sequence of timestamps has run too far ahead of the clock
        x ServerUnreachable       no answer: no server there, or the connection broke
    x DeadlineExceeded            no answer in time
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import ClassVar, Protocol, cast

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from idalloc._core.tls_errors import tls_error_of

DOMAIN = "idalloc"
DETAILS_KEY = "grpc-status-details-bin"


class IdallocError(Exception):
    """A call that failed.

    Attributes:
        code: The gRPC status.
        reason: Which error it is: a value of ``idalloc.v1.ErrorReason`` without its prefix, as in
            ``SEQUENCE_EXHAUSTED``; of an error that did not come from the service, ``SERVER_UNREACHABLE`` or the
            name of the status.
        metadata: The values that the message speaks of, each under its own name.
        retry_after: After how many seconds the same call may succeed; None where the server did not say.
    """

    default_reason: ClassVar[str] = "UNKNOWN"
    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init__(
        self,
        message: str = "",
        *,
        code: grpc.StatusCode | None = None,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class InvalidRequest(IdallocError):
    """A field of the request breaks its rule. Nothing was taken."""

    default_reason = "INVALID_REQUEST"
    default_code = grpc.StatusCode.INVALID_ARGUMENT

    @property
    def field(self) -> str:
        """The field's name on the wire; empty where the server did not say."""
        return self.metadata.get("field", "")


class SequenceNotFound(IdallocError):
    """The sequence does not exist, and the server does not create sequences on first use."""

    default_reason = "SEQUENCE_NOT_FOUND"
    default_code = grpc.StatusCode.NOT_FOUND


class SequenceExhausted(IdallocError):
    """More ids were asked for than the sequence has left. Nothing was taken; what is left can still be had."""

    default_reason = "SEQUENCE_EXHAUSTED"
    default_code = grpc.StatusCode.OUT_OF_RANGE

    @property
    def remaining(self) -> int:
        """How many ids the server that answered can still give."""
        return _count(self.metadata, "remaining")

    @property
    def largest_range(self) -> int:
        """How many of them in one range."""
        return _count(self.metadata, "largest_range")


class SequenceInvalid(IdallocError):
    """The sequence's row in the store cannot be counted on."""

    default_reason = "SEQUENCE_INVALID"
    default_code = grpc.StatusCode.FAILED_PRECONDITION


class TooManySequences(IdallocError):
    """The server process serves as many sequences as its setting max_sequences allows. Nothing was done."""

    default_reason = "TOO_MANY_SEQUENCES"
    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class SequenceExists(IdallocError):
    """A sequence of that name exists."""

    default_reason = "SEQUENCE_EXISTS"
    default_code = grpc.StatusCode.ALREADY_EXISTS


class SequenceChanged(IdallocError):
    """The sequence was changed since the etag was read, or while it was to be changed. Read it again."""

    default_reason = "SEQUENCE_CHANGED"
    default_code = grpc.StatusCode.ABORTED

    @property
    def etag(self) -> str:
        """The present one; empty where the server did not say."""
        return self.metadata.get("etag", "")


class RequestIdReused(IdallocError):
    """The request_id was used before, for another request. Nothing was done."""

    default_reason = "REQUEST_ID_REUSED"
    default_code = grpc.StatusCode.ALREADY_EXISTS


class RequestIdBurned(IdallocError):
    """The ids that an earlier call with this request_id took may not be given any more.

    Where the answer to that call came, its ids are its caller's. Where it was lost they are burned: take others, under
    another request_id. ``metadata`` has their ``first_id`` and ``last_id``.
    """

    default_reason = "REQUEST_ID_BURNED"
    default_code = grpc.StatusCode.ABORTED


class PrefixInUse(IdallocError):
    """Another live node holds the prefix, and the server refuses to share it. Nothing was changed."""

    default_reason = "PREFIX_IN_USE"
    default_code = grpc.StatusCode.FAILED_PRECONDITION


class StoreRefused(IdallocError):
    """The server's store refuses the statement until an operator acts. Do not retry; the message names the next step.

    ``metadata`` has the store's own ``code`` and ``http_status``, where it gave one.
    """

    default_reason = "STORE_REFUSED"
    default_code = grpc.StatusCode.FAILED_PRECONDITION


class StoreWentBackwards(IdallocError):
    """The store is behind what the server saw before: it was restored from an older copy, or lost data."""

    default_reason = "STORE_WENT_BACKWARDS"
    default_code = grpc.StatusCode.FAILED_PRECONDITION


class DocIdTimestampRefused(IdallocError):
    """No start timestamp for document ids can be claimed."""

    default_reason = "DOC_ID_TIMESTAMP_REFUSED"
    default_code = grpc.StatusCode.FAILED_PRECONDITION


class InternalError(IdallocError):
    """A fault of the server itself; its log says more."""

    default_reason = "INTERNAL"
    default_code = grpc.StatusCode.INTERNAL


class ProtocolError(IdallocError):
    """A reply that breaks the service's contract, such as ids that were not asked for, or a negative duration.

    Nothing of it was given out, or written to the log of issued ids; what the server took for it is a gap. It is not
    tried again: the server, or something before it, is at fault or is no idalloc. The message names the reply's
    message and field, the value, and what was expected. ``metadata`` has the field.
    """

    default_reason = "PROTOCOL_ERROR"
    default_code = grpc.StatusCode.INTERNAL


class Unauthenticated(IdallocError):
    """The server does not know who this is: no token or certificate came with the call, or none that it knows."""

    default_reason = "UNAUTHENTICATED"
    default_code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(IdallocError):
    """The server knows who this is, and does not let it do that. ``metadata`` has the identity, role and sequence."""

    default_reason = "PERMISSION_DENIED"
    default_code = grpc.StatusCode.PERMISSION_DENIED


class Unavailable(IdallocError):
    """The same call may succeed later. What it may have taken meanwhile is never issued to anyone else."""

    default_reason = "UNAVAILABLE"
    default_code = grpc.StatusCode.UNAVAILABLE


class StoreUnavailable(Unavailable):
    """The server's store is down, too slow, or refused the statement for now."""

    default_reason = "STORE_UNAVAILABLE"


class ServerDraining(Unavailable):
    """The server is stopping; another one, or this one after its restart, serves the call."""

    default_reason = "SERVER_DRAINING"


class QuotaExceeded(Unavailable):
    """More was asked for than this caller, or the sequence, has in a second. Nothing was taken.

    ``retry_after`` says when the same call may succeed. Streams, and ``ids()``, wait for that by themselves.
    """

    default_reason = "QUOTA_EXCEEDED"
    default_code = grpc.StatusCode.RESOURCE_EXHAUSTED


class SequenceAheadOfClock(Unavailable):
    """A sequence of timestamps has run ahead of the clock by more than the server allows."""

    default_reason = "SEQUENCE_AHEAD_OF_CLOCK"


class ServerUnreachable(Unavailable):
    """No answer from the service: no server listens there, or the connection broke, or TLS failed.

    In the last case ``metadata`` has under ``tls`` why: ``untrusted`` (the server's certificate), ``expired``,
    ``name`` (it has other ones), ``plaintext`` (the server speaks no TLS), ``closed`` (it ended the connection at
    once: perhaps it speaks TLS only, or wants another certificate), ``refused`` (the client's certificate), or
    ``unusable`` (the client's credentials).
    """

    default_reason = "SERVER_UNREACHABLE"


class DeadlineExceeded(IdallocError):
    """No answer in time. Ids may have been taken for the call; they are never issued to anyone else."""

    default_reason = "DEADLINE_EXCEEDED"
    default_code = grpc.StatusCode.DEADLINE_EXCEEDED


_BY_REASON: dict[str, type[IdallocError]] = {
    kind.default_reason: kind
    for kind in (
        InvalidRequest,
        SequenceNotFound,
        SequenceExhausted,
        SequenceInvalid,
        StoreUnavailable,
        StoreRefused,
        StoreWentBackwards,
        ServerDraining,
        DocIdTimestampRefused,
        InternalError,
        SequenceExists,
        SequenceChanged,
        SequenceAheadOfClock,
        TooManySequences,
        RequestIdReused,
        RequestIdBurned,
        PrefixInUse,
        Unauthenticated,
        PermissionDenied,
        QuotaExceeded,
    )
}

_BY_CODE: dict[grpc.StatusCode, type[IdallocError]] = {
    grpc.StatusCode.UNAVAILABLE: ServerUnreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,  # of something between here and the service
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}
_NO_ANSWER = (ServerUnreachable, DeadlineExceeded)


# The most seconds that a protobuf Duration may have: ten thousand years.
_LONGEST_DURATION = 315_576_000_000
# What gRPC says of a reply that is no message of protobuf.
_UNREADABLE = "Exception deserializing response!"


def protocol_error(reply: Message, field: str, found: str, expected: str) -> ProtocolError:
    """Makes the error for a reply that breaks the contract.

    Args:
        reply: The reply, or the detail of an error.
        field: The path of the field that is wrong.
        found: What is wrong, with the verb, such as ``is 0``.
        expected: What was expected.
    """
    return ProtocolError(f"{type(reply).__name__}.{field} {found}; expected {expected}", metadata={"field": field})


def check_duration(reply: Message, field: str, duration: Duration, longest: int) -> None:
    """Checks that a duration is between 0 and so many seconds.

    Raises:
        ProtocolError: It is not.
    """
    seconds, nanos = duration.seconds, duration.nanos
    if not (0 <= seconds <= longest and 0 <= nanos < 10**9):
        found = f"is {seconds} s and {nanos} ns" if nanos else f"is {seconds} s"
        raise protocol_error(reply, field, found, f"0 to {longest} s")


class FailedCall(Protocol):
    """What an error of grpc and one of grpc.aio have in common."""

    def code(self) -> grpc.StatusCode:
        """The status."""

    def details(self) -> str | None:
        """The message."""

    def trailing_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """What the server sent at the end."""


@contextmanager
def translated(target: str) -> Iterator[None]:
    """Raises gRPC's errors, of calls to a target, as the service's."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, target) from error


def from_rpc_error(error: grpc.RpcError, target: str) -> IdallocError:
    """Turns gRPC's error, of a call to a target, into the one that its details name."""
    call = cast(FailedCall, error)
    code, message = call.code(), call.details() or ""
    try:
        info, retry_after = _details(call.trailing_metadata())
    except ProtocolError as broken_details:
        return ProtocolError(f"{broken_details}; the error is {code.name}: {message}", metadata=broken_details.metadata)
    if info is None:
        if message == _UNREADABLE:
            return ProtocolError(f"the reply of {target} cannot be read; expected a message of protobuf")
        kind = _BY_CODE.get(code, IdallocError)
        reason = None if code in _BY_CODE else code.name
        if kind in _NO_ANSWER:
            if found := tls_error_of(message):
                return kind(
                    f"no answer from {target}: {found.told} ({message})", code=code, metadata={"tls": found.kind}
                )
            message = f"no answer from {target}: {message}"
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            message = f"no such call at {target}, which may be no idalloc, or an older one: {message}"
        return kind(message, code=code, reason=reason, retry_after=retry_after)
    kind = _BY_REASON.get(info.reason, Unavailable if code is grpc.StatusCode.UNAVAILABLE else IdallocError)
    return kind(message, code=code, reason=info.reason, metadata=info.metadata, retry_after=retry_after)


def _details(
    trailers: Iterable[tuple[str, str | bytes]] | None,
) -> tuple[error_details_pb2.ErrorInfo | None, float | None]:
    """The service's ErrorInfo and the seconds of RetryInfo, as far as they are there and can be read."""
    info, retry_after = None, None
    for key, value in trailers or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        for detail in _status(value).details:
            found, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            with suppress(DecodeError):  # as in _status
                if detail.Unpack(found) and found.domain == DOMAIN:
                    info = found
                elif detail.Unpack(retry):
                    check_duration(retry, "retry_delay", retry.retry_delay, _LONGEST_DURATION)
                    retry_after = retry.retry_delay.ToTimedelta().total_seconds()
    return info, retry_after


def _status(value: bytes) -> status_pb2.Status:
    try:
        return status_pb2.Status.FromString(value)
    except DecodeError:  # a proxy's own idea of these bytes must not hide the error itself
        return status_pb2.Status()


def _count(metadata: Mapping[str, str], name: str) -> int:
    text = metadata.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0  # below 2^63
