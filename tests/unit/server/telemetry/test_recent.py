"""What the status page shows of the log: the last failed calls and events."""

from collections.abc import Iterator

import pytest

from idalloc_server.telemetry import recent


@pytest.fixture(autouse=True)
def no_lines() -> Iterator[None]:
    recent.refusals.clear()
    recent.events.clear()
    yield
    recent.refusals.clear()
    recent.events.clear()


def log(event: str, level: str = "info", **fields: object) -> None:
    line = {"event": event, "level": level, "logger": "idalloc", "timestamp": "2026-01-01T00:00:00Z", **fields}
    assert recent.record(None, level, line) is line


def test_failed_calls_and_warnings_are_kept() -> None:
    """Sums of failed calls and lines of level warning are kept with their fields; no others."""
    log("calls", count=3)
    log("store_unavailable", "warning", error="away", exc_info=OSError("secret"))
    log("calls_failed", "warning", method="/a/B", code="NOT_FOUND", reason="SEQUENCE_NOT_FOUND", why="no x", count=2)
    [event], [refusal] = recent.events, recent.refusals
    assert (event["event"], event["text"]) == ("store_unavailable", "error=away, exception=OSError")
    assert {**refusal, "time": ""} == {
        "time": "",
        "method": "/a/B",
        "code": "NOT_FOUND",
        "reason": "SEQUENCE_NOT_FOUND",
        "why": "no x",
        "count": 2,
    }


def test_lines_and_texts_are_bounded() -> None:
    """Only the last lines are kept, and long texts are cut."""
    for number in range(3 * recent.MAX_KEPT):
        log("odd", "error", number=number, text="x" * 10_000)
    assert len(recent.events) == recent.MAX_KEPT
    assert recent.events[-1]["text"].startswith(f"number={3 * recent.MAX_KEPT - 1}, ")
    assert len(recent.events[-1]["text"]) == recent.MAX_TEXT + 1


def test_newest_lines_of_processes_come_first() -> None:
    """Lines of several processes are merged by time, newest first, and bounded."""
    first = [{"time": f"2026-01-01T00:00:{second:02}Z"} for second in range(0, 60, 2)]
    second = [{"time": f"2026-01-01T00:00:{second:02}Z"} for second in range(1, 60, 2)]
    merged = recent.newest(first, second)
    assert [each["time"][-3:-1] for each in merged] == [f"{second:02}" for second in range(59, 9, -1)]
