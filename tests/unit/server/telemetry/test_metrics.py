"""Counters are summed over several processes."""

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from idalloc_server.telemetry import families
from idalloc_server.telemetry.latencies import BUCKETS, histogram
from idalloc_server.telemetry.metrics import CallMetrics, Counts, Timings, log_calls
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import hold_for_async

METHOD = "/idalloc.v1.NodeService/GetNode"


def counts_after(*seconds: float, running: int = 0) -> Counts:
    """Return the counters of a process after calls of these durations, and with running ones."""
    counts = Counts()
    counts.counters[families.IDS_BURNED]["expired"] = 3
    counts.gauges[families.LEASES][""] = 2
    calls = counts.calls.method(METHOD)
    for each in seconds:
        calls.started += 1
        calls.end("OK", each)
    calls.started += running
    return counts


def test_add_sums_all_counters() -> None:
    """A sum has the calls, burned ids and leases of each process."""
    total = Counts()
    for each in (counts_after(0.001, 99.0), counts_after(0.002, running=1)):
        total.add(json.loads(json.dumps(each.to_json())))
    calls = total.calls.method(METHOD)
    assert (calls.started, calls.handled, calls.seconds) == (4, {"OK": 3}, 99.003)
    assert {index: count for index, count in enumerate(histogram(calls.latencies)) if count} == {
        2: 1,
        3: 1,
        len(BUCKETS): 1,
    }
    assert (total.counters[families.IDS_BURNED], total.calls.in_flight) == ({"expired": 6}, 1)
    assert total.gauges[families.LEASES] == {"": 4}


def test_add_sums_lost_log_lines_by_share() -> None:
    """Lost log lines of an exited worker still count."""
    total = Counts()
    for lost in ({"log": 1}, {"log": 2, "audit": 3}, {"audit": 4}):
        counts = Counts()
        counts.counters[families.LOG_LINES_LOST].update(lost)
        counts.end()
        total.add(json.loads(json.dumps(counts.to_json())))
    assert total.counters[families.LOG_LINES_LOST] == {"log": 3, "audit": 7}


def test_gauges_of_processes_are_merged_by_family() -> None:
    """Leases of two processes are summed; of store, reserve and its limit the worse counts."""
    total = Counts()
    for leases, up, reserve, limited in ((3, 1, 90.0, {}), (4, 0, 60.0, {"remaining_ids orders": 1})):
        counts = Counts()
        counts.gauges[families.LEASES][""] = leases
        counts.gauges[families.STORE_UP][""] = up
        counts.gauges[families.RESERVE]["orders"] = reserve
        counts.gauges[families.RESERVE_LIMITED] |= limited
        total.add(json.loads(json.dumps(counts.to_json())))
    assert total.gauges[families.LEASES] == {"": 7}
    assert (total.gauges[families.STORE_UP], total.gauges[families.RESERVE]) == ({"": 0}, {"orders": 60.0})
    assert total.gauges[families.RESERVE_LIMITED] == {"remaining_ids orders": 1}


def test_refills_of_an_exited_process_still_count() -> None:
    """Durations of refills are summed, also over processes that exited."""
    total = Counts()
    for seconds in (0.003, 0.004):
        counts = Counts()
        counts.timings[families.REFILL_DURATION]["ok"] = Timings()
        counts.timings[families.REFILL_DURATION]["ok"].observe(seconds)
        counts.end()
        total.add(json.loads(json.dumps(counts.to_json())))
    refills = total.timings[families.REFILL_DURATION]["ok"]
    assert (sum(refills.buckets), refills.seconds) == (2, 0.007)


def test_exited_process_has_no_running_calls_or_leases() -> None:
    """Calls that ran at the exit of a process count as UNAVAILABLE; its leases are gone."""
    counts = counts_after(0.5, running=2)
    calls = counts.calls.method(METHOD)
    timed = (calls.seconds, list(calls.latencies))
    counts.end()
    assert counts.calls.in_flight == 0
    assert calls.handled == {"OK": 1, "UNAVAILABLE": 2}
    assert (calls.seconds, calls.latencies) == timed  # The duration of the other two is unknown.
    assert (counts.gauges[families.LEASES], counts.counters[families.IDS_BURNED]) == ({}, {"expired": 3})


def test_add_does_not_change_its_argument() -> None:
    """Adding counters to a sum does not change the added ones."""
    one = counts_after(0.5)
    before = json.dumps(one.to_json())
    total = Counts()
    total.add(one.to_json())
    total.add(one.to_json())
    assert json.dumps(one.to_json()) == before


def test_the_sum_of_a_second_has_codes_and_percentiles() -> None:
    """The event calls has the codes, p50 and p99 of its own second only."""
    metrics = CallMetrics()
    first, second = metrics.method("/a"), metrics.method("/b")

    async def call_for_seconds() -> None:
        task = asyncio.create_task(log_calls(lambda: metrics))
        await hold_for_async(0.5, "the event comes each second of virtual time")
        for _ in range(98):
            first.end("OK", 0.001)
        second.end("UNAVAILABLE", 2.0)
        second.end("UNAVAILABLE", 2.0)
        await hold_for_async(1, "the next second")
        first.end("OK", 0.01)
        await hold_for_async(2, "a second with a call, and one without")
        task.cancel()

    with capture_logs() as lines, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(call_for_seconds())
    assert [(line["count"], line["failed"], line["codes"]) for line in lines] == [
        (100, 2, {"OK": 98, "UNAVAILABLE": 2}),
        (1, 0, {"OK": 1}),
    ]
    assert [line["p50_ms"] for line in lines] == pytest.approx([1, 10], rel=0.1)
    assert [line["p99_ms"] for line in lines] == pytest.approx([2000, 10], rel=0.1)
