"""When a request is sent again."""

import pytest

from idalloc import IdallocError, QuotaExceeded, ServerDraining, ServerUnreachable
from idalloc._core.calls import node
from idalloc._core.pipeline import MAX_ROUNDS, Pending


@pytest.mark.parametrize("error", [ServerUnreachable(), ServerDraining()])
def test_rounds_and_backoff_are_those_of_the_page(error: IdallocError) -> None:
    """A call has five rounds; the backoff doubles, and is up to a fifth longer."""
    pending = Pending(node(), 60)
    for retry in range(MAX_ROUNDS - 1):
        assert pending.retry_delay(error, has_other=True) == 0
        assert 0.1 * 2**retry <= pending.retry_delay(error) <= 0.12 * 2**retry
    with pytest.raises(type(error)):
        pending.retry_delay(error)


def test_a_refill_outlasts_rounds_but_no_lasting_error() -> None:
    """A refill is sent again however often, at most 2.4 s later; a quota is its pool's matter."""
    pending = Pending(node(), 60, is_refill=True)
    assert 2 <= max(pending.retry_delay(ServerUnreachable()) for _ in range(50)) <= 2.4
    with pytest.raises(QuotaExceeded):
        pending.retry_delay(QuotaExceeded())
