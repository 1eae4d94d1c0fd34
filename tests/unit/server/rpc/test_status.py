"""The status of a refusal."""

import pytest
from google.rpc import error_details_pb2, status_pb2

from idalloc_server.domain.errors import SequenceAheadOfClock
from idalloc_server.rpc.status import from_refusal


@pytest.mark.parametrize(("ahead", "pushback"), [(61.5, "1500"), (1e12, "-1")])
def test_long_retry_delay_forbids_grpc_retries(ahead: float, pushback: str) -> None:
    """A retry delay beyond any deadline has the pushback -1: gRPC's policy does not retry."""
    trailers = dict(from_refusal(SequenceAheadOfClock("ev", ahead, 60.0)).trailers)
    assert trailers["grpc-retry-pushback-ms"] == pushback
    details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details  # type: ignore[arg-type]
    retry = error_details_pb2.RetryInfo()
    assert [detail.Unpack(retry) for detail in details] == [False, True]
    assert retry.retry_delay.ToMilliseconds() == (1500 if pushback == "1500" else 365 * 86_400_000)
