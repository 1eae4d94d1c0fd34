"""The exceptions of both clients.

* IdallocError
    x InvalidRequest              an argument or field of the request is invalid; also a ValueError
    x SequenceNotFound            the sequence does not exist
    x SequenceExhausted           the sequence has fewer ids left than requested
    x SequenceInvalid             the sequence's row in the store is corrupt
    x TooManySequences            the server process has reached max_sequences
    x SequenceExists              a sequence of that name exists
    x SequenceChanged             the sequence was changed concurrently
    x RequestIdReused             the request_id belongs to another request
    x RequestIdBurned             the ids recorded under the request_id may no longer be issued
    x PrefixInUse                 another live node holds the prefix
    x StoreRefused                the store rejects the statement until an operator acts
    x StoreWentBackwards          the store lost data or was restored from a backup
    x DocIdTimestampRefused       no start timestamp for document ids can be claimed
    x InternalError               the server has a bug
    x ProtocolError               the reply violates the service's contract
    x Unauthenticated             the server does not know the caller
    x PermissionDenied            the caller lacks the required role
    * Unavailable                 the same call may succeed later
        x StoreUnavailable        the server's store is down or too slow
        x ServerDraining          the server is shutting down
        x QuotaExceeded           the rate limit of the caller or the sequence is exceeded
        x SequenceAheadOfClock    a timestamp sequence is too far ahead of the clock
        x ServerUnreachable       no connection to the server, or TLS failed
    x DeadlineExceeded            no answer within the timeout
    x InvalidConfig               a setting of the client is invalid; also an InvalidRequest
    x ClientClosed                the client or the stream is closed; also a RuntimeError
"""

from collections.abc import Mapping
from typing import ClassVar

import grpc

from idalloc._core.text import escaped


