"""Translation of gRPC's errors into the client's exceptions."""

import pickle
import traceback
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

import idalloc
from idalloc._core.rpc_errors import from_rpc_error, from_status, translate_rpc_errors
from idalloc._core.text import escaped
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

    def __str__(self) -> str:
        return f"<{self._code}: {self._details}>"


REASONS = [name.removeprefix("ERROR_REASON_") for name, number in ErrorReason.items() if number]


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_an_exception_class(reason: str) -> None:
    """Each reason in error_reason.proto is raised as an exception class of its own."""
    error = from_rpc_error(Failure(grpc.StatusCode.ABORTED, "why", trailers(reason, grpc.StatusCode.ABORTED)), "here:1")
    assert type(error).default_reason == reason
    assert type(error) is not idalloc.IdallocError
    assert isinstance(error, idalloc.IdallocError)
    assert (error.reason, error.code, str(error)) == (reason, grpc.StatusCode.ABORTED, "why")


@pytest.mark.parametrize("kind", idalloc._core.rpc_errors._BY_REASON.values())
def test_each_exception_class_has_a_reason_of_the_proto(kind: type[idalloc.IdallocError]) -> None:
    """Each exception class of a reason is public, and its reason is in error_reason.proto."""
    assert kind.default_reason in REASONS
    assert getattr(idalloc, kind.__name__) is kind


def test_error_details_are_attributes_of_the_exception() -> None:
    """The exception has the metadata of ErrorInfo and the delay of RetryInfo."""
    details = trailers("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, 1.5, remaining=7, largest_range=5)
    error = from_rpc_error(Failure(grpc.StatusCode.OUT_OF_RANGE, "7 left", details), "here:1")
    assert isinstance(error, idalloc.SequenceExhausted)
    assert (error.remaining, error.largest_range, error.retry_after) == (7, 5, 1.5)
    assert error.metadata == {"remaining": "7", "largest_range": "5"}


def test_invalid_counts_in_metadata_read_as_0() -> None:
    """A count that is not a decimal below 2^63 is 0: no server can make a property raise."""
    details = trailers("SEQUENCE_EXHAUSTED", grpc.StatusCode.OUT_OF_RANGE, remaining="9" * 5000, largest_range="\u00b2")
    error = from_rpc_error(Failure(grpc.StatusCode.OUT_OF_RANGE, "none left", details), "here:1")
    assert isinstance(error, idalloc.SequenceExhausted)
    assert (error.remaining, error.largest_range) == (0, 0)


def test_without_details_the_status_selects_the_exception() -> None:
    """Without ErrorInfo, the status code selects the exception."""
    unreachable = from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, "Connection refused", None), "here:1")
    assert isinstance(unreachable, idalloc.ServerUnreachable)
    assert unreachable.reason == "SERVER_UNREACHABLE"
    assert str(unreachable) == "no answer from here:1: Connection refused"
    late = from_rpc_error(Failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"), "here:1")
    assert isinstance(late, idalloc.DeadlineExceeded)
    other = from_rpc_error(Failure(grpc.StatusCode.DATA_LOSS, None), "here:1")
    assert type(other) is idalloc.IdallocError
    assert (other.reason, str(other), other.retry_after) == ("DATA_LOSS", "", None)


def test_a_proxys_rejection_has_the_services_exception() -> None:
    """A proxy's UNAUTHENTICATED or PERMISSION_DENIED raises the same exception as the service's."""
    unknown = from_rpc_error(Failure(grpc.StatusCode.UNAUTHENTICATED, "no token"), "here:1")
    assert (type(unknown), unknown.reason, str(unknown)) == (idalloc.Unauthenticated, "UNAUTHENTICATED", "no token")
    denied = from_rpc_error(Failure(grpc.StatusCode.PERMISSION_DENIED, "not you"), "here:1")
    assert (type(denied), denied.reason, str(denied)) == (idalloc.PermissionDenied, "PERMISSION_DENIED", "not you")


def test_quota_exceeded_has_retry_after() -> None:
    """QuotaExceeded is Unavailable with retry_after; other RESOURCE_EXHAUSTED errors are not."""
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    error = from_rpc_error(Failure(code, "slow down", trailers("QUOTA_EXCEEDED", code, 1.5)), "here:1")
    assert isinstance(error, idalloc.QuotaExceeded)
    assert isinstance(error, idalloc.Unavailable)
    assert (error.retry_after, error.code) == (1.5, code)
    assert type(from_rpc_error(Failure(code, "message too large"), "here:1")) is idalloc.IdallocError


@pytest.mark.parametrize(
    ("seconds", "shown"), [(3_599.5, 3_599.5), (3_600.0, 3_600.0), (86_400.0, 3_600.0), (3e11, 3_600.0)]
)
def test_retry_after_is_at_most_an_hour(seconds: float, shown: float) -> None:
    """A program that waits for ``retry_after`` does not wait for years because a server says so."""
    code = grpc.StatusCode.UNAVAILABLE
    details = trailers("QUOTA_EXCEEDED", code, seconds)
    error = from_rpc_error(Failure(code, "slow down", details), "here:1")
    assert error.retry_after == shown
    [(_, packed)] = details
    assert from_status(status_pb2.Status.FromString(packed)).retry_after == shown


HOSTILE = "a\x1b[2J\x9b1m\r\nPROVED\u202etxt\u2028\x7f"
SHOWN = r"a\u001b[2J\u009b1m\u000d\u000aPROVED\u202etxt\u2028\u007f"


def hostile_failures() -> dict[str, Failure]:
    aborted, broken = grpc.StatusCode.ABORTED, grpc.StatusCode.UNAVAILABLE
    invalid = trailers("QUOTA_EXCEEDED", aborted, -5)
    return {
        "of the service": Failure(aborted, HOSTILE, trailers("SEQUENCE_CHANGED", aborted)),
        "without details": Failure(broken, HOSTILE),
        "of TLS": Failure(broken, f"Ssl handshake failed: CERTIFICATE_VERIFY_FAILED {HOSTILE}"),
        "unimplemented": Failure(grpc.StatusCode.UNIMPLEMENTED, HOSTILE),
        "with invalid details": Failure(aborted, HOSTILE, invalid),
    }


@pytest.mark.parametrize("name", hostile_failures())
def test_control_characters_of_servers_are_escaped(name: str) -> None:
    """A server's text cannot control a terminal through an exception, its traceback or a log."""
    failure = hostile_failures()[name]
    with pytest.raises(idalloc.IdallocError) as raised, translate_rpc_errors("here:1"):
        raise failure
    error = raised.value
    assert SHOWN in str(error)
    for text in (str(error), repr(error), "".join(traceback.format_exception(error)).replace("\n", "")):
        assert escaped(text) == text
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_control_characters_of_batches_are_escaped() -> None:
    """The same holds for the error of one request of a batch; metadata keeps its values."""
    status = status_pb2.Status(code=grpc.StatusCode.ABORTED.value[0], message=HOSTILE)
    info = error_details_pb2.ErrorInfo(reason="SEQUENCE_CHANGED", domain="idalloc", metadata={"sequence": HOSTILE})
    status.details.add().Pack(info)
    error = from_status(status)
    assert (str(error), error.metadata) == (SHOWN, {"sequence": HOSTILE})


def test_unimplemented_names_the_target() -> None:
    """UNIMPLEMENTED names the target and the likely causes."""
    error = from_rpc_error(Failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), "here:1")
    assert (type(error), error.reason) == (idalloc.IdallocError, "UNIMPLEMENTED")
    assert str(error) == (
        "here:1 does not implement this method: upgrade its idalloc, or check the target: Method not found!"
    )


