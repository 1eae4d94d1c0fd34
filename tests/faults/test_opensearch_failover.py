"""Failover of the sequences in three real OpenSearch nodes while idalloc's nodes serve."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.scenario import Scenario
from tests.support.faults.workload import start_callers, stop_all
from tests.support.opensearch.cluster import OpenSearchCluster
from tests.support.opensearch.real import RELEASES, missing
from tests.support.processes import Server
from tests.support.waiting import hold_for

SIZE = 3
# As long as a node was paused that then went on as the primary.
PAUSED_SECONDS = 40
RECOVERY_SECONDS = 180


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OpenSearchCluster]:
    """Three nodes of one machine; skips the test without Java or Maven."""
    release = RELEASES["3.8.0"]
    if reason := missing(release):
        pytest.skip(reason)
    with OpenSearchCluster(release, tmp_path / "opensearch", SIZE) as nodes:
        yield nodes


@pytest.mark.long
@pytest.mark.scenario(6, "a primary lost and another copy promoted")
class TestRealOpenSearch:
    def test_a_killed_primary_repeats_no_id(self, scenario: Scenario, cluster: OpenSearchCluster) -> None:
        """P1: killing the primary of a real OpenSearch repeats no id."""
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        for _ in range(2):
            wait_for_copies(scenario, cluster)
            lost = cluster.primary()
            cluster.kill(lost)
            scenario.count_faults()
            scenario.wait_for_records(callers, 5, within=RECOVERY_SECONDS)
            assert cluster.primary() not in ("", lost)
            cluster.start(lost)
        errors = stop_all(scenario, callers, nodes)
        scenario.prove("killed, a real OpenSearch", note=f"{errors.total():,} calls refused")

    def test_a_paused_primary_repeats_no_id(self, scenario: Scenario, cluster: OpenSearchCluster) -> None:
        """P1: a primary of a real OpenSearch that is paused and goes on repeats no id."""
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        wait_for_copies(scenario, cluster)
        paused = cluster.primary()
        cluster.pause(paused)
        scenario.count_faults()
        try:
            hold_for(PAUSED_SECONDS, "the primary is paused")
        finally:
            cluster.resume(paused)
        scenario.wait_for_records(callers, 5, within=RECOVERY_SECONDS)
        errors = stop_all(scenario, callers, nodes)
        scenario.prove(f"paused for {PAUSED_SECONDS} s, a real OpenSearch", note=f"{errors.total():,} calls refused")


def start_nodes(scenario: Scenario, cluster: OpenSearchCluster) -> list[Server]:
    """Starts a node for each host, which prefers that host."""
    scenario.store = cluster.url_preferring(0)
    return [scenario.start_node(store=cluster.url_preferring(first)) for first in range(SIZE)]


def wait_for_copies(scenario: Scenario, cluster: OpenSearchCluster) -> None:
    """Waits until each node has a copy of the sequences."""
    scenario.wait_until(lambda: cluster.started_copies() == SIZE, "a copy on each node", within=RECOVERY_SECONDS)
