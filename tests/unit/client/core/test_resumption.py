"""When a broken stream is asked for again, and when its error is its caller's."""

import grpc
import pytest

from idalloc import (
    IdallocError,
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
from idalloc._core.resumption import MAX_ATTEMPTS, MAX_BACKOFF, MAX_FIRST_ATTEMPTS, MAX_RETRY_AFTER, Resumption


def test_pauses_grow_and_are_bounded() -> None:
    stream = Resumption(10, None)
    stream.received(1)
    pauses = [stream.retry_delay(ServerUnreachable()) for _ in range(MAX_ATTEMPTS - 1)]
    assert 0.1 <= pauses[0] <= 0.15
    assert pauses[3] >= 4 * pauses[0]
    assert MAX_BACKOFF <= pauses[-1] <= 1.5 * MAX_BACKOFF
    assert 30 <= sum(pauses) <= 50  # long enough for a server to start again


def test_where_no_server_ever_answered_it_is_said_soon() -> None:
    stream = Resumption(10, None)
    pauses = [stream.retry_delay(ServerUnreachable()) for _ in range(MAX_FIRST_ATTEMPTS - 1)]
    assert 3 <= sum(pauses) <= 5  # as long as a channel may wait before it connects again
    with pytest.raises(ServerUnreachable):
        stream.retry_delay(ServerUnreachable())


def test_a_stream_never_begun_is_asked_for_again() -> None:
    """CANCELLED before an attempt's first message is of a server that stops; later, it is raised."""
    cancelled = IdallocError(code=grpc.StatusCode.CANCELLED)
    stream = Resumption(10, None)
    for _ in range(MAX_FIRST_ATTEMPTS - 1):
        stream.retry_delay(cancelled)
    with pytest.raises(IdallocError):
        stream.retry_delay(cancelled)
    stream.received(1)
    stream.retry_delay(ServerDraining())
    stream.retry_delay(cancelled)
    stream.received(1)
    with pytest.raises(IdallocError):
        stream.retry_delay(cancelled)


def test_the_error_is_raised_after_the_last_attempt_without_progress() -> None:
    stream = Resumption(10, None)
    for _ in range(MAX_ATTEMPTS - 1):
        stream.retry_delay(ServerDraining())
    stream.received(1)
    for _ in range(MAX_ATTEMPTS - 1):
        stream.retry_delay(ServerDraining())
    with pytest.raises(ServerDraining):
        stream.retry_delay(ServerDraining())


def test_the_server_says_how_long_at_least() -> None:
    pause = Resumption(10, None).retry_delay(StoreUnavailable(retry_after=3.0))
    assert 3.0 <= pause <= 4.5


def test_a_quota_is_waited_for_unless_it_takes_too_long() -> None:
    stream = Resumption(10, None)
    assert 20 <= stream.retry_delay(QuotaExceeded(retry_after=20.0)) <= 30
    with pytest.raises(QuotaExceeded):
        stream.retry_delay(QuotaExceeded(retry_after=MAX_RETRY_AFTER + 1))


@pytest.mark.parametrize("error", [SequenceExhausted(), InternalError(), Unauthenticated(), PermissionDenied()])
def test_an_error_that_stays_is_raised_at_once(error: Exception) -> None:
    with pytest.raises(type(error)):
        Resumption(10, None).retry_delay(error)  # type: ignore[arg-type]


def test_nothing_is_waited_for_that_would_come_too_late() -> None:
    stream = Resumption(10, 0.05)
    left = stream.time_left()
    assert left is not None
    assert 0 < left <= 0.05
    with pytest.raises(ServerDraining):
        stream.retry_delay(ServerDraining())
    assert Resumption(10, None).time_left() is None


def test_an_error_after_the_last_id_is_none() -> None:
    stream = Resumption(10, None)
    stream.received(10)
    assert stream.retry_delay(InternalError()) == 0.0


def test_a_message_after_the_last_id_is_an_error() -> None:
    """A stream that goes on after its total is not taken for one that ended well."""
    stream = Resumption(10, None)
    stream.received(10)
    with pytest.raises(ProtocolError):
        stream.retry_delay(ProtocolError())
