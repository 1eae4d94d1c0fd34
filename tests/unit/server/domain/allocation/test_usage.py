"""The rate at which ids are issued."""

import pytest

from idalloc_server.domain.allocation.usage import MARK_SECONDS, MIN_SECONDS, WINDOW_SECONDS, RecentUse

START = 1_000.0


def use(recent: RecentUse, a_second: int, start: float, seconds: int) -> float:
    """Add ids once a second, issued evenly, as a sample does; return the end."""
    for second in range(seconds):
        recent.add(a_second, start + second, start + second + 1)
    return start + seconds


@pytest.mark.parametrize("seconds", [5, 17, 59, 60, 61, 75, 600])
def test_the_rate_is_exact_from_five_seconds_on(seconds: int) -> None:
    """A steady use has its rate from MIN_SECONDS on, whatever the position in the window."""
    recent = RecentUse()
    assert recent.per_second(START) == 0.0
    assert recent.per_second(use(recent, 100, START, seconds)) == pytest.approx(100.0)


def test_a_burst_does_not_look_like_a_huge_rate() -> None:
    """Ids of the first moment count over MIN_SECONDS at least."""
    recent = RecentUse()
    recent.add(1_000, START, START)
    assert recent.per_second(START) == 1_000 / MIN_SECONDS
    assert recent.per_second(START + 50) == 1_000 / 50


def test_the_rate_follows_a_change_within_its_window() -> None:
    """A window and a mark after the use changes, the old rate has no part in it."""
    recent = RecentUse()
    at = use(recent, 5, START, 300)
    at = use(recent, 100, at, int(WINDOW_SECONDS + MARK_SECONDS))
    assert recent.per_second(at) == pytest.approx(100.0)


def test_silence_makes_the_rate_zero() -> None:
    """The rate falls while nothing is issued, and is 0 after a window."""
    recent = RecentUse()
    at = use(recent, 100, START, 100)
    assert 25 < recent.per_second(at + 30) < 75
    assert recent.per_second(at + WINDOW_SECONDS) == 0.0


def test_a_use_after_silence_begins_anew() -> None:
    """Neither the silence nor the use before counts."""
    recent = RecentUse()
    at = use(recent, 5, START, 100) + 10 * WINDOW_SECONDS
    assert recent.per_second(use(recent, 100, at, 5)) == pytest.approx(100.0)


def test_marks_are_bounded() -> None:
    """However long a counter is in use, it keeps the marks of one window."""
    recent = RecentUse()
    use(recent, 1, START, 1_000)
    assert len(recent._marks) <= WINDOW_SECONDS / MARK_SECONDS + 2
