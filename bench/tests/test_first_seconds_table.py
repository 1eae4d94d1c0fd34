"""The table of calls while the store is away soon after the first call."""

from typing import Any

import pytest

from bench import first_seconds_table
from tests.support.faults.steady_callers import KINDS


def section(longest: float | None, errors: int = 0, restarted: bool = False) -> str:
    kinds: dict[str, dict[str, Any]] = {kind: {"calls": 100, "errors": 0, "longest": 0.01} for kind in KINDS}
    kinds["10 ids"] = {"calls": 1000, "errors": errors, "longest": longest}
    row: dict[str, Any] = {"store": "SQLite", "nodes": 1, "used": 5.0, "restarted": restarted, "kinds": kinds}
    row |= {"noop_longest": 0.005, "ids": 1234, "findings": 0}
    return first_seconds_table.section({"reserve": 90.0, "rows": [row], "skipped": []})


@pytest.mark.parametrize(("longest", "met"), [(0.25, 5), (0.251, 4), (None, 4)])
def test_each_kind_of_calls_counts(longest: float | None, met: int) -> None:
    """P10: a kind meets the goal only if it had calls, and none took longer than 250 ms."""
    assert f"No call took longer than 250 ms: {met} of 5 kinds of calls." in section(longest)


@pytest.mark.parametrize(("errors", "met"), [(0, 1), (1, 0)])
def test_errors_are_counted(errors: int, met: int) -> None:
    """P10: a row meets the goal only without errors."""
    text = section(0.01, errors)
    assert f"Without errors: {met} of 1 rows." in text
    assert f"| SQLite | 1 | 5 | 1,400 | {errors} | 10 | 10 |" in text


def test_a_restart_is_named() -> None:
    """The row of a restarted node says so."""
    assert "| SQLite | 1 | 5, restarted |" in section(0.01, restarted=True)
