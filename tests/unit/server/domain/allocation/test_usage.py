"""The rate at which a sequence is used."""

import pytest

from idalloc_server.domain.allocation import usage
from idalloc_server.domain.allocation.usage import WINDOW_SECONDS, UsageRates
from tests.support.fake_store import FakeClock


@pytest.mark.parametrize("step", [1, 10, -3])
def test_the_rate_covers_the_last_windows(clock: FakeClock, step: int) -> None:
    """The rate covers the last one to two windows, for any step, and falls when unused."""
    rates = UsageRates(clock)
    assert rates.per_second("s") is None
    value = 0
    for a_second in [5] * 300 + [100] * 300:
        rates.record("s", value, step)
        clock.advance(1.0)
        value += a_second * step
    rates.record("s", value, step)
    assert rates.per_second("s") == pytest.approx(100.0)
    clock.advance(9 * WINDOW_SECONDS)
    rate = rates.per_second("s")
    assert rate is not None
    assert 0 < rate < 25
    assert rates.per_second("other") is None


def test_an_unused_descending_counter_has_a_rate_of_zero(clock: FakeClock) -> None:
    """The rate of an unused counter is 0 and not -0, which would be displayed as -0.0/s."""
    rates = UsageRates(clock)
    rates.record("s", 8, -1)
    clock.advance(20.0)
    assert str(rates.per_second("s")) == "0.0"


def test_a_counter_that_moves_back_restarts_the_rate(clock: FakeClock) -> None:
    """A counter that moves back restarts the measurement."""
    rates = UsageRates(clock)
    for value in (1_000, 2_000, 5, 25):
        rates.record("s", value, 1)
        clock.advance(10.0)
    assert rates.per_second("s") == pytest.approx(1.0)


def test_a_short_span_has_no_rate(clock: FakeClock) -> None:
    """Before MIN_SECONDS of observation there is no rate."""
    rates = UsageRates(clock)
    rates.record("s", 1, 1)
    clock.advance(2.0)
    rates.record("s", 1_000, 1)
    clock.advance(7.9)
    assert rates.per_second("s") is None
    clock.advance(0.1)
    assert rates.per_second("s") == pytest.approx(99.9)


def test_the_number_of_rates_is_limited(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond MAX_RATES names, the rate with the oldest refill is evicted."""
    monkeypatch.setattr(usage, "MAX_RATES", 3)
    rates = UsageRates(clock)
    for name in ("a", "b", "c", "a", "d", "e"):
        rates.record(name, 1, 1)
    clock.advance(20.0)
    known = [name for name in "abcde" if rates.per_second(name) is not None]
    assert known == ["a", "d", "e"]
