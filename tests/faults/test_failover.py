"""The primary of the counters' table is lost, and another copy promoted, while nodes serve.

A real cluster is tried where `IDALLOC_TEST_CRATEDB_URL` names all its hosts and `IDALLOC_TEST_CRATEDB_HARM` a command
that harms them (see `tests/faults/cratedb.py`). Else, and besides, a proxy in front of the emulator behaves as a
CrateDB 6.4.3 of three nodes was seen to: while another copy is promoted, writes stand still, and some are then applied
twice.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import pytest

import idalloc
from tests.faults.callers import end, longest_stall, start_callers, start_steady, wait_for_reserve
from tests.faults.cratedb import HARM, URL, Cratedb, Proxied
from tests.faults.scenario import SHORT_LEASES, ClientProcess, Scenario
from tests.support import issued_log
from tests.support.processes import Server

HOSTS = 3
# How long writes were seen to stand still where the primary was killed, and where it was paused.
KILLED_SECONDS, PAUSED_SECONDS = 0.86, 32
# How many of the writes that stood still were then applied twice; more than were seen.
TWICE = 0.5


@pytest.fixture
def cluster() -> Iterator[Cratedb]:
    """A real one that may be harmed, in a schema of its own."""
    if not URL or not HARM:
        pytest.skip("needs a cluster (IDALLOC_TEST_CRATEDB_URL) and what harms it (IDALLOC_TEST_CRATEDB_HARM)")
    crate = Cratedb.real()
    if len(crate.hosts) < HOSTS:
        pytest.skip(f"IDALLOC_TEST_CRATEDB_URL must name {HOSTS} hosts or more")
    yield crate
    crate.remove()


# What callers ask for, in ids a call: one caller each, all of one sequence.
SIZES: dict[str, Any] = {"1 id": 1, "10 ids": 10, "mixed": [7, 1, 10, 2]}
# What nodes hold ahead by default, and a little more: not every node holds the same.
RESERVE_SECONDS = 100

TITLE = "a primary lost and another copy promoted"


@pytest.mark.scenario(6, TITLE)
class TestAsRecorded:
    def test_a_killed_primary_brings_no_id_back(self, scenario: Scenario) -> None:
        with Proxied(HOSTS) as proxied:
            nodes = start_nodes(scenario, proxied.crate, **SHORT_LEASES)
            callers = start_callers(scenario, nodes)
            for turn in range(scenario.pick(2, 15)):
                lost = turn % HOSTS
                survivors = [host for host in range(HOSTS) if host != lost]
                for host in survivors:
                    proxied.harm("hang", host=host, twice=TWICE)
                proxied.harm("refused", host=lost)
                time.sleep(KILLED_SECONDS)
                # For a moment reads fail where writes go on.
                for host in survivors:
                    proxied.harm("disconnected", host=host)
                look_at_sequence(nodes[turn % HOSTS])
                for host in survivors:
                    proxied.harm(host=host)
                scenario.wait_for_records(callers, 2)  # one host is still away
                proxied.harm(host=lost)
                scenario.fault()
            errors = end(scenario, callers, nodes)
            harmed = proxied.harm()
            scenario.prove("killed, as recorded", note=note(errors))
        assert {"hang", "twice", "refused", "disconnected"} <= harmed.keys()

    def test_a_paused_host_holds_a_first_call_up_for_seconds(self, scenario: Scenario) -> None:
        """P10: a call that no lease can serve costs about 3 seconds, where the other hosts serve."""
        with Proxied(HOSTS) as proxied:
            scenario.store = proxied.crate.store
            node = scenario.start_node(store=proxied.crate.in_order(0))
            proxied.harm("hang", host=0)
            scenario.fault()
            begun = time.monotonic()
            with idalloc.Client(node.address, timeout=60) as client:
                assert len(client.allocate_range("new", 5)) == 5
                # The second refill goes to the host that answered the first one.
                assert len(client.allocate_range("another", 5)) == 5
            took = time.monotonic() - begun
            harmed = proxied.harm()
        assert harmed["hang"]
        assert took < 20

    @pytest.mark.long
    def test_a_paused_primary_is_not_noticed_by_callers_of_a_sequence_in_use(self, scenario: Scenario) -> None:
        hang = scenario.pick(3, PAUSED_SECONDS)
        # In the long form all is as it is by default.
        settings = scenario.pick({"outage_reserve": "20s", "store_timeout": "4s", "lease_ttl": "40s"}, {})
        with Proxied(HOSTS) as proxied:
            nodes = start_nodes(scenario, proxied.crate, **settings)
            callers = start_callers(scenario, nodes)
            steady = start_steady(scenario, nodes[0])
            wait_for_reserve(scenario, nodes[0], steady, scenario.pick(5, 48))
            begun = steady.records
            # The first node prefers the paused host. The others live, and their writes wait for it.
            proxied.harm("hang", host=0, twice=TWICE)
            for host in range(1, HOSTS):
                proxied.harm("stuck", host=host, twice=TWICE)
            time.sleep(hang)
            # Another copy was promoted. The paused host says nothing still.
            for host in range(1, HOSTS):
                proxied.harm(host=host)
            time.sleep(hang / 2)
            # It wakes up, and with it all that was sent to it.
            harmed = proxied.harm(host=0)
            scenario.fault()
            scenario.wait_for_records([steady], 20)
            seen = steady.stop()
            errors = end(scenario, callers, nodes)
            stall = longest_stall(steady, begun)
            scenario.prove(f"paused for {hang} s, as recorded", note=note(errors, stall))
        assert harmed["hang"]
        assert harmed["stuck"]
        assert stall < hang
        assert not seen.errors, seen.messages


@pytest.mark.cratedb
@pytest.mark.scenario(6, TITLE)
class TestRealCluster:
    def test_a_killed_primary_brings_no_id_back(self, scenario: Scenario, cluster: Cratedb) -> None:
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        for _ in range(scenario.pick(1, 4)):
            lost = lose_primary(scenario, cluster, "kill")
            scenario.wait_for_records(callers, 5, within=180)
            assert cluster.primary() != lost
            cluster.harm("start", lost)
        errors = end(scenario, callers, nodes)
        scenario.prove("killed, a real CrateDB", note=note(errors))

    def test_a_paused_primary_is_not_noticed_by_callers_of_a_sequence_in_use(
        self, scenario: Scenario, cluster: Cratedb
    ) -> None:
        nodes = start_nodes(scenario, cluster)
        callers = start_callers(scenario, nodes, pause=0.05)
        steady = [start_steady(scenario, node, number) for number, node in enumerate(nodes)]
        for number, (node, caller) in enumerate(zip(nodes, steady, strict=True)):
            wait_for_reserve(scenario, node, caller, 48, number)
        begun = [caller.records for caller in steady]
        lost = lose_primary(scenario, cluster, "pause")
        try:
            scenario.wait_for_records(callers, 5, within=180)
        finally:
            cluster.harm("resume", lost)
        scenario.wait_for_records(steady, 20)
        seen = [caller.stop() for caller in steady]
        errors = end(scenario, callers, nodes)
        scenario.wait_until(lambda: cluster.copies() == HOSTS, "the woken node has a copy again", within=180)
        assert cluster.primary() != lost
        stalls = [longest_stall(caller, since) for caller, since in zip(steady, begun, strict=True)]
        scenario.prove("paused, a real CrateDB", note=note(errors, max(stalls)))
        assert not any(each.errors for each in seen), seen
        assert max(stalls) < PAUSED_SECONDS / 2

    @pytest.mark.long
    @pytest.mark.parametrize("what", ["kill", "pause"])
    def test_any_lost_node_brings_no_id_back(
        self, scenario: Scenario, cluster: Cratedb, what: Literal["kill", "pause"]
    ) -> None:
        """P1, P10: each node in turn is lost, and at last the one that is both master and primary."""
        nodes = start_nodes(scenario, cluster)
        callers = {
            name: scenario.start_client(node, sequence="shared", id_count=sizes, pause=0.05, timeout=120)
            for node, (name, sizes) in zip(nodes, SIZES.items(), strict=True)
        }
        stalls: dict[str, list[float]] = {name: [] for name in callers}
        scenario.wait_for_records(list(callers.values()), 20)
        names = [*cluster.nodes(), ""]
        for name in names:
            scenario.wait_until(lambda: cluster.copies() == HOSTS, "a copy on each node", within=180)
            lost = name or master_and_primary(scenario, cluster)
            wait_for_shared_reserve(scenario, nodes, list(callers.values()))
            begun = {each: caller.records for each, caller in callers.items()}
            cluster.harm(what, lost)
            scenario.fault()
            # Until the cluster serves again, by a statement that needs the primary.
            scenario.wait_until(lambda: cluster.writes("shared"), "a cluster that serves again", within=180)
            cluster.harm("start" if what == "kill" else "resume", lost)
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


def master_and_primary(scenario: Scenario, cluster: Cratedb) -> str:
    """Returns the node that is both, after killing masters until the one with the primary is elected."""
    for _ in range(12):
        primary, master = cluster.primary(), cluster.master()
        if primary == master:
            return primary
        cluster.harm("kill", master)
        cluster.harm("start", master)
        scenario.wait_until(lambda: cluster.copies() == HOSTS, "a copy on each node", within=180)
    raise AssertionError("the node with the primary was never elected")


def wait_for_shared_reserve(scenario: Scenario, nodes: list[Server], callers: list[ClientProcess]) -> None:
    """Waits until the nodes together hold what their callers use in ``outage_reserve``."""

    def issued() -> int:
        return sum(record.id_count for caller in callers for record in issued_log.read(caller.log).records)

    def burned() -> int:
        lines = [line for node in nodes for line in node.log.read_text().splitlines() if '"burned"' in line]
        return sum(event["ids"] for event in map(json.loads, lines) if event["event"] == "burned")

    with idalloc.Client(nodes[0].address, timeout=60) as client:

        def has_reserve() -> bool:
            began, before = time.monotonic(), issued()
            time.sleep(2)
            rate = (issued() - before) / (time.monotonic() - began)
            held = client.sequences.get("shared").last_value - issued() - burned()
            return held > RESERVE_SECONDS * rate

        scenario.wait_until(has_reserve, "a reserve", within=400)


def start_nodes(scenario: Scenario, crate: Cratedb, **settings: Any) -> list[Server]:
    """A node for each host, which asks that one first."""
    scenario.store = crate.store
    return [scenario.start_node(store=crate.in_order(first), **settings) for first in range(HOSTS)]


def look_at_sequence(node: Server) -> None:
    """Has a node read."""
    with idalloc.Client(node.address, timeout=0.5) as client, suppress(idalloc.Unavailable, idalloc.DeadlineExceeded):
        client.sequences.get("invoices")


def lose_primary(scenario: Scenario, cluster: Cratedb, what: Literal["kill", "pause"]) -> str:
    """Kills or pauses the CrateDB node with the primary, when each one has a copy; returns its name."""
    scenario.wait_until(lambda: cluster.copies() == HOSTS, "a copy on each node", within=180)
    lost = cluster.primary()
    cluster.harm(what, lost)
    scenario.fault()
    return lost


def note(errors: Counter[str], stall: float | None = None) -> str:
    """What callers saw, and how long one at a steady rate waited."""
    waited = "" if stall is None else f"; the steady caller: {stall:.2f} s"
    return f"{errors.total():,} calls refused{waited}"
