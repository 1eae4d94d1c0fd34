"""When a broken stream is retried, and when its error is raised."""

import pytest

from idalloc import (
    InternalError,
    PermissionDenied,
    ProtocolError,
    QuotaExceeded,
    SequenceExhausted,
    ServerDraining,
    ServerUnreachable,
    StoreUnavailable,
    Unauthenticated,
)
from idalloc._core.resumption import MAX_ATTEMPTS, MAX_BACKOFF, MAX_FIRST_ATTEMPTS, MAX_RETRY_AFTER, Stream
from idalloc.v1 import id_allocator_pb2 as pb


def stream_of(total: int, timeout: float | None) -> Stream[object]:
    return Stream(pb.StreamRangesRequest(total_id_count=total), str, timeout)


def test_retry_delays_grow_to_a_limit() -> None:
    """Retry delays grow up to MAX_BACKOFF, and together last as long as a server's restart."""
    stream = stream_of(10, None)
    stream.received(1)
    delays = [stream.retry_delay(ServerUnreachable()) for _ in range(MAX_ATTEMPTS - 1)]
    assert 0.1 <= delays[0] <= 0.15
    assert delays[3] >= 4 * delays[0]
    assert MAX_BACKOFF <= delays[-1] <= 1.5 * MAX_BACKOFF
    assert 30 <= sum(delays) <= 50  # long enough for a server to restart


def test_an_unreachable_server_is_an_error_within_seconds() -> None:
    """A stream that never reached a server raises after 3 to 5 seconds."""
    stream = stream_of(10, None)
    delays = [stream.retry_delay(ServerUnreachable()) for _ in range(MAX_FIRST_ATTEMPTS - 1)]
    assert 3 <= sum(delays) <= 5  # as long as a channel may wait before it connects again
    with pytest.raises(ServerUnreachable):
        stream.retry_delay(ServerUnreachable())


def test_the_last_attempt_without_progress_raises() -> None:
    """The number of attempts is limited, and progress resets it."""
    stream = stream_of(10, None)
    for _ in range(MAX_ATTEMPTS - 1):
        stream.retry_delay(ServerDraining())
    stream.received(1)
    for _ in range(MAX_ATTEMPTS - 1):
        stream.retry_delay(ServerDraining())
    with pytest.raises(ServerDraining):
        stream.retry_delay(ServerDraining())


def test_retry_after_is_the_shortest_delay() -> None:
    """The delay is at least the server's retry_after."""
    delay = stream_of(10, None).retry_delay(StoreUnavailable(retry_after=3.0))
    assert 3.0 <= delay <= 4.5


def test_a_stream_waits_for_a_quota_up_to_a_limit() -> None:
    """A stream waits for a quota up to MAX_RETRY_AFTER; beyond it, QuotaExceeded is raised."""
    stream = stream_of(10, None)
    assert 20 <= stream.retry_delay(QuotaExceeded(retry_after=20.0)) <= 30
    with pytest.raises(QuotaExceeded):
        stream.retry_delay(QuotaExceeded(retry_after=MAX_RETRY_AFTER + 1))


@pytest.mark.parametrize("error", [SequenceExhausted(), InternalError(), Unauthenticated(), PermissionDenied()])
def test_permanent_errors_are_raised_at_once(error: Exception) -> None:
    """An error that a retry cannot fix is raised at once."""
    with pytest.raises(type(error)):
        stream_of(10, None).retry_delay(error)  # type: ignore[arg-type]


def test_a_delay_beyond_the_timeout_raises_the_error() -> None:
    """If the delay would pass the stream's timeout, the error is raised at once."""
    stream = stream_of(10, 0.05)
    left = stream.time_left()
    assert left is not None
    assert 0 < left <= 0.05
    with pytest.raises(ServerDraining):
        stream.retry_delay(ServerDraining())
    assert stream_of(10, None).time_left() is None


def test_an_error_after_the_last_id_is_ignored() -> None:
    """An error after the total has arrived ends the stream without an exception."""
    stream = stream_of(10, None)
    stream.received(10)
    assert stream.retry_delay(InternalError()) == 0.0


def test_a_message_after_the_last_id_is_an_error() -> None:
    """A stream that continues after its total raises ProtocolError."""
    stream = stream_of(10, None)
    stream.received(10)
    with pytest.raises(ProtocolError):
        stream.retry_delay(ProtocolError())
