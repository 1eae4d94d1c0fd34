"""Which sequences have their own series of issued ids."""

import json

from idalloc_server.telemetry.series import MAX_COUNTED, MAX_SERIES, MIN_IDS, OTHER, IssuedSeries, SeriesNames
from idalloc_server.workers.pipe import _MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES


def decide(names: SeriesNames, series: IssuedSeries) -> None:
    """Give series as a single process does each second."""
    if names.decide(series.candidates()):
        series.set_series(names.names)


def test_sequence_gets_a_series_after_enough_ids() -> None:
    """Ids count into other until a sequence issued 10,000; later ids count in its own series."""
    names, series = SeriesNames(), IssuedSeries()
    series.add("orders", MIN_IDS - 1)
    decide(names, series)
    assert series.issued == {OTHER: MIN_IDS - 1}
    series.add("orders", 1)
    decide(names, series)
    series.add("orders", 5)
    assert series.issued == {OTHER: MIN_IDS, "orders": 5}


def test_ten_thousand_sequences_have_a_hundred_series() -> None:
    """Only the first 100 sequences get a series; `other` never decreases; the total is the sum."""
    names, series = SeriesNames(), IssuedSeries()
    before = total = 0
    for turn in range(3):
        for number in range(10_000):
            series.add(f"s{number}", MIN_IDS if number >= 9_000 - turn else 1)
            total += MIN_IDS if number >= 9_000 - turn else 1
        decide(names, series)
        assert series.issued[OTHER] >= before
        before = series.issued[OTHER]
    assert len(series.issued) == MAX_SERIES + 1
    assert names.is_full
    assert series.issued.total() == total
    series.add("late", 10 * MIN_IDS)
    decide(names, series)
    assert "late" not in series.issued
    assert series.candidates() == {}


def test_a_sequence_named_other_is_not_the_sum_of_others() -> None:
    """A sequence of any name has its own series: that of all others has an empty name."""
    names, series = SeriesNames(), IssuedSeries()
    series.add("other", 2 * MIN_IDS)
    series.add("small", 1)
    decide(names, series)
    series.add("other", 5)
    assert (series.issued, names.names) == ({OTHER: 2 * MIN_IDS + 1, "other": 5}, ["other"])
    assert OTHER == ""


def test_workers_report_sequences_with_their_part() -> None:
    """A sequence with 10,000 ids in n workers issued 10,000 / n in at least one of them."""
    names, workers = SeriesNames(), [IssuedSeries(2), IssuedSeries(2)]
    for each in workers:
        each.add("orders", MIN_IDS // 2)
        each.add("small", MIN_IDS // 2 - 1)
    issued = {name: sum(each.candidates()[name] for each in workers) for name in workers[0].candidates()}
    assert issued == {"orders": MIN_IDS}
    assert names.decide(issued)
    for each in workers:
        each.set_series(names.names)
        each.add("orders", 1)
    assert [each.issued for each in workers] == [{OTHER: MIN_IDS - 1, "orders": 1}] * 2


def test_counted_sequences_are_bounded() -> None:
    """A million sequences with few ids each do not fill the memory."""
    series = IssuedSeries()
    for number in range(MAX_COUNTED + 1_000):
        series.add(f"s{number}", 1)
    assert len(series._counted) == MAX_COUNTED
    assert series.issued == {OTHER: MAX_COUNTED + 1_000}


def test_reported_series_fit_into_a_message() -> None:
    """The longest names in all series and candidates are far below a message's limit."""
    series = IssuedSeries(2)
    for number in range(2 * MAX_SERIES):
        series.add(f"{number:03}" + "\N{GRINNING FACE}" * 63, MIN_IDS)
    candidates = series.candidates()
    assert len(candidates) == MAX_SERIES
    series.set_series(candidates)
    values = [series.issued, candidates, series.issued, series.issued]
    assert len(json.dumps(values)) < MAX_MESSAGE_BYTES / 2
