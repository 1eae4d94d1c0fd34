"""The store is slow, hangs, resets, loses answers, applies twice, or is down: no id is repeated."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

import idalloc
from tests.faults.conftest import ON_OPENSEARCH
from tests.support.cratedb.cluster import FaultProxy, ProxiedCrate
from tests.support.cratedb.fault_proxy import FAULT_KINDS
from tests.support.faults.node_control import FaultKind, NodeControl, injected_faults
from tests.support.faults.scenario import SHORT_LEASES, Scenario
from tests.support.faults.workload import longest_stall, start_callers, start_steady_caller, stop_all, wait_for_reserve
from tests.support.opensearch.real import RELEASES, OpenSearchNode, missing
from tests.support.processes import Server
from tests.support.waiting import hold_for

# Measured time for which a CrateDB with a paused node hangs.
HANG_SECONDS = 32
# Faults of any statement; the load hardly reads.
ANY_STATEMENT = FAULT_KINDS.keys() - {"disconnected"}
# Faults of a proxy that mixes up answers.
MIXED = ("crossed", "repeated")
# Methods of the store that callers wait for, or that grant ids.
METHODS = ["grant", "grant_timestamps", "create", "record", "give_back"]
LONG = pytest.mark.long


def node_settings(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the nodes' settings: short timeouts, and in the long form also the default ones."""
    return [SHORT_LEASES, *scenario.pick([SHORT_LEASES], [{}, {}])]


@pytest.mark.scenario(4, "a store that fails in every way, under load")
class TestUnderLoad:
    def test_no_fault_of_cratedb_repeats_an_id(self, scenario: Scenario) -> None:
        """P1: late, lost, repeated and refused statements of CrateDB repeat no id under load."""
        with ProxiedCrate() as proxied:
            scenario.store = proxied.crate.store
            nodes = [scenario.start_node(**each) for each in node_settings(scenario)]
            callers = start_callers(scenario, nodes)

            for kind in sorted(ANY_STATEMENT):
                goal = proxied.injected[kind] + 1
                if kind == "refused":
                    scenario.wait_until(partial(refuse, proxied, goal), "an open connection to reset")
                else:
                    proxied.inject(kind, share=1.0 if kind == "hang" else 0.4, late=1.2, twice=0.2)
                hold_for(
                    scenario.pick(1.2, HANG_SECONDS) if kind == "hang" else scenario.pick(0.1, 6), "the store fails"
                )
                scenario.wait_until(partial(has_injected, proxied, kind, goal), kind)
            proxied.inject(*(ANY_STATEMENT - {"refused", "hang"}), share=0.3, late=2)
            hold_for(scenario.pick(0.5, 60), "the store fails")
            counts = proxied.inject()

            errors = stop_all(scenario, callers, nodes)
            scenario.count_faults(counts.total())
            verdict = scenario.prove("CrateDB", note=_note(counts, errors))
        assert counts.keys() == ANY_STATEMENT
        assert verdict.burned["unknown_outcome"]
        assert not any("emulator does not know" in node.log.read_text() for node in nodes)

    @ON_OPENSEARCH
    def test_mixed_up_answers_repeat_no_id(self, scenario: Scenario, opensearch_url: str) -> None:
        """P1: a proxy that crosses and repeats OpenSearch's answers repeats no id under load."""
        host = urlsplit(opensearch_url).netloc
        with FaultProxy([host]) as proxy:
            scenario.store = opensearch_url.replace(host, proxy.hosts[0])
            nodes = [scenario.start_node(**each) for each in node_settings(scenario)]
            callers = start_callers(scenario, nodes)
            for kind in MIXED:
                goal = proxy.injected[kind] + scenario.pick(5, 200)
                proxy.inject(kind, share=0.3)
                scenario.wait_until(partial(has_injected, proxy, kind, goal), kind)
            counts = proxy.inject()
            errors = stop_all(scenario, callers, nodes)
        scenario.count_faults(counts.total())
        scenario.store = opensearch_url
        scenario.prove("a proxy mixes up answers of OpenSearch", note=_note(counts, errors))
        assert any('"wrong_answer"' in node.log.read_text() for node in nodes)

    def test_no_fault_of_sqlite_repeats_an_id(self, scenario: Scenario) -> None:
        """P1: late, lost, repeated and refused statements of SQLite repeat no id under load."""
        controls = [
            NodeControl(scenario.folder / f"control-{number}") for number in range(len(node_settings(scenario)))
        ]
        nodes = [
            scenario.start_node(module="tests.support.faults.faulty_node", arguments=control.arguments, **each)
            for control, each in zip(controls, node_settings(scenario), strict=True)
        ]
        callers = start_callers(scenario, nodes)

        rng = random.Random(seed := random.randrange(2**32))
        print("seed:", seed)
        for kind in get_args(FaultKind):
            until = time.monotonic() + scenario.pick(0, 6)
            while time.monotonic() < until or count_injected(nodes)[kind] == 0:
                for control in controls:
                    control.inject(kind, *METHODS, times=rng.randint(1, 3), seconds=rng.uniform(0, 2))
                hold_for(0.1, "calls of the store fail")
                for control in controls:
                    control.clear_faults()
        for control in controls:
            control.inject("late", seconds=scenario.pick(1.5, HANG_SECONDS))
        hold_for(scenario.pick(1.5, HANG_SECONDS), "the store hangs")
        for control in controls:
            control.clear_faults()

        errors = stop_all(scenario, callers, nodes)
        counts = count_injected(nodes)
        scenario.count_faults(counts.total())
        verdict = scenario.prove("SQLite", note=_note(counts, errors))
        assert counts.keys() == set(get_args(FaultKind))
        assert verdict.burned["unknown_outcome"]


