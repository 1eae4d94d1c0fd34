import math

import pytest

from tests.load.turns import Contender, Turn, median, percentile, ratio, take_turns, to_json


def turn(calls: int = 10, ids: int = 10, seconds: float = 1.0, p50: float | None = 0.5) -> Turn:
    return Turn(calls, ids, seconds, p50, p50, client_cpu=2.0)


def contender(*turns: Turn) -> Contender:
    return Contender("one", lambda _: turn(), 1, "driver", turns=dict(enumerate(turns, 1)))


def test_a_turn_tells_rates_and_what_a_call_costs() -> None:
    one = Turn(calls=20, ids=2_000, seconds=4.0, p50=0.1, p99=0.2, client_cpu=1.0, server_cpu=2.0)

    assert (one.rate, one.ids_rate) == (5.0, 500.0)
    assert (one.client_cost, one.server_cost) == (0.05, 0.1)


def test_where_calls_are_not_seen_cost_is_that_of_an_id() -> None:
    one = Turn(calls=0, ids=1_000, seconds=1.0, p50=None, p99=None, client_cpu=1.0)

    assert one.client_cost == 0.001
    assert one.server_cost is None


def test_the_median_is_over_rounds() -> None:
    assert median([turn(10), turn(30), turn(11)], "rate") == 11


def test_there_is_no_median_of_what_is_not_known() -> None:
    assert median([turn(), turn(p50=None)], "p50") is None
    assert median([], "rate") is None


def test_a_ratio_compares_turns_of_the_same_round_not_the_medians() -> None:
    # The rounds say 2, 1 and 4; the medians, 40 and 10, would say 4.
    above, below = contender(turn(600), turn(10), turn(40)), contender(turn(300), turn(10), turn(10))

    assert ratio(above, below, "rate") == 2.0


def test_there_is_no_ratio_without_a_common_round() -> None:
    assert ratio(contender(turn()), contender(), "rate") is None
    assert ratio(None, contender(turn()), "rate") is None
    assert ratio(contender(turn()), contender(turn(p50=None)), "p50") is None


@pytest.mark.parametrize(("percentage", "expected"), [(50, 5), (99, 10), (100, 10), (1, 1)])
def test_a_percentile_is_one_of_the_values(percentage: float, expected: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percentage) == expected


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 50) is None


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
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


def test_out_of_time_one_round_counts_all_the_same() -> None:
    one = contender()

    assert take_turns([one], rounds=5, seconds=1.0, until=-math.inf) == 1
    assert list(one.turns) == [1]


def test_one_that_fails_twice_is_left_out_and_the_others_go_on() -> None:
    calls = []

    def fail(_: float) -> Turn:
        calls.append(1)
        raise RuntimeError("no server")

    broken, sound = Contender("broken", fail, 1, "driver"), contender()
    take_turns([broken, sound], rounds=3, seconds=1.0, until=math.inf)

    assert to_json(broken)["failures"] == ["RuntimeError: no server"] * 2
    assert len(calls) == 2
    assert len(sound.turns) == 3


def test_one_that_fails_once_goes_on_and_it_is_said() -> None:
    results = iter([turn(), turn(ids=0), turn()])
    one = Contender("slow once", lambda _: next(results), 1, "driver")
    take_turns([one], rounds=2, seconds=1.0, until=math.inf)

    assert one.failures == ["no id came"]
    assert list(one.turns) == [2]


def test_the_servers_cpu_is_what_it_used_in_the_turn() -> None:
    used = iter([5.0, 7.5])
    one = Contender("one", lambda _: turn(calls=10), 1, "driver", cpu_seconds=lambda: next(used))
    one.take_turn(1, 1.0)

    assert to_json(one)["server_cost"] == 0.25
