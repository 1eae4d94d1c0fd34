"""The error details of a failed call, read as any client would."""

from dataclasses import dataclass

import grpc
from google.rpc import error_details_pb2, status_pb2

# The text of grpc.aio's own error if a call with a stream of requests ends while it writes one.
ENDED_DURING_WRITE = "Internal error from Core"


@dataclass
class Details:
    """The error of a failed call."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo
    bad_request: error_details_pb2.BadRequest
    retry: error_details_pb2.RetryInfo
    quota: error_details_pb2.QuotaFailure
    trailers: dict[str, str | bytes]
    kinds: list[str]


def details_of(error: grpc.aio.AioRpcError) -> Details:
    """Unpack the google.rpc.Status of a failed call."""
    trailers = {str(key): value for key, value in error.trailing_metadata()}
    packed = trailers["grpc-status-details-bin"]
    assert isinstance(packed, bytes)
    status = status_pb2.Status.FromString(packed)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    found = Details(
        error.code(),
        status.message,
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
        error_details_pb2.QuotaFailure(),
        trailers,
        [detail.TypeName() for detail in status.details],
    )
    for detail in status.details:
        for message in (found.info, found.bad_request, found.retry, found.quota):
            detail.Unpack(message)
    return found