class IdallocError(Exception):
    r"""A call failed. Base class of all errors of the service.

    In the message, control characters and bidirectional marks of a server's text are escaped, such
    as ``\u001b``.

    Attributes:
        code: The gRPC status code.
        reason: The error's name: a value of ``idalloc.v1.ErrorReason`` without its prefix, such as
            ``SEQUENCE_EXHAUSTED``. An error that does not come from the service has
            ``SERVER_UNREACHABLE`` or the name of its status code.
        metadata: The values in the message, by name, not escaped.
        retry_after: Seconds after which the same call may succeed, at most 3,600, also if the
            server specified more; None if it did not specify it.
    """

    default_reason: ClassVar[str] = "UNKNOWN"
    default_code: ClassVar[grpc.StatusCode] = grpc.StatusCode.UNKNOWN

    def __init_subclass__(cls, *, reason: str = "", code: grpc.StatusCode | None = None) -> None:
        """Set the default reason and status code of the class, or keep its parent's."""
        super().__init_subclass__()
        cls.default_reason = reason or cls.default_reason
        cls.default_code = code or cls.default_code

    def __init__(
        self,
        message: str = "",
        *,
        code: grpc.StatusCode | None = None,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(escaped(message))
        self.code = code or self.default_code
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after


class InvalidRequest(IdallocError, ValueError, reason="INVALID_REQUEST", code=grpc.StatusCode.INVALID_ARGUMENT):
    """An argument, or a field of the request, is invalid. No ids were taken."""

    @property
    def field(self) -> str:
        """The argument's name, or the field's on the wire; empty if the server did not name it."""
        return self.metadata.get("field", "")


def invalid(field: str, problem: str) -> InvalidRequest:
    """Return the exception for an invalid argument."""
    return InvalidRequest(f"{field}: {problem}", metadata={"field": field})


class InvalidConfig(InvalidRequest, reason="INVALID_CONFIG"):
    """A setting of the client, or its file, is invalid. No call was made."""


class SequenceNotFound(IdallocError, reason="SEQUENCE_NOT_FOUND", code=grpc.StatusCode.NOT_FOUND):
    """The sequence was deleted, or it does not exist and the server creates none on first use."""


class SequenceExhausted(IdallocError, reason="SEQUENCE_EXHAUSTED", code=grpc.StatusCode.OUT_OF_RANGE):
    """The sequence has fewer ids left than requested.

    No ids were taken; a smaller request may succeed.
    """

    @property
    def remaining(self) -> int:
        """The number of ids that the server that answered can still issue."""
        return _count(self.metadata, "remaining")

    @property
    def largest_range(self) -> int:
        """The size of the largest range that this server can still issue."""
        return _count(self.metadata, "largest_range")


class SequenceInvalid(IdallocError, reason="SEQUENCE_INVALID", code=grpc.StatusCode.FAILED_PRECONDITION):
    """The sequence's row in the store is corrupt."""


class TooManySequences(IdallocError, reason="TOO_MANY_SEQUENCES", code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """The server process serves as many sequences as its setting max_sequences allows.

    Nothing was changed.
    """


class SequenceExists(IdallocError, reason="SEQUENCE_EXISTS", code=grpc.StatusCode.ALREADY_EXISTS):
    """A sequence of that name exists."""


class SequenceChanged(IdallocError, reason="SEQUENCE_CHANGED", code=grpc.StatusCode.ABORTED):
    """The sequence was changed after its etag was read, or during the update. Read it again."""

    @property
    def etag(self) -> str:
        """The current etag; empty if the server did not specify it."""
        return self.metadata.get("etag", "")


class RequestIdReused(IdallocError, reason="REQUEST_ID_REUSED", code=grpc.StatusCode.ALREADY_EXISTS):
    """The request_id was used before for another request. Nothing was changed."""


class RequestIdBurned(IdallocError, reason="REQUEST_ID_BURNED", code=grpc.StatusCode.ABORTED):
    """The ids that an earlier call with this request_id took may no longer be issued.

    If the reply to that call arrived, its ids stay valid. If the reply was lost, the ids are
    burned: allocate others under a new request_id. ``metadata`` has their ``first_id`` and
    ``last_id``.
    """


class PrefixInUse(IdallocError, reason="PREFIX_IN_USE", code=grpc.StatusCode.FAILED_PRECONDITION):
    """Another live node holds the prefix, and the server does not allow sharing it.

    Nothing was changed.
    """


class StoreRefused(IdallocError, reason="STORE_REFUSED", code=grpc.StatusCode.FAILED_PRECONDITION):
    """The server's store rejects the statement until an operator acts.

    Do not retry; the message names the next step. ``metadata`` has the store's own ``code`` and
    ``http_status``, if it returned them.
    """


class StoreWentBackwards(IdallocError, reason="STORE_WENT_BACKWARDS", code=grpc.StatusCode.FAILED_PRECONDITION):
    """The server saw a later state of the store: it was restored from a backup, or lost data."""


class DocIdTimestampRefused(IdallocError, reason="DOC_ID_TIMESTAMP_REFUSED", code=grpc.StatusCode.FAILED_PRECONDITION):
    """No start timestamp for document ids can be claimed."""


class InternalError(IdallocError, reason="INTERNAL", code=grpc.StatusCode.INTERNAL):
    """The server has a bug; its log has the details."""


class ProtocolError(IdallocError, reason="PROTOCOL_ERROR", code=grpc.StatusCode.INTERNAL):
    """The reply violates the contract, for example with ids that were not requested or came before.

    None of its ids is returned to the caller or written to the log of issued ids; they remain a
    gap. The client does not retry: the server or a proxy is faulty, or the target is not an idalloc
    server. The message names the field, its value and the expected value. ``metadata`` has the
    ``field``.
    """


class Unauthenticated(IdallocError, reason="UNAUTHENTICATED", code=grpc.StatusCode.UNAUTHENTICATED):
    """The call carries no token or client certificate, or one that the server does not know."""


class PermissionDenied(IdallocError, reason="PERMISSION_DENIED", code=grpc.StatusCode.PERMISSION_DENIED):
    """The caller lacks the required role. ``metadata`` has the identity, role and sequence."""


class Unavailable(IdallocError, reason="UNAVAILABLE", code=grpc.StatusCode.UNAVAILABLE):
    """The same call may succeed later. The ids of this one are never issued to another caller."""


class StoreUnavailable(Unavailable, reason="STORE_UNAVAILABLE"):
    """The server's store is down or too slow, or rejects the statement temporarily."""


class ServerDraining(Unavailable, reason="SERVER_DRAINING"):
    """The server is shutting down.

    Another server, or this one after its restart, serves the call.
    """


class QuotaExceeded(Unavailable, reason="QUOTA_EXCEEDED", code=grpc.StatusCode.RESOURCE_EXHAUSTED):
    """The call exceeds the rate limit of the caller or of the sequence. No ids were taken.

    The same call may succeed after ``retry_after`` seconds. Streams and ``ids()`` wait and retry by
    themselves.
    """


class SequenceAheadOfClock(Unavailable, reason="SEQUENCE_AHEAD_OF_CLOCK"):
    """A timestamp sequence is further ahead of the clock than the server allows."""


class ServerUnreachable(Unavailable, reason="SERVER_UNREACHABLE"):
    """No answer: no server listens on the target, the connection broke, or TLS failed.

    If TLS failed for a known cause, ``metadata["tls"]`` names it. The server's certificate has an
    untrusted CA (``untrusted``), has expired (``expired``), or lacks the expected name (``name``),
    or the server does not use TLS (``plaintext``). A server that closes the connection before it
    answers (``closed``) probably requires TLS, or a client certificate.
    """


class DeadlineExceeded(IdallocError, reason="DEADLINE_EXCEEDED", code=grpc.StatusCode.DEADLINE_EXCEEDED):
    """No answer within the timeout. Ids that this call took are never issued to another caller."""


class ClientClosed(IdallocError, RuntimeError, reason="CLOSED", code=grpc.StatusCode.CANCELLED):
    """The client, or the stream, is closed. No ids were returned after that."""


def _count(metadata: Mapping[str, str], name: str) -> int:
    text = metadata.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 20 else 0  # below 2^63
