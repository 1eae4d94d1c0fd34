"""Under sustained load, memory, descriptors and threads of servers and clients do not grow."""

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.support.faults.resources import Resources, read_resources
from tests.support.faults.scenario import Scenario
from tests.support.waiting import hold_for

ALL_KINDS = "ranges,ids,stream,docids,texts,once,requests,shared"
# Short enough that idle sequences are dropped many times during a soak.
LEASES = {"lease_ttl": "9s", "store_timeout": "6s", "outage_reserve": "2s"}
# Number of samples.
SAMPLES = 90
# Noise of memory, in MB: a leak of 1 kB a call adds ten times as much in a third of a minute.
MEMORY_MB = 2.0
# In the short form caches and heaps still fill, so that only a large leak shows.
SHORT_MEMORY_MB = 10.0
# What server and SDK keep for each name ever used; an allocator never dropped needs twice that.
NAME_KB = 0.75
# Noise of descriptors and threads, since connections and gRPC's own threads vary.
DESCRIPTORS = 4
THREADS = 4
# Share of calls that may fail, since the store may be busy for longer than a deadline.
FAILED_SHARE = 0.01


@pytest.mark.scenario(12, "a soak")
def test_memory_descriptors_and_threads_stay_flat(scenario: Scenario, pytestconfig: pytest.Config) -> None:
    """Under sustained load no process's memory, descriptors or threads grow."""
    seconds = pytestconfig.getoption("--soak", None) or scenario.pick(8, 60)
    many = scenario.start_node(workers=2, **LEASES)
    one = scenario.start_node(transport="native", **LEASES)
    pace: dict[str, Any] = {"mode": ALL_KINDS, "timeout": 30}
    clients = {
        "threads": scenario.start_client(many, one, threads=2, **pace),
        "asyncio": scenario.start_client(one, many, module="tests.support.faults.aio_load_client", threads=4, **pace),
        "several names": scenario.start_client(many, sequence="invoices", id_count=100, threads=2, **pace),
    }
    scenario.wait_for_records(list(clients.values()))
    churning = [
        scenario.start_client(node, module="tests.support.faults.churn_client", pause=0.02) for node in (many, one)
    ]
    pids = {
        "supervisor": many.process.pid,
        **{f"worker {turn}": pid for turn, pid in enumerate(_children(many.process.pid), start=1)},
        "server": one.process.pid,
        **{f"client, {kind}": client.process.pid for kind, client in clients.items()},
        **{f"churn client {turn}": client.process.pid for turn, client in enumerate(churning, start=1)},
    }
    assert len(pids) == 9

    began = time.monotonic()
    samples: list[dict[str, Resources]] = []
    times: list[float] = []
    for turn in range(SAMPLES):
        hold_for(began + (turn + 1) * seconds / SAMPLES - time.monotonic(), "the next sample")
        times.append(time.monotonic() - began)
        samples.append({name: read_resources(pid) for name, pid in pids.items()})
    print(_table(times, samples))

    summaries = [client.stop() for client in [*clients.values(), *churning]]
    calls = sum(summary.calls for summary in summaries)
    failed = sum(sum(summary.errors.values()) for summary in summaries)
    assert failed <= FAILED_SHARE * calls, summaries
    assert min(summary.calls for summary in summaries) > seconds, summaries
    growth = {name: _growth([each[name] for each in samples]) for name in pids}
    names = sum(summary.calls for summary in summaries[-len(churning) :])
    # A third of the run, on one of two nodes.
    memory = (SHORT_MEMORY_MB if seconds < 60 else MEMORY_MB) + NAME_KB / 1000 * names / 6
    grown = {
        name: str(by)
        for name, by in growth.items()
        if by.memory > memory or by.descriptors > DESCRIPTORS or by.threads > THREADS
    }
    assert not grown, f"{grown}\n{_table(times, samples)}"
    by_kind = [max(each) for each in zip(*growth.values(), strict=True)]
    assert [node.stop() for node in (many, one)] == [0, 0]
    scenario.prove(
        f"{seconds:g} s",
        note=f"{calls:,} calls; from the second to the last third, no process's median grew by more than "
        f"{by_kind[0]:.1f} MB, {by_kind[1]} descriptors, {by_kind[2]} threads",
    )


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _growth(samples: list[Resources]) -> Resources:
    """Return the growth of medians from the second to the last third; the first one warms up."""
    third = len(samples) // 3
    second, last = samples[third : 2 * third], samples[2 * third :]
    memory, descriptors, threads = (
        median(each[field] for each in last) - median(each[field] for each in second) for field in range(3)
    )
    return Resources(memory, round(descriptors), round(threads))


def _table(times: list[float], samples: list[dict[str, Resources]]) -> str:
    """Return a table with MB, descriptors and threads of each process."""
    names = list(samples[0])
    lines = ["  seconds  " + "".join(f"{name:>18}" for name in names)]
    for at, sample in list(zip(times, samples, strict=True))[:: len(samples) // 18]:
        cells = (f"{each.memory:.1f} {each.descriptors:>3} {each.threads:>3}" for each in sample.values())
        lines.append(f"{at:9.1f}  " + "".join(f"{cell:>18}" for cell in cells))
    return "\n".join(lines)
