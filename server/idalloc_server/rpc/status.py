"""The google.rpc.Status of the domain's errors."""

import math
from typing import NamedTuple

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from idalloc_server.domain.errors import InternalError, InvalidRequest, QuotaExceeded, Refusal, Retryable

DOMAIN = "idalloc"
PUSHBACK = "grpc-retry-pushback-ms"
LONGEST_PUSHBACK_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 365 * 86_400.0


class Status(NamedTuple):
    """The status and trailers of a failed call."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]
    details: status_pb2.Status  # the status with its details, which the trailers have, too


def from_refusal(refusal: Refusal) -> Status:
    """Return the status of a refused call, with the details of AIP-193."""
    details: list[Message] = []
    trailers: list[tuple[str, str | bytes]] = []
    if isinstance(refusal, InvalidRequest):
        violation = error_details_pb2.BadRequest.FieldViolation(field=refusal.field, description=refusal.rule)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(refusal, QuotaExceeded):
        quota = error_details_pb2.QuotaFailure.Violation(
            subject=refusal.subject, description=f"{refusal.quota} = {refusal.limit}"
        )
        details.append(error_details_pb2.QuotaFailure(violations=[quota]))
    if isinstance(refusal, Retryable):
        retry = error_details_pb2.RetryInfo()
        milliseconds = math.ceil(min(refusal.retry_after, LONGEST_RETRY_SECONDS) * 1000)
        retry.retry_delay.FromMilliseconds(milliseconds)
        details.append(retry)
        # gRPC's own retry policy reads this trailer, not RetryInfo. -1 forbids a retry: a caller
        # that would wait until its deadline fails at once instead.
        soon = refusal.retry_after <= LONGEST_PUSHBACK_SECONDS
        trailers.append((PUSHBACK, str(milliseconds if soon else -1)))
    info = error_details_pb2.ErrorInfo(reason=refusal.reason, domain=DOMAIN, metadata=refusal.metadata)
    code = grpc.StatusCode[refusal.status]
    message = str(refusal)
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in (info, *details):
        status.details.add().Pack(detail)
    return Status(code, message, (*trailers, ("grpc-status-details-bin", status.SerializeToString())), status)


def internal() -> Status:
    """Return the status of a call that failed by a fault of the server."""
    return from_refusal(InternalError())
