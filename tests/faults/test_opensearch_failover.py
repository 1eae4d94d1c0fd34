"""Failover of the sequences in three real OpenSearch nodes while two nodes of idalloc serve."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import idalloc
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.faults.workload import longest_stall, start_callers, start_steady_caller, stop_all, wait_for_reserve
from tests.support.opensearch.cluster import OpenSearchCluster
from tests.support.opensearch.real import RELEASES, missing
from tests.support.processes import Server
from tests.support.waiting import hold_for

OPENSEARCH_NODES, NODES = 3, 2
KILLS = 3
# As long as a node was paused that then went on as the primary.
PAUSED_SECONDS = 40
# Writes hung for 12 s at most after the primary was killed.
KILLED_SECONDS = 12
RECOVERY_SECONDS = 180
# A steady caller gets ids every 0.05 s; the rest is for cores busy with OpenSearch's restart.
UNNOTICED_SECONDS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OpenSearchCluster]:
    """Three nodes of one machine; skips the test without Java or Maven."""
    release = RELEASES["3.8.0"]
    if reason := missing(release):
        pytest.skip(reason)
    with OpenSearchCluster(release, tmp_path / "opensearch", OPENSEARCH_NODES) as nodes:
        yield nodes


@pytest.mark.long
@pytest.mark.scenario(6, "a primary lost and another copy promoted")
class TestRealOpenSearch:
    def test_a_killed_primary_repeats_no_id(self, scenario: Scenario, cluster: OpenSearchCluster) -> None:
        """P1, P10: killing a real OpenSearch's primary repeats no id; used sequences are served."""
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        steady = [start_steady_caller(scenario, node, number) for number, node in enumerate(nodes)]
        begun = wait_for_reserves(scenario, nodes, steady, 2 * KILLED_SECONDS)
        for turn in range(KILLS):
            wait_for_copies(scenario, cluster)
            lost = cluster.primary()
            cluster.kill(lost)
            scenario.count_faults()
            for node in nodes:
                allocate_from_store(node, f"after-kill-{turn}")
            assert cluster.primary() not in ("", lost)
            scenario.wait_for_records(callers, 5, within=RECOVERY_SECONDS)
            cluster.start(lost)
        prove(scenario, nodes, callers, steady, begun, f"{KILLS} kills")

    def test_a_paused_primary_repeats_no_id(self, scenario: Scenario, cluster: OpenSearchCluster) -> None:
        """P1, P10: a real OpenSearch's primary, paused and resumed, repeats no id; none waits."""
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        steady = [start_steady_caller(scenario, node, number) for number, node in enumerate(nodes)]
        wait_for_copies(scenario, cluster)
        begun = wait_for_reserves(scenario, nodes, steady, 1.25 * PAUSED_SECONDS)
        paused = cluster.primary()
        cluster.pause(paused)
        scenario.count_faults()
        try:
            hold_for(PAUSED_SECONDS, "the primary is paused")
        finally:
            cluster.resume(paused)
        for node in nodes:
            allocate_from_store(node, "after-pause")
        scenario.wait_for_records(callers, 5, within=RECOVERY_SECONDS)
        prove(scenario, nodes, callers, steady, begun, f"paused for {PAUSED_SECONDS} s")


def start_nodes(scenario: Scenario, cluster: OpenSearchCluster) -> list[Server]:
    """Start two nodes, which prefer different hosts."""
    scenario.store = cluster.url_preferring(0)
    return [scenario.start_node(store=cluster.url_preferring(first)) for first in range(NODES)]


def wait_for_copies(scenario: Scenario, cluster: OpenSearchCluster) -> None:
    """Wait until each node has a copy of the sequences."""
    done = OPENSEARCH_NODES
    scenario.wait_until(lambda: cluster.started_copies() == done, "a copy on each node", within=RECOVERY_SECONDS)


def wait_for_reserves(
    scenario: Scenario, nodes: list[Server], steady: list[ClientProcess], seconds: float
) -> list[int]:
    """Wait until each reserve lasts ``seconds``; return the number of each caller's records."""
    for number, (node, caller) in enumerate(zip(nodes, steady, strict=True)):
        wait_for_reserve(scenario, node, caller, seconds, number)
    return [caller.records for caller in steady]


def allocate_from_store(node: Server, sequence: str) -> None:
    """Allocate from a sequence of which the node has no lease, so that it needs the store."""
    with idalloc.Client(node.address, timeout=RECOVERY_SECONDS) as client:
        assert len(client.allocate_range(sequence, 5)) == 5


def prove(
    scenario: Scenario,
    nodes: list[Server],
    callers: list[ClientProcess],
    steady: list[ClientProcess],
    begun: list[int],
    what: str,
) -> None:
    """Assert that no steady caller got an error or waited, and that no id was repeated."""
    scenario.wait_for_records(steady, 50)
    stall = max(longest_stall(caller, since) for caller, since in zip(steady, begun, strict=True))
    for caller in steady:
        summary = caller.stop()
        assert not summary.errors, summary.messages
    errors = stop_all(scenario, callers, nodes)
    answered = sum(caller.records for caller in callers + steady)
    note = f"{answered:,} ranges, {errors.total():,} calls refused; the steady callers: {stall:.2f} s"
    scenario.prove(f"{what}, a real OpenSearch", note=note)
    assert stall < UNNOTICED_SECONDS