@contextmanager
def hanging_cratedb(scenario: Scenario, settings: dict[str, Any]) -> Iterator[tuple[Server, Any, Any]]:
    """Yield a node on CrateDB, a function that hangs the store, and one that resumes and counts."""
    with ProxiedCrate() as proxied:
        scenario.store = proxied.crate.store
        yield scenario.start_node(**settings), lambda: proxied.inject("hang"), lambda: proxied.inject()["hang"]


@contextmanager
def hanging_sqlite(scenario: Scenario, settings: dict[str, Any]) -> Iterator[tuple[Server, Any, Any]]:
    """Yield a node on SQLite, and the same functions."""
    control = NodeControl(scenario.folder / "control")
    node = scenario.start_node(module="tests.support.faults.faulty_node", arguments=control.arguments, **settings)
    hang = scenario.pick(3, HANG_SECONDS)

    def heal() -> int:
        control.clear_faults()
        return injected_faults(node.log).total()

    yield node, lambda: control.inject("late", seconds=hang), heal


@contextmanager
def hanging_opensearch(scenario: Scenario, settings: dict[str, Any]) -> Iterator[tuple[Server, Any, Any]]:
    """Yield a node on a real OpenSearch that is paused by SIGSTOP, and the same functions."""
    release = RELEASES["3.8.0"]
    if reason := missing(release):
        pytest.skip(reason)
    with OpenSearchNode(release, scenario.folder / "opensearch") as opensearch:
        scenario.store = f"opensearch://{opensearch.host}/"

        def resume() -> int:
            waiting = unread_bytes(int(opensearch.host.rpartition(":")[2]))
            opensearch.send(signal.SIGCONT)
            return waiting

        try:
            yield scenario.start_node(**settings), lambda: opensearch.send(signal.SIGSTOP), resume
        finally:
            opensearch.send(signal.SIGCONT)
            scenario.close()


def unread_bytes(port: int) -> int:
    """Return the size of the requests that a process has received on a port and not read."""
    unread = 0
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, _, queues, *_ = line.split()
            unread += int(queues.partition(":")[2], 16) if local.endswith(f":{port:04X}") else 0
    return unread


