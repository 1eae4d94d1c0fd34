"""From gRPC's errors to the client's."""

import pickle
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import idalloc
from idalloc._core.rpc_errors import from_rpc_error
from idalloc.v1.error_reason_pb2 import ErrorReason
from tests.support.fake_server import trailers


class Failure(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str | None, trailing: Any = ()) -> None:
        self._code, self._details, self._trailing = code, details, trailing

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailing


REASONS = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_of_the_contract_has_an_exception_of_its_own(reason: str) -> None:
    error = from_rpc_error(Failure(grpc.StatusCode.ABORTED, "why", trailers(reason, grpc.StatusCode.ABORTED)), "here:1")
    assert type(error).default_reason == reason
    assert type(error) is not idalloc.IdallocError
    assert isinstance(error, idalloc.IdallocError)
    assert (error.reason, error.code, str(error)) == (reason, grpc.StatusCode.ABORTED, "why")


@pytest.mark.parametrize("kind", idalloc._core.rpc_errors._BY_REASON.values())
def test_every_exception_names_a_reason_of_the_contract(kind: type[idalloc.IdallocError]) -> None:
    assert kind.default_reason in REASONS
    assert getattr(idalloc, kind.__name__) is kind


def test_what_the_details_say_is_on_the_exception() -> None:
    details = trailers("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, 1.5, remaining=7, largest_range=5)
    error = from_rpc_error(Failure(grpc.StatusCode.OUT_OF_RANGE, "7 left", details), "here:1")
    assert isinstance(error, idalloc.SequenceExhausted)
    assert (error.remaining, error.largest_range, error.retry_after) == (7, 5, 1.5)
    assert error.metadata == {"remaining": "7", "largest_range": "5"}


def test_a_count_of_thousands_of_digits_is_not_read() -> None:
    """A server cannot make a property of its error raise, or compute for long."""
    details = trailers("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, remaining="9" * 5000, largest_range="\u00b2")
    error = from_rpc_error(Failure(grpc.StatusCode.OUT_OF_RANGE, "none left", details), "here:1")
    assert isinstance(error, idalloc.SequenceExhausted)
    assert (error.remaining, error.largest_range) == (0, 0)


def test_without_details_the_status_decides() -> None:
    unreachable = from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, "Connection refused", None), "here:1")
    assert isinstance(unreachable, idalloc.ServerUnreachable)
    assert unreachable.reason == "SERVER_UNREACHABLE"
    assert str(unreachable) == "no answer from here:1: Connection refused"
    late = from_rpc_error(Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "here:1")
    assert isinstance(late, idalloc.DeadlineExceeded)
    other = from_rpc_error(Failure(grpc.StatusCode.DATA_LOSS, None), "here:1")
    assert type(other) is idalloc.IdallocError
    assert (other.reason, str(other), other.retry_after) == ("DATA_LOSS", "", None)


def test_who_stands_between_may_refuse_as_the_service_does() -> None:
    unknown = from_rpc_error(Failure(grpc.StatusCode.UNAUTHENTICATED, "no token"), "here:1")
    assert (type(unknown), unknown.reason, str(unknown)) == (idalloc.Unauthenticated, "UNAUTHENTICATED", "no token")
    denied = from_rpc_error(Failure(grpc.StatusCode.PERMISSION_DENIED, "not you"), "here:1")
    assert (type(denied), denied.reason, str(denied)) == (idalloc.PermissionDenied, "PERMISSION_DENIED", "not you")


def test_a_quota_says_when_to_come_again_and_is_no_broken_server() -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    error = from_rpc_error(Failure(code, "slow down", trailers("QUOTA_EXCEEDED", code, 1.5)), "here:1")
    assert isinstance(error, idalloc.QuotaExceeded)
    assert isinstance(error, idalloc.Unavailable)
    assert (error.retry_after, error.code) == (1.5, code)
    assert type(from_rpc_error(Failure(code, "message too large"), "here:1")) is idalloc.IdallocError


def test_a_server_that_does_not_know_the_call_is_named() -> None:
    error = from_rpc_error(Failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), "here:1")
    assert (type(error), error.reason) == (idalloc.IdallocError, "UNIMPLEMENTED")
    assert str(error) == (
        "here:1 does not implement this method; it may run an older idalloc or another service: Method not found!"
    )


def test_reasons_to_come_are_kept_and_can_be_tried_again_where_the_status_says_so() -> None:
    code = grpc.StatusCode.UNAVAILABLE
    error = from_rpc_error(Failure(code, "?", trailers("MOON_TOO_CLOSE", code)), "here:1")
    assert type(error) is idalloc.Unavailable
    assert error.reason == "MOON_TOO_CLOSE"
    code = grpc.StatusCode.ABORTED
    assert type(from_rpc_error(Failure(code, "?", trailers("X", code)), "here:1")) is idalloc.IdallocError


def test_details_of_others_are_not_taken_for_ours() -> None:
    code = grpc.StatusCode.UNAVAILABLE
    [(key, value)] = trailers("STORE_UNAVAILABLE", code)
    foreign = Failure(code, "?", [(key, value.replace(b"idalloc", b"another"))])
    assert type(from_rpc_error(foreign, "here:1")) is idalloc.ServerUnreachable
    garbage = Failure(code, "?", [(key, b"\xff\xff"), ("other", "text")])
    assert type(from_rpc_error(garbage, "here:1")) is idalloc.ServerUnreachable


def test_exceptions_can_be_pickled() -> None:
    error = idalloc.SequenceExhausted("7 left", metadata={"remaining": "7"}, retry_after=2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is idalloc.SequenceExhausted
    assert (str(copy), copy.remaining, copy.retry_after, copy.code) == ("7 left", 7, 2.0, error.code)


@pytest.mark.parametrize("kind", [error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo])
def test_details_that_cannot_be_read_hide_no_error(kind: type[Message]) -> None:
    """A detail of broken bytes is left out, as it may come from a proxy: the status still names the error."""
    status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0])
    status.details.add().Pack(kind())
    status.details[0].value = b"\xff\xff"
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    error = from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, "gone", details), "here:1")
    assert isinstance(error, idalloc.ServerUnreachable)
    assert "gone" in str(error)
