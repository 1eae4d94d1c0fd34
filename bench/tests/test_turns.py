"""Turns of contenders: rates, medians, ratios and failures."""

import math

import pytest

from bench.turns import Contender, Turn, median, percentile, ratio, take_turns, to_json


def turn(calls: int = 10, ids: int = 10, seconds: float = 1.0, p50: float | None = 0.5) -> Turn:
    return Turn(calls, ids, seconds, p50, p50, client_cpu=2.0)


def contender(*turns: Turn) -> Contender:
    return Contender("one", lambda _: turn(), 1, "driver", turns=dict(enumerate(turns, 1)))


def test_turn_has_rates_and_costs_per_call() -> None:
    """A turn has calls and ids a second, and CPU per call."""
    one = Turn(calls=20, ids=2_000, seconds=4.0, p50=0.1, p99=0.2, client_cpu=1.0, server_cpu=2.0)

    assert (one.rate, one.ids_rate) == (5.0, 500.0)
    assert (one.client_cost, one.server_cost) == (0.05, 0.1)


def test_cost_is_per_id_without_calls() -> None:
    """Without single calls the cost is CPU per id."""
    one = Turn(calls=0, ids=1_000, seconds=1.0, p50=None, p99=None, client_cpu=1.0)

    assert one.client_cost == 0.001
    assert one.server_cost is None


def test_median_is_over_rounds() -> None:
    """The median is taken over all rounds."""
    assert median([turn(10), turn(30), turn(11)], "rate") == 11


def test_median_of_unknown_figures_is_none() -> None:
    """A figure that a round lacks has no median."""
    assert median([turn(), turn(p50=None)], "p50") is None
    assert median([], "rate") is None


def test_ratio_compares_turns_of_the_same_round() -> None:
    """A ratio is the median of the rounds' ratios, not the ratio of the medians."""
    # The ratios of the rounds are 2, 1 and 4; that of the medians, 40 and 10, would be 4.
    above, below = contender(turn(600), turn(10), turn(40)), contender(turn(300), turn(10), turn(10))

    assert ratio(above, below, "rate") == 2.0


def test_ratio_without_a_common_round_is_none() -> None:
    """Without a round in which both have the figure, there is no ratio."""
    assert ratio(contender(turn()), contender(), "rate") is None
    assert ratio(None, contender(turn()), "rate") is None
    assert ratio(contender(turn()), contender(turn(p50=None)), "p50") is None


@pytest.mark.parametrize(("percentage", "expected"), [(50, 5), (99, 10), (100, 10), (1, 1)])
def test_percentile_is_one_of_the_values(percentage: float, expected: float) -> None:
    """A percentile is one of the values (nearest rank)."""
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percentage) == expected


def test_percentile_of_no_values_is_none() -> None:
    """Without values there is no percentile."""
    assert percentile([], 50) is None


def test_contenders_alternate_after_a_warm_up_round() -> None:
    """Contenders alternate in each round; the first round does not count."""
    order: list[str] = []

    def named(name: str) -> Contender:
        def drive(_: float) -> Turn:
            order.append(name)
            return turn()

        return Contender(name, drive, 1, "driver")

    pair = [named("a"), named("b")]

    assert take_turns(pair, rounds=2, seconds=1.0, until=math.inf) == 2
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert [list(each.turns) for each in pair] == [[1, 2], [1, 2]]


def test_one_round_counts_even_without_time() -> None:
    """One round counts even if the time is over."""
    one = contender()

    assert take_turns([one], rounds=5, seconds=1.0, until=-math.inf) == 1
    assert list(one.turns) == [1]


def test_contender_that_failed_twice_is_skipped() -> None:
    """A contender that failed twice is skipped; the others go on."""
    calls = []

    def fail(_: float) -> Turn:
        calls.append(1)
        raise RuntimeError("no server")

    broken, sound = Contender("broken", fail, 1, "driver"), contender()
    take_turns([broken, sound], rounds=3, seconds=1.0, until=math.inf)

    assert to_json(broken)["failures"] == ["RuntimeError: no server"] * 2
    assert len(calls) == 2
    assert len(sound.turns) == 3


def test_contender_that_failed_once_continues() -> None:
    """A contender that failed once continues, and its error is kept."""
    results = iter([turn(), turn(ids=0), turn()])
    one = Contender("slow once", lambda _: next(results), 1, "driver")
    take_turns([one], rounds=2, seconds=1.0, until=math.inf)

    assert one.failures == ["no id was received"]
    assert list(one.turns) == [2]


def test_server_cpu_is_the_difference_over_the_turn() -> None:
    """The server's CPU of a turn is the difference over the turn."""
    used = iter([5.0, 7.5])
    one = Contender("one", lambda _: turn(calls=10), 1, "driver", cpu_seconds=lambda: next(used))
    one.take_turn(1, 1.0)

    assert to_json(one)["server_cost"] == 0.25
