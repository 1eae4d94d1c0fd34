"""P10 from the first seconds: the store fails soon after a first call, a restart or a period."""

import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import idalloc
from bench.hangs import locked
from tests.support.cratedb.cluster import ProxiedCrate
from tests.support.faults import steady_callers
from tests.support.faults.issued_ranges import ReservedPort, boot_time_ns
from tests.support.faults.node_control import NodeControl
from tests.support.faults.scenario import ClientProcess, Scenario, wait_until_serving
from tests.support.faults.steady_callers import IDS_PER_CALL, KINDS, PAUSE, TEN
from tests.support.waiting import hold_for

# From this long after the first call an outage of ``outage_reserve`` is not noticed.
USED_SECONDS = 5.0
# By then a node has measured what its callers need, and has written it with a refill.
KNOWN_SECONDS = 15.0
# A call that waits for the store takes longer; the machine's other load does not.
LONGEST_SECONDS = 1.0
NODE = "tests.support.faults.faulty_node"
DAY = 86_400.0


class Outages(NamedTuple):
    """The stores of a scenario."""

    nodes: int
    # Makes the store unavailable within its block.
    outage: Callable[[], AbstractContextManager[None]]


@pytest.fixture
def settings(scenario: Scenario) -> dict[str, Any]:
    """A short ``outage_reserve``; in the long form the default one."""
    return {} if scenario.full else {"outage_reserve": "20s", "store_timeout": "5s", "lease_ttl": "40s"}


@pytest.fixture
def reserve(scenario: Scenario) -> float:
    """``outage_reserve`` in seconds."""
    return float(scenario.pick(20.0, 90.0))


@pytest.fixture(params=["SQLite", "CrateDB"])
def store(request: pytest.FixtureRequest, scenario: Scenario) -> Iterator[Outages]:
    """One node on SQLite, or three nodes on CrateDB."""
    if request.param == "SQLite":
        yield Outages(1, partial(locked, Path(scenario.store.removeprefix("sqlite://"))))
        return
    with ProxiedCrate(3) as proxied:
        scenario.store = proxied.crate.store

        @contextmanager
        def refused() -> Iterator[None]:
            proxied.inject("refused")
            yield
            proxied.inject()

        yield Outages(3, refused)
        scenario.close()


def outlast(
    scenario: Scenario,
    callers: list[ClientProcess],
    store: Outages,
    seconds: float,
    kinds: Collection[str] = KINDS.keys(),
) -> str:
    """Take the store away for a time; assert that none of these kinds notice; return a note."""
    with store.outage():
        began = boot_time_ns()
        hold_for(seconds, "the store is away")
        ended = boot_time_ns()
    scenario.count_faults()
    steady_callers.wait_for_answers(scenario, callers)
    found = steady_callers.calls_between(callers, began, ended)
    for kind in kinds:
        calls = found[kind]
        failed = [call for call in calls if call.error]
        longest = max(call.seconds for call in calls)
        noticed = min((call.asked for call in calls if call.error or call.seconds > LONGEST_SECONDS), default=ended)
        assert not failed, f"{kind}: {len(failed)} of {len(calls)} calls failed: {failed[0]}"
        assert longest <= LONGEST_SECONDS, f"{kind}: {longest:.1f} s; noticed after {(noticed - began) / 1e9:.1f} s"
        assert len(calls) > seconds * len(callers)
    longest = max(call.seconds for kind in kinds for call in found[kind])
    return f"{sum(len(found[kind]) for kind in kinds):,} calls during the outage: at most {longest:.2f} s"


@pytest.mark.scenario(15, "a store that is away soon after the first call")
def test_an_outage_after_5_seconds_is_not_noticed(
    scenario: Scenario, store: Outages, settings: dict[str, Any], reserve: float
) -> None:
    """P10: from 5 s after a sequence's first call, no outage of ``outage_reserve`` is noticed."""
    nodes = scenario.start_nodes(store.nodes, **settings)
    steady_callers.create_sequences(nodes[0])
    callers = steady_callers.start(scenario, nodes)
    hold_for(USED_SECONDS, "the sequences are used")
    note = outlast(scenario, callers, store, reserve)
    for caller in callers:
        caller.stop()
    scenario.prove(f"{scenario.store_name} for {reserve:g} s, nodes: {store.nodes}", note=note)