@pytest.mark.scenario(4, "a store that hangs, under a caller at a steady rate")
@pytest.mark.parametrize(
    ("store", "hanging"),
    [
        pytest.param("CrateDB", hanging_cratedb, marks=LONG),
        ("SQLite", hanging_sqlite),
        ("a real OpenSearch", hanging_opensearch),
    ],
)
def test_a_hanging_store_causes_no_errors_for_a_sequence_in_use(scenario: Scenario, store: str, hanging: Any) -> None:
    """P10: a steady caller of a sequence in use gets no errors while the store hangs."""
    # The long form has the default settings.
    settings = scenario.pick({"outage_reserve": "20s", "store_timeout": "6s", "lease_ttl": "40s"}, {})
    # The hang outlasts one refill, so that the node calls the store meanwhile.
    hang = scenario.pick(8, HANG_SECONDS)
    with hanging(scenario, settings) as (node, hang_store, resume_store):
        caller = start_steady_caller(scenario, node)
        wait_for_reserve(scenario, node, caller, 1.25 * hang)
        begun = caller.records
        hang_store()
        hold_for(hang / 2, "the store hangs")
        before = caller.records
        hold_for(hang / 2, "the store hangs")
        after = caller.records
        hung = resume_store()
        scenario.wait_for_records([caller], 50)
        summary = caller.stop()
        scenario.count_faults()
        stall = longest_stall(caller, begun)
        scenario.prove(f"{store} for {hang} s", note=f"the steady caller: {stall:.2f} s")
    assert hung  # the node called the store meanwhile
    assert not summary.errors, summary.messages
    assert after > before
    assert stall < hang


@pytest.mark.scenario(4, "a store that hangs, under callers of nodes that share a sequence")
@pytest.mark.parametrize(
    "sizes",
    [pytest.param([1], marks=LONG), pytest.param([10], marks=LONG), [7, 1, 10, 2]],
    ids=["1 id", "10 ids", "mixed"],
)
def test_a_hanging_store_causes_no_errors_on_shared_sequences(scenario: Scenario, sizes: list[int]) -> None:
    """P10: of a lease's many pieces, the first with enough ids serves a call."""
    # The hang outlasts one refill, so that callers exhaust a piece.
    settings = scenario.pick({"outage_reserve": "12s", "store_timeout": "15s", "lease_ttl": "40s"}, {})
    hang = scenario.pick(8, HANG_SECONDS)
    calls_a_second, size = 20, sum(sizes) / len(sizes)
    controls = [NodeControl(scenario.folder / f"control-{number}") for number in range(2)]
    nodes = [
        scenario.start_node(module="tests.support.faults.faulty_node", arguments=control.arguments, **settings)
        for control in controls
    ]
    callers = [
        scenario.start_client(
            node, sequence="shared", id_count=sizes[turn:] + sizes[:turn], pause=1 / calls_a_second, timeout=120
        )
        for turn, node in enumerate(nodes)
    ]
    scenario.wait_for_records(callers, 20)
    with idalloc.Client(nodes[0].address, timeout=30) as client:

        def has_reserve() -> bool:
            held = (client.sequences.get("shared").last_value or 0) - size * sum(caller.records for caller in callers)
            return bool(held > 1.25 * hang * calls_a_second * size * len(nodes))

        scenario.wait_until(has_reserve, "a reserve", within=240)
    begun = [caller.records for caller in callers]
    for control in controls:
        control.inject("late", seconds=hang)
    hold_for(hang, "the store hangs")
    scenario.count_faults()
    stalls = [longest_stall(caller, since) for caller, since in zip(callers, begun, strict=True)]
    for control in controls:
        control.clear_faults()
    scenario.wait_for_records(callers, 50)
    for caller in callers:
        summary = caller.stop()
        assert not summary.errors, summary.messages
    for node in nodes:
        assert node.stop(timeout=60) == 0
    assert all(injected_faults(node.log) for node in nodes)  # each called the store meanwhile
    scenario.prove(f"calls of {', '.join(map(str, sizes))} for {hang} s", note=f"the callers: {max(stalls):.2f} s")
    assert max(stalls) < hang / 2


def has_injected(proxied: FaultProxy, kind: str, goal: int) -> bool:
    """Whether the proxy has injected this number of faults."""
    return proxied.injected[kind] >= goal


def refuse(proxied: ProxiedCrate, goal: int) -> bool:
    """Refuse connections; return whether open ones were reset. A refused node opens none."""
    if proxied.injected["refused"] < goal:
        proxied.inject()
        hold_for(0.5, "the node opens a connection")
        proxied.inject("refused")
    return has_injected(proxied, "refused", goal)


def count_injected(nodes: list[Server]) -> Counter[str]:
    """Return the number of faults in the nodes' calls to the store, by kind."""
    counts = Counter[str]()
    for node in nodes:
        for (what, _), count in injected_faults(node.log).items():
            counts[what] += count
    return counts


def _note(counts: Counter[str], errors: Counter[str]) -> str:
    return f"{', '.join(f'{count:,} {kind}' for kind, count in sorted(counts.items()))}; {errors.total():,} refused"
