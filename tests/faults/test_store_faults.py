"""The store answers late, hangs, resets connections, loses answers, applies twice, is away: no id comes back."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

import pytest

import idalloc
from tests.faults.callers import end, longest_stall, start_callers, start_steady, wait_for_reserve
from tests.faults.control import Control, Kind, harmed
from tests.faults.cratedb import Proxied
from tests.faults.proxy import KINDS
from tests.faults.scenario import SHORT_LEASES, Scenario
from tests.support.processes import Server

# How long a CrateDB with a paused node was seen to hang.
HANG_SECONDS = 32
# What becomes of any statement: the load hardly reads.
HARMS = KINDS.keys() - {"disconnected"}
# Calls of the store that callers wait for, or whose ids they get.
METHODS = ["grant", "grant_timestamps", "create", "record", "give_back"]
LONG = pytest.mark.long


def terms(scenario: Scenario) -> list[dict[str, Any]]:
    """The settings of nodes of which the first give a store up that others wait for."""
    return [SHORT_LEASES, *scenario.pick([SHORT_LEASES], [{}, {}])]


@pytest.mark.scenario(4, "a store that fails in every way, under load")
class TestUnderLoad:
    def test_no_fault_of_cratedb_brings_an_id_back(self, scenario: Scenario) -> None:
        with Proxied() as proxied:
            scenario.store = proxied.crate.store
            nodes = [scenario.start_node(**each) for each in terms(scenario)]
            callers = start_callers(scenario, nodes)

            for kind in sorted(HARMS):
                goal = proxied.harmed[kind] + 1
                proxied.harm(kind, share=1.0 if kind in ("hang", "refused") else 0.4, late=1.2, twice=0.2)
                time.sleep(scenario.pick(1.2, HANG_SECONDS) if kind == "hang" else scenario.pick(0.1, 6))
                scenario.wait_until(partial(has_harmed, proxied, kind, goal), kind)
            proxied.harm(*(HARMS - {"refused", "hang"}), share=0.3, late=2)
            time.sleep(scenario.pick(0.5, 60))
            counts = proxied.harm()

            errors = end(scenario, callers, nodes)
            scenario.fault(counts.total())
            verdict = scenario.prove("CrateDB", note=_note(counts, errors))
        assert counts.keys() == HARMS
        assert verdict.burned["unknown_outcome"]
        assert not any("emulator does not know" in node.log.read_text() for node in nodes)

    def test_no_fault_of_sqlite_brings_an_id_back(self, scenario: Scenario) -> None:
        harms = [Control(scenario.folder / f"control-{number}") for number in range(len(terms(scenario)))]
        nodes = [
            scenario.start_node(module="tests.faults.node", arguments=control.arguments, **each)
            for control, each in zip(harms, terms(scenario), strict=True)
        ]
        callers = start_callers(scenario, nodes)

        dice = random.Random(seed := random.randrange(2**32))
        print("seed:", seed)
        for kind in get_args(Kind):
            until = time.monotonic() + scenario.pick(0, 6)
            while time.monotonic() < until or count_harms(nodes)[kind] == 0:
                for control in harms:
                    control.harm(kind, *METHODS, times=dice.randint(1, 3), seconds=dice.uniform(0, 2))
                time.sleep(0.1)
                for control in harms:
                    control.heal()
        for control in harms:
            control.harm("late", seconds=scenario.pick(1.5, HANG_SECONDS))
        time.sleep(scenario.pick(1.5, HANG_SECONDS))
        for control in harms:
            control.heal()

        errors = end(scenario, callers, nodes)
        counts = count_harms(nodes)
        scenario.fault(counts.total())
        verdict = scenario.prove("SQLite", note=_note(counts, errors))
        assert counts.keys() == set(get_args(Kind))
        assert verdict.burned["unknown_outcome"]


@contextmanager
def hanging_cratedb(scenario: Scenario, settings: dict[str, Any]) -> Iterator[tuple[Server, Any, Any]]:
    """A node on a store; what lets that hang; what lets it go on, and says how many statements hung."""
    with Proxied() as proxied:
        scenario.store = proxied.crate.store
        yield scenario.start_node(**settings), lambda: proxied.harm("hang"), lambda: proxied.harm()["hang"]


@contextmanager
def hanging_sqlite(scenario: Scenario, settings: dict[str, Any]) -> Iterator[tuple[Server, Any, Any]]:
    """The same."""
    control = Control(scenario.folder / "control")
    node = scenario.start_node(module="tests.faults.node", arguments=control.arguments, **settings)
    hang = scenario.pick(3, HANG_SECONDS)

    def heal() -> int:
        control.heal()
        return harmed(node.log).total()

    yield node, lambda: control.harm("late", seconds=hang), heal


@pytest.mark.scenario(4, "a store that hangs, under a caller at a steady rate")
@pytest.mark.parametrize(
    ("store", "hanging"), [pytest.param("CrateDB", hanging_cratedb, marks=LONG), ("SQLite", hanging_sqlite)]
)
def test_a_store_that_hangs_is_not_noticed_by_callers_of_a_sequence_in_use(
    scenario: Scenario, store: str, hanging: Any
) -> None:
    # In the long form all is as it is by default.
    settings = scenario.pick({"outage_reserve": "20s", "store_timeout": "6s", "lease_ttl": "40s"}, {})
    hang = scenario.pick(3, HANG_SECONDS)
    with hanging(scenario, settings) as (node, let_hang, let_go_on):
        caller = start_steady(scenario, node)
        wait_for_reserve(scenario, node, caller, 1.25 * hang)
        begun = caller.records
        let_hang()
        time.sleep(hang / 2)
        before = caller.records
        time.sleep(hang / 2)
        after = caller.records
        hung = let_go_on()
        scenario.wait_for_records([caller], 50)
        summary = caller.stop()
        scenario.fault()
        stall = longest_stall(caller, begun)
        scenario.prove(f"{store} for {hang} s", note=f"the steady caller: {stall:.2f} s")
    assert hung  # the node asked, and waited
    assert not summary.errors, summary.messages
    assert after > before
    assert stall < hang


@pytest.mark.scenario(4, "a store that hangs, under callers of nodes that share a sequence")
@pytest.mark.parametrize(
    "sizes",
    [pytest.param([1], marks=LONG), pytest.param([10], marks=LONG), [7, 1, 10, 2]],
    ids=["1 id", "10 ids", "mixed"],
)
def test_a_hanging_store_is_not_noticed_where_nodes_share(scenario: Scenario, sizes: list[int]) -> None:
    """P10: with many pieces in each lease, a call is served from the first piece that has enough ids."""
    # The hang outlasts what one refill brings, so that callers come to the end of a piece.
    settings = scenario.pick({"outage_reserve": "12s", "store_timeout": "15s", "lease_ttl": "40s"}, {})
    hang = scenario.pick(8, HANG_SECONDS)
    calls_a_second, size = 20, sum(sizes) / len(sizes)
    controls = [Control(scenario.folder / f"control-{number}") for number in range(2)]
    nodes = [
        scenario.start_node(module="tests.faults.node", arguments=control.arguments, **settings) for control in controls
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
            held = client.sequences.get("shared").last_value - size * sum(caller.records for caller in callers)
            return bool(held > 1.25 * hang * calls_a_second * size * len(nodes))

        scenario.wait_until(has_reserve, "a reserve", within=240)
    begun = [caller.records for caller in callers]
    for control in controls:
        control.harm("late", seconds=hang)
    time.sleep(hang)
    scenario.fault()
    stalls = [longest_stall(caller, since) for caller, since in zip(callers, begun, strict=True)]
    for control in controls:
        control.heal()
    scenario.wait_for_records(callers, 50)
    for caller in callers:
        summary = caller.stop()
        assert not summary.errors, summary.messages
    for node in nodes:
        assert node.stop(timeout=60) == 0
    assert all(harmed(node.log) for node in nodes)  # each asked the store, and waited
    scenario.prove(f"calls of {', '.join(map(str, sizes))} for {hang} s", note=f"the callers: {max(stalls):.2f} s")
    assert max(stalls) < hang / 2


def has_harmed(proxied: Proxied, kind: str, goal: int) -> bool:
    """Whether statements were harmed so often."""
    return proxied.harmed[kind] >= goal


def count_harms(nodes: list[Server]) -> Counter[str]:
    """How many calls to the store were harmed, by kind."""
    counts = Counter[str]()
    for node in nodes:
        for (what, _), count in harmed(node.log).items():
            counts[what] += count
    return counts


def _note(counts: Counter[str], errors: Counter[str]) -> str:
    return f"{', '.join(f'{count:,} {kind}' for kind, count in sorted(counts.items()))}; {errors.total():,} refused"
