"""Rates and percentiles of calls over the last seconds."""

from idalloc_server.telemetry.call_rates import WINDOW_SECONDS, CallRates
from idalloc_server.telemetry.metrics import CallMetrics


def test_rates_are_those_of_the_window() -> None:
    """Calls count while they are in the window; percentiles are those of the window's calls."""
    calls, rates = CallMetrics(), CallRates()
    slow = calls.method("/a.B/C")
    for _ in range(1_000):
        slow.end("OK", 1.0)
    for second in range(2 * WINDOW_SECONDS):
        rates.add(calls, float(second))
        for _ in range(20):
            slow.end("OK", 0.001)
        slow.end("UNAVAILABLE", 0.001)
    [rate] = rates.by_method()
    assert (rate["method"], rate["per_second"], rate["failed_per_second"]) == ("a.B/C", 21.0, 1.0)
    assert 0.9 <= rate["p50_ms"] <= 1.1
    assert 0.9 <= rate["p99_ms"] <= 1.1


def test_a_method_without_calls_in_the_window_has_no_percentiles() -> None:
    """A method called before the window is listed with 0; one never called is not listed."""
    calls, rates = CallMetrics(), CallRates()
    calls.method("/a.B/Never")
    calls.method("/a.B/C").end("OK", 1.0)
    rates.add(calls, 1.0)
    rates.add(calls, 2.0)
    [rate] = rates.by_method()
    assert rate == {"method": "a.B/C", "per_second": 0.0, "failed_per_second": 0.0, "p50_ms": None, "p99_ms": None}
