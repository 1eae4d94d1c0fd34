"""The rate at which ids are issued."""

import pytest

from idalloc_server.domain.allocation.issued import MIN_SECONDS, SPAN_SECONDS, WINDOW_SECONDS, RecentUse

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
    """A window and a part after the use changes, the old rate has no part in it."""
    recent = RecentUse()
    at = use(recent, 5, START, 300)
    at = use(recent, 100, at, int(WINDOW_SECONDS + SPAN_SECONDS))
    assert recent.per_second(at) == pytest.approx(100.0)


def test_silence_makes_the_rate_zero() -> None:
    """The rate falls while nothing is issued, and is 0 after a window."""
    recent = RecentUse()
    at = use(recent, 100, START, 100)
    assert 25 < recent.per_second(at + 30) < 75
    assert recent.per_second(at + WINDOW_SECONDS) == 0.0


@pytest.mark.parametrize(("pause", "in_window"), [(30, 2), (25, 3), (59, 2), (61, 1)])
def test_bursts_count_for_one_window(pause: int, in_window: int) -> None:
    """Ids that come in bursts count for a minute each, and no longer."""
    recent = RecentUse()
    for turn in range(10):
        recent.add(600, START + turn * pause, START + turn * pause + 0.5)
    assert recent.per_second(START + 9 * pause + 1) == pytest.approx(
        10.0 * in_window if pause < 60 else 600 / MIN_SECONDS
    )


def test_a_use_after_silence_starts_again() -> None:
    """Neither the silence nor the use before counts."""
    recent = RecentUse()
    at = use(recent, 5, START, 100) + 10 * WINDOW_SECONDS
    assert recent.per_second(use(recent, 100, at, 5)) == pytest.approx(100.0)


def test_parts_are_bounded() -> None:
    """However long a counter is in use, it keeps the parts of one window."""
    recent = RecentUse()
    use(recent, 1, START, 1_000)
    assert len(recent._spans) <= WINDOW_SECONDS / SPAN_SECONDS + 2
