"""Failover of the table ``sequences`` in CrateDB while nodes serve.

``TestSimulatedFailover`` uses a proxy in front of the emulator, which behaves as a CrateDB 6.4.3 of
three nodes was measured to: while another copy is promoted, writes hang, and some are then applied
twice. ``TestRealCluster`` needs `IDALLOC_TEST_CRATEDB_URL` with all hosts, and
`IDALLOC_TEST_CRATEDB_HARM` (see `tests/support/cratedb/cluster.py`).
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest

import idalloc
from tests.support import issued_log
from tests.support.cratedb.cluster import HARM_COMMAND, URL, CrateCluster, ProxiedCrate
from tests.support.faults.scenario import SHORT_LEASES, ClientProcess, Scenario
from tests.support.faults.workload import longest_stall, start_callers, start_steady_caller, stop_all, wait_for_reserve
from tests.support.processes import Server
from tests.support.waiting import hold_for

HOSTS = 3
# Measured time for which writes hang after the primary was killed, and after it was paused.
KILLED_SECONDS, PAUSED_SECONDS = 0.86, 32
# Share of the hanging writes that are then applied twice; more than was measured.
TWICE = 0.5


@pytest.fixture
def cluster() -> Iterator[CrateCluster]:
    """A real cluster that may be disrupted, with a schema of its own."""
    if not URL or not HARM_COMMAND:
        pytest.skip(
            "needs a cluster (IDALLOC_TEST_CRATEDB_URL) and a command that disrupts it (IDALLOC_TEST_CRATEDB_HARM)"
        )
    crate = CrateCluster.real()
    if len(crate.hosts) < HOSTS:
        pytest.skip(f"IDALLOC_TEST_CRATEDB_URL must name {HOSTS} hosts or more")
    yield crate
    crate.remove()


# Ids per call of the clients of one shared sequence.
SIZES: dict[str, Any] = {"1 id": 1, "10 ids": 10, "mixed": [7, 1, 10, 2]}
# The default reserve in seconds, and a margin, since nodes hold different amounts.
RESERVE_SECONDS = 100

TITLE = "a primary lost and another copy promoted"


@pytest.mark.scenario(6, TITLE)
class TestSimulatedFailover:
    def test_a_killed_primary_repeats_no_id(self, scenario: Scenario) -> None:
        """P1: a failover with the faults that a real CrateDB showed repeats no id."""
        with ProxiedCrate(HOSTS) as proxied:
            nodes = start_nodes(scenario, proxied.crate, **SHORT_LEASES)
            callers = start_callers(scenario, nodes)
            for turn in range(scenario.pick(2, 15)):
                lost = turn % HOSTS
                survivors = [host for host in range(HOSTS) if host != lost]
                for host in survivors:
                    proxied.inject("hang", host=host, twice=TWICE)
                proxied.inject("refused", host=lost)
                hold_for(KILLED_SECONDS, "the cluster elects another primary")
                # For a moment reads fail while writes succeed.
                for host in survivors:
                    proxied.inject("disconnected", host=host)
                look_at_sequence(nodes[turn % HOSTS])
                for host in survivors:
                    proxied.inject(host=host)
                scenario.wait_for_records(callers, 2)  # while one host is down
                proxied.inject(host=lost)
                scenario.count_faults()
            errors = stop_all(scenario, callers, nodes)
            harmed = proxied.inject()
            scenario.prove("killed, as recorded", note=note(errors))
        assert {"hang", "twice", "refused", "disconnected"} <= harmed.keys()

    def test_a_paused_host_delays_a_first_call_by_seconds(self, scenario: Scenario) -> None:
        """P10: with a paused host, a call that needs the store takes about 3 seconds."""
        with ProxiedCrate(HOSTS) as proxied:
            scenario.store = proxied.crate.store
            node = scenario.start_node(store=proxied.crate.url_preferring(0))
            proxied.inject("hang", host=0)
            scenario.count_faults()
            begun = time.monotonic()
            with idalloc.Client(node.address, timeout=60) as client:
                assert len(client.allocate_range("new", 5)) == 5
                # The second refill uses the host that answered the first one.
                assert len(client.allocate_range("another", 5)) == 5
            took = time.monotonic() - begun
            harmed = proxied.inject()
        assert harmed["hang"]
        assert took < 20

    @pytest.mark.long
    def test_a_paused_primary_causes_no_errors_for_a_sequence_in_use(self, scenario: Scenario) -> None:
        """P10: callers of a sequence in use get no errors while the primary is paused."""
        hang = scenario.pick(3, PAUSED_SECONDS)
        # The long form has the default settings.
        settings = scenario.pick({"outage_reserve": "20s", "store_timeout": "4s", "lease_ttl": "40s"}, {})
        with ProxiedCrate(HOSTS) as proxied:
            nodes = start_nodes(scenario, proxied.crate, **settings)
            callers = start_callers(scenario, nodes)
            steady = start_steady_caller(scenario, nodes[0])
            wait_for_reserve(scenario, nodes[0], steady, scenario.pick(5, 48))
            begun = steady.records
            # The first node prefers the paused host; writes on the other hosts wait for it.
            proxied.inject("hang", host=0, twice=TWICE)
            for host in range(1, HOSTS):
                proxied.inject("stuck", host=host, twice=TWICE)
            hold_for(hang, "the primary is paused")
            # Another copy was promoted; the paused host still does not answer.
            for host in range(1, HOSTS):
                proxied.inject(host=host)
            hold_for(hang / 2, "the host is still paused")
            # The host resumes, and executes the statements that it received meanwhile.
            harmed = proxied.inject(host=0)
            scenario.count_faults()
            scenario.wait_for_records([steady], 20)
            seen = steady.stop()
            errors = stop_all(scenario, callers, nodes)
            stall = longest_stall(steady, begun)
            scenario.prove(f"paused for {hang} s, as recorded", note=note(errors, stall))
        assert harmed["hang"]
        assert harmed["stuck"]
        assert stall < hang
        assert not seen.errors, seen.messages


@pytest.mark.cratedb
@pytest.mark.scenario(6, TITLE)
class TestRealCluster:
    def test_a_killed_primary_repeats_no_id(self, scenario: Scenario, cluster: CrateCluster) -> None:
        """P1: a killed primary of a real CrateDB repeats no id."""
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        for _ in range(scenario.pick(1, 4)):
            lost = lose_primary(scenario, cluster, "kill")
            scenario.wait_for_records(callers, 5, within=180)
            assert cluster.primary() != lost
            cluster.disrupt("start", lost)
        errors = stop_all(scenario, callers, nodes)
        scenario.prove("killed, a real CrateDB", note=note(errors))

    def test_a_paused_primary_causes_no_errors_for_a_sequence_in_use(
        self, scenario: Scenario, cluster: CrateCluster
    ) -> None:
        """P10: callers of a sequence in use get no errors while a real primary is paused."""
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        steady = [start_steady_caller(scenario, node, number) for number, node in enumerate(nodes)]
        for number, (node, caller) in enumerate(zip(nodes, steady, strict=True)):
            wait_for_reserve(scenario, node, caller, 48, number)
        begun = [caller.records for caller in steady]
        lost = lose_primary(scenario, cluster, "pause")
        try:
            scenario.wait_for_records(callers, 5, within=180)
        finally:
            cluster.disrupt("resume", lost)
        scenario.wait_for_records(steady, 20)
        seen = [caller.stop() for caller in steady]
        errors = stop_all(scenario, callers, nodes)
        scenario.wait_until(lambda: cluster.started_copies() == HOSTS, "the woken node has a copy again", within=180)
        assert cluster.primary() != lost
        stalls = [longest_stall(caller, since) for caller, since in zip(steady, begun, strict=True)]
        scenario.prove("paused, a real CrateDB", note=note(errors, max(stalls)))
        assert not any(each.errors for each in seen), seen
        assert max(stalls) < PAUSED_SECONDS / 2

    @pytest.mark.long
    @pytest.mark.parametrize("what", ["kill", "pause"])
    def test_losing_any_node_repeats_no_id(
        self, scenario: Scenario, cluster: CrateCluster, what: Literal["kill", "pause"]
    ) -> None:
        """P1, P10: losing any node, even master plus primary, repeats no id; calls succeed."""
        nodes = start_nodes(scenario, cluster)
        callers = {
            name: scenario.start_client(node, sequence="shared", id_count=sizes, pause=0.05, timeout=120)
            for node, (name, sizes) in zip(nodes, SIZES.items(), strict=True)
        }
        stalls: dict[str, list[float]] = {name: [] for name in callers}
        scenario.wait_for_records(list(callers.values()), 20)
        names = [*cluster.nodes(), ""]
        for name in names:
            scenario.wait_until(lambda: cluster.started_copies() == HOSTS, "a copy on each node", within=180)
            lost = name or master_and_primary(scenario, cluster)
            wait_for_shared_reserve(scenario, nodes, list(callers.values()))
            begun = {each: caller.records for each, caller in callers.items()}
            cluster.disrupt(what, lost)
            scenario.count_faults()
            # A write needs the primary.
            scenario.wait_until(lambda: cluster.is_writable("shared"), "a cluster that serves again", within=180)
            cluster.disrupt("start" if what == "kill" else "resume", lost)
            scenario.wait_for_records(list(callers.values()), 50, within=180)
            for each, caller in callers.items():
                stalls[each].append(longest_stall(caller, begun[each]))
        seen = [caller.stop() for caller in callers.values()]
        for node in nodes:
            assert node.stop(timeout=60) == 0
        found = "; ".join(f"{each}: {', '.join(f'{stall:.2f}' for stall in of)} s" for each, of in stalls.items())
        scenario.prove(f"each node and the master with the primary: {what}", note=found)
        assert not any(each.errors for each in seen), seen
        assert max(max(of) for of in stalls.values()) < PAUSED_SECONDS / 2, found


def master_and_primary(scenario: Scenario, cluster: CrateCluster) -> str:
    """Kill masters until the node with the primary is elected, and return that node."""
    for _ in range(12):
        primary, master = cluster.primary(), cluster.master()
        if primary == master:
            return primary
        cluster.disrupt("kill", master)
        cluster.disrupt("start", master)
        scenario.wait_until(lambda: cluster.started_copies() == HOSTS, "a copy on each node", within=180)
    raise AssertionError("the node with the primary was never elected")


def wait_for_shared_reserve(scenario: Scenario, nodes: list[Server], callers: list[ClientProcess]) -> None:
    """Wait until the nodes together hold the ids that their clients use in ``outage_reserve``."""

    def issued() -> int:
        return sum(record.id_count for caller in callers for record in issued_log.read(caller.log).records)

    def burned() -> int:
        lines = [line for node in nodes for line in node.log.read_text().splitlines() if '"burned"' in line]
        return sum(event["ids"] for event in map(json.loads, lines) if event["event"] == "burned")

    with idalloc.Client(nodes[0].address, timeout=60) as client:

        def has_reserve() -> bool:
            began, before = time.monotonic(), issued()
            hold_for(2, "the rate is measured")
            rate = (issued() - before) / (time.monotonic() - began)
            held = (client.sequences.get("shared").last_value or 0) - issued() - burned()
            return held > RESERVE_SECONDS * rate

        scenario.wait_until(has_reserve, "a reserve", within=400)


def start_nodes(scenario: Scenario, crate: CrateCluster, **settings: Any) -> list[Server]:
    """Start a node for each host, which prefers that host."""
    scenario.store = crate.store
    return [scenario.start_node(store=crate.url_preferring(first), **settings) for first in range(HOSTS)]


def look_at_sequence(node: Server) -> None:
    """Make a node read from the store."""
    with idalloc.Client(node.address, timeout=0.5) as client, suppress(idalloc.Unavailable, idalloc.DeadlineExceeded):
        client.sequences.get("invoices")


def lose_primary(scenario: Scenario, cluster: CrateCluster, what: Literal["kill", "pause"]) -> str:
    """Kill or pause the node with the primary, once each node has a copy; return its name."""
    scenario.wait_until(lambda: cluster.started_copies() == HOSTS, "a copy on each node", within=180)
    lost = cluster.primary()
    cluster.disrupt(what, lost)
    scenario.count_faults()
    return lost


def note(errors: Counter[str], stall: float | None = None) -> str:
    """Return a summary of the clients' errors, and of the longest stall of a steady caller."""
    waited = "" if stall is None else f"; the steady caller: {stall:.2f} s"
    return f"{errors.total():,} calls refused{waited}"