def test_unknown_reasons_are_kept() -> None:
    """A reason of a newer server is kept, and is Unavailable only if the status code is."""
    code = grpc.StatusCode.UNAVAILABLE
    error = from_rpc_error(Failure(code, "?", trailers("MOON_TOO_CLOSE", code)), "here:1")
    assert type(error) is idalloc.Unavailable
    assert error.reason == "MOON_TOO_CLOSE"
    code = grpc.StatusCode.ABORTED
    assert type(from_rpc_error(Failure(code, "?", trailers("X", code)), "here:1")) is idalloc.IdallocError


def test_details_of_another_domain_are_ignored() -> None:
    """Error details of another domain, or that cannot be parsed, are ignored."""
    code = grpc.StatusCode.UNAVAILABLE
    [(key, value)] = trailers("STORE_UNAVAILABLE", code)
    foreign = Failure(code, "?", [(key, value.replace(b"idalloc", b"another"))])
    assert type(from_rpc_error(foreign, "here:1")) is idalloc.ServerUnreachable
    garbage = Failure(code, "?", [(key, b"\xff\xff"), ("other", "text")])
    assert type(from_rpc_error(garbage, "here:1")) is idalloc.ServerUnreachable


def test_exceptions_can_be_pickled() -> None:
    """Pickling an exception keeps its type, message and attributes."""
    error = idalloc.SequenceExhausted("7 left", metadata={"remaining": "7"}, retry_after=2.0)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is idalloc.SequenceExhausted
    assert (str(copy), copy.remaining, copy.retry_after, copy.code) == ("7 left", 7, 2.0, error.code)


@pytest.mark.parametrize("kind", [error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo])
def test_unparsable_details_hide_no_error(kind: type[Message]) -> None:
    """A detail that cannot be parsed is ignored, and the status code selects the exception."""
    status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0])
    status.details.add().Pack(kind())
    status.details[0].value = b"\xff\xff"
    details = (("grpc-status-details-bin", status.SerializeToString()),)
    error = from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, "gone", details), "here:1")
    assert isinstance(error, idalloc.ServerUnreachable)
    assert "gone" in str(error)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("certificate has expired", "expired"),
        ("unable to get local issuer certificate", "untrusted"),
        ("self signed certificate in certificate chain", "untrusted"),
        ("certificate signature failure", "untrusted"),
        ("certificate is not yet valid", None),
        ("unsupported certificate purpose", None),
    ],
)
def test_only_known_tls_failures_are_named(problem: str, kind: str | None) -> None:
    """A certificate that is refused for another reason than its CA is not called untrusted."""
    message = f"failed to connect to all addresses; last error: OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: {problem}"
    error = from_rpc_error(Failure(grpc.StatusCode.UNAVAILABLE, message, None), "here:1")
    assert error.metadata.get("tls") == kind
    assert problem in str(error)
