"""What is counted by several processes comes out in sum."""

import json
from collections import Counter

from idalloc_server.telemetry.metrics import BUCKETS, Counts

METHOD = "/idalloc.v1.NodeService/GetNode"


def counted(*seconds: float, running: int = 0) -> Counts:
    """Returns the counts of a process after calls that took so long, and others that still run."""
    counts = Counts(burned=Counter({"expired": 3}), lease_count=2)
    calls = counts.calls.method(METHOD)
    for each in seconds:
        calls.started += 1
        calls.end("OK", each)
    calls.started += running
    return counts


def test_a_sum_has_all_of_each() -> None:
    total = Counts()
    for each in (counted(0.001, 99.0), counted(0.002, running=1)):
        total.add(json.loads(json.dumps(each.to_json())))
    calls = total.calls.method(METHOD)
    assert (calls.started, calls.handled, calls.seconds) == (4, {"OK": 3}, 99.003)
    assert calls.buckets == [2] + [0] * (len(BUCKETS) - 1) + [1]
    assert (total.burned, total.lease_count, total.calls.in_flight) == ({"expired": 6}, 4, 1)


def test_lines_that_logs_lost_are_summed_by_share() -> None:
    """What a worker lost counts after its end, too."""
    total = Counts(log_lines_lost=Counter(log=1))
    for each in (Counts(log_lines_lost=Counter(log=2, audit=3)), Counts(log_lines_lost=Counter(audit=4))):
        each.end()
        total.add(json.loads(json.dumps(each.to_json())))
    assert total.log_lines_lost == {"log": 3, "audit": 7}


def test_of_a_process_that_ended_no_call_runs_and_no_lease_lives() -> None:
    counts = counted(0.5, running=2)
    calls = counts.calls.method(METHOD)
    timed = (calls.seconds, list(calls.buckets))
    counts.end()
    assert counts.calls.in_flight == 0
    assert calls.handled == {"OK": 1, "UNAVAILABLE": 2}
    assert (calls.seconds, calls.buckets) == timed  # how long the other two took is not known
    assert (counts.lease_count, counts.burned) == (0, {"expired": 3})


def test_adding_changes_nothing_in_what_was_added() -> None:
    one = counted(0.5)
    before = json.dumps(one.to_json())
    total = Counts()
    total.add(one.to_json())
    total.add(one.to_json())
    assert json.dumps(one.to_json()) == before
