"""The table of calls while the store fails: its verdicts, and what it leaves out."""

from typing import Any

import pytest

from bench import faults_table
from bench.faults import figures


def window(longest: float | None, noop: float = 0.01) -> dict[str, Any]:
    return {"calls": 100, "seconds": 6.0, "longest": longest, "p999": longest, "noop_longest": noop, "noop_p999": noop}


def section(during: float | None, after: float | None = 0.01, noop_after: float = 0.01, **changes: Any) -> str:
    row = {
        "fault": "away",
        "store_calls": 3,
        "before": window(0.1),
        "during": window(during),
        "after": window(after, noop_after),
    } | changes
    part = {"store": "SQLite", "nodes": 1, "rows": [row], "errors": {}, "findings": 0, "ids": 1234}
    return faults_table.section({"seconds": 6.0, "rounds": 2, "parts": [part], "skipped": []})


@pytest.mark.parametrize(
    ("during", "after", "met", "met_after"),
    [(0.25, 0.25, 1, 1), (0.251, 0.01, 0, 0), (0.01, 0.251, 1, 0), (None, 0.01, 0, 0)],
)
def test_the_longest_call_counts(during: float | None, after: float, met: int, met_after: int) -> None:
    """P10: a row meets the goal if no call took over 250 ms during the fault, whatever follows."""
    expected = f"250 ms during the fault: {met} of 1 rows; during it and after it: {met_after} of 1."
    assert expected in section(during, after)


def test_the_no_op_servers_calls_are_beside() -> None:
    """The same counts of the no-op server show what the machine's load does without a store."""
    assert "which has no store: 1 of 1 rows; 1 of 1." in section(0.4)
    assert "which has no store: 1 of 1 rows; 0 of 1." in section(0.4, noop_after=0.5)


@pytest.mark.parametrize(("during", "met"), [(0.2, 1), (0.201, 0)])
def test_p999_is_compared_with_the_window_before(during: float, met: int) -> None:
    """The goal for p99.9 is twice the one before the fault."""
    assert f"2 times that before: {met} of 1 rows; of the no-op server, 1 of 1." in section(during)


def test_the_start_of_a_killed_node_is_beside_the_table() -> None:
    """The calls while a killed node starts are beside the table, and count for no goal."""
    text = section(0.01, recovering=window(9.0) | {"seconds": 58.0})
    assert "killed node started (58 s, not in the table), the longest of 100 calls took 9,000 ms" in text
    assert "250 ms during the fault: 1 of 1 rows" in text


def test_a_call_counts_for_the_window_that_it_began_in() -> None:
    """A call that begins during a fault and ends after it counts for the fault."""
    calls = [(5, 3_000_000_000), (10, 1_000_000), (20, 2_000_000)]
    assert figures(calls, [(0, 10)]) == {"calls": 1, "seconds": 1e-8, "longest": 3.0, "p999": 3.0}
    assert figures(calls, [(10, 30)])["longest"] == 0.002
    assert figures(calls, [(30, 40)])["longest"] is None


def test_the_windows_of_all_rounds_are_one() -> None:
    """The calls of a fault's windows in several rounds give one row of figures."""
    calls = [(5, 3_000_000_000), (15, 1_000_000), (25, 2_000_000)]
    assert figures(calls, [(0, 10), (20, 30)]) == {"calls": 2, "seconds": 2e-8, "longest": 3.0, "p999": 3.0}