@pytest.mark.scenario(15, "a store that is away soon after restarts")
def test_an_outage_after_a_restart_is_not_noticed(
    scenario: Scenario, store: Outages, settings: dict[str, Any], reserve: float
) -> None:
    """P10: a new node has its reserve with its first calls; a kill burns at most four reserves."""
    with ExitStack() as stack:
        ports = [ReservedPort() for _ in range(store.nodes)]
        for port in ports:
            stack.callback(port.close)
        addresses = [port.address for port in ports]
        nodes = scenario.launch_nodes(store.nodes, addresses=addresses, **settings)
        assert all(map(wait_until_serving, nodes))
        steady_callers.create_sequences(nodes[0])
        callers = steady_callers.start(scenario, nodes)
        began = boot_time_ns()
        hold_for(KNOWN_SECONDS, "the sequences are used")
        used = steady_callers.calls_between(callers, began, boot_time_ns())
        for turn, node in enumerate(nodes):
            node.stop(signal.SIGKILL)
            scenario.count_faults()
            [nodes[turn]] = scenario.launch_nodes(1, addresses=[addresses[turn]], **settings)
            assert wait_until_serving(nodes[turn])
            steady_callers.wait_for_answers(scenario, [callers[turn]])
        hold_for(1.0, "the second write of each counter follows the first answer")
        note = outlast(scenario, callers, store, reserve)
    for caller in callers:
        caller.stop()
    for node in nodes:
        assert node.stop() == 0
    verdict = scenario.prove(f"{scenario.store_name} for {reserve:g} s, nodes: {store.nodes}", note=note)
    rate = sum(len(calls) * IDS_PER_CALL[kind] for kind, calls in used.items()) / KNOWN_SECONDS
    assert 0 < verdict.unattributed <= 4 * reserve * rate


@pytest.mark.scenario(15, "a store that is away while a period begins")
def test_an_outage_over_a_periods_start_is_not_noticed(
    scenario: Scenario, store: Outages, settings: dict[str, Any], reserve: float
) -> None:
    """P10: the next period's counter opens early, and serves even if the store is away then."""
    clock = NodeControl(scenario.folder / "clock.json")
    nodes = scenario.start_nodes(store.nodes, module=NODE, arguments=clock.arguments, **settings)
    steady_callers.create_sequences(nodes[0], reset="daily", format="{year}{month}{day}-{value}")
    # Callers start 3 to 1 times outage_reserve before the period's end; the outage 10 s later.
    until_midnight = reserve + 2 * USED_SECONDS
    clock.set_wall_clock(offset=-time.time() % DAY - until_midnight)
    midnight = boot_time_ns() / 1e9 + until_midnight
    callers = steady_callers.start(scenario, nodes)
    hold_for(midnight - reserve / 2 - boot_time_ns() / 1e9, "the period nears its end")
    note = outlast(scenario, callers, store, reserve)
    for caller in callers:
        caller.stop()
    verdict = scenario.prove(f"{scenario.store_name} for {reserve:g} s, nodes: {store.nodes}", note=note)
    assert len({each["period"] for each in verdict.report["sequences"]}) == 2


@pytest.mark.scenario(15, "a store that is away while few ids are left")
def test_a_reserve_takes_at_most_a_hundredth_of_the_ids_left(
    scenario: Scenario, settings: dict[str, Any], reserve: float
) -> None:
    """P10: near its bound a reserve is at most a hundredth of the ids left; else unlimited."""
    store = Outages(1, partial(locked, Path(scenario.store.removeprefix("sqlite://"))))
    node = scenario.start_node(**settings)
    steady_callers.create_sequences(node)
    rate = {kind: count / PAUSE for kind, count in IDS_PER_CALL.items()}
    with idalloc.Client(node.address, timeout=30) as client:
        for kind, name in KINDS.items():  # a hundredth lasts for one and a half reserves, of one kind for less
            client.sequences.update(name, max_value=round(100 * rate[kind] * reserve * 1.5))
        client.sequences.update(KINDS[TEN], max_value=(few := round(100 * rate[TEN] * reserve / 4)))
        [caller] = callers = steady_callers.start(scenario, [node])
        hold_for(USED_SECONDS, "the sequences are used")
        last_value = client.sequences.get(KINDS[TEN]).last_value or 0
        held = last_value - 10 * steady_callers.answers(caller)[TEN]
        assert rate[TEN] * reserve / 8 < held <= few / 100
        note = outlast(scenario, callers, store, reserve, KINDS.keys() - {TEN})
    caller.stop()
    scenario.prove(f"{scenario.store_name} for {reserve:g} s, nodes: 1", note=note)
