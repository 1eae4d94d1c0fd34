"""The controlled server of the fault scenarios follows its control file."""

import asyncio
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import idalloc
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import Refusal, StoreUnavailable
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Row
from idalloc_server.store.urls import open_store
from tests.support.faults.faulty_node import ControlFile, ControlledClock, FaultyStore
from tests.support.faults.node_control import FaultKind, NodeControl, fork_exit_codes, fork_results, injected_faults
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server

DAY = 86400.0


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    scenario = Scenario(tmp_path, full=False)
    yield scenario
    scenario.close()


@pytest.fixture
def control(tmp_path: Path) -> NodeControl:
    return NodeControl(tmp_path / "control.json")


def start(scenario: Scenario, control: NodeControl, **settings: object) -> Server:
    [node] = scenario.start_nodes(1, module="tests.support.faults.faulty_node", arguments=control.arguments, **settings)
    return node


def test_clock_changes_take_effect_at_once(control: NodeControl) -> None:
    """The controlled clocks follow each change of the control file at once."""
    clock, real = ControlledClock(ControlFile(control.file)), SystemClock()
    assert clock.wall() == pytest.approx(real.wall(), abs=5)
    control.set_wall_clock(offset=-DAY)
    assert clock.wall() == pytest.approx(real.wall() - DAY, abs=5)
    control.set_wall_clock(4e9)
    assert clock.wall() == clock.wall() == 4e9
    control.advance_boot_clock(DAY)
    assert clock.boot() == pytest.approx(real.boot() + DAY, abs=5)
    control.advance_boot_clock(0)
    control.set_wall_clock()
    assert clock.wall() == pytest.approx(real.wall(), abs=5)
    assert clock.boot() == pytest.approx(real.boot() + DAY, abs=5)


# The answer to a grant of 3 ids, and the counter afterwards.
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "answer", "counter"),
    [
        ("late", "3", 3),
        ("slow", "3", 3),
        ("hang", "TimeoutError", 0),
        ("mute", "TimeoutError", 3),
        ("failed", "StoreOutcomeUnknown", 0),
        ("lost", "StoreOutcomeUnknown", 3),
        ("later", "StoreOutcomeUnknown", 3),
        ("twice", "6", 6),
        ("again", "3", 6),
        ("rejected", "StoreAnsweredError", 0),
        ("unreachable", "StoreUnreachable", 0),
    ],
)
async def test_each_kind_of_fault_has_its_documented_effect(
    kind: FaultKind, answer: str, counter: int, control: NodeControl, tmp_path: Path
) -> None:
    """Each kind of store fault gives the documented answer and leaves the documented counter."""
    real = open_store(f"sqlite://{tmp_path}/ids.db", SystemClock())
    store = FaultyStore(real, ControlFile(control.file))
    await store.open()
    try:
        await store.create(Row("orders", 0, Sequence()))
        control.inject(kind, "grant", times=1, seconds=0.2)
        began = time.monotonic()
        try:
            patience = 0.5 if answer == "TimeoutError" else 20
            found = str((await asyncio.wait_for(store.grant("orders", 3, 1000), patience)).last_value)
        except (StoreUnavailable, TimeoutError) as error:
            found = type(error).__name__
        assert found == answer
        if kind in ("late", "slow"):
            assert time.monotonic() - began >= 0.2
        if kind == "later":
            assert await last_value(store) == 0
            await asyncio.wait(store._late)
        assert await last_value(store) == counter
        assert (await store.grant("orders", 3, 1000)).last_value == counter + 3  # the fault applied once
    finally:
        await store.close()


async def last_value(store: FaultyStore) -> int:
    row = await store.get("orders")
    assert row.last_value is not None
    return int(row.last_value)


async def test_faults_apply_to_named_methods_until_cleared(control: NodeControl, tmp_path: Path) -> None:
    """A fault applies to the named methods, or to all, until it is cleared."""
    store = FaultyStore(open_store(f"sqlite://{tmp_path}/ids.db", SystemClock()), ControlFile(control.file))
    await store.open()
    try:
        control.inject("rejected", "create", "get")
        for _ in range(3):
            with pytest.raises(Refusal):
                await store.get("orders")
        assert await store.claimed_starts() == {}
        control.inject("unreachable")
        with pytest.raises(Refusal, match="503"):
            await store.get("orders")
        with pytest.raises(Refusal, match="no connection"):
            await store.claimed_starts()
        control.clear_faults()
        assert await store.get("orders") is None
    finally:
        await store.close()


def test_a_running_node_with_workers_follows_its_control_file(
    scenario: Scenario, control: NodeControl, tmp_path: Path
) -> None:
    """Every worker of a node follows the control file: clocks, faults and fork commands."""
    workers = 2
    control.set_wall_clock(3e9)
    node = start(scenario, control, workers=workers)
    with idalloc.Client(node.address, timeout=20) as client:
        assert client.node().start_timestamp in range(3 * 10**9, 3 * 10**9 + workers)
        control.inject("rejected", "grant", times=1)
        assert len(client.allocate_range("orders", 10)) == 10  # the SDK retries
        assert injected_faults(node.log)["rejected", "grant"] == 1
        before = client.uuids(1000)
        assert before[0].int >> 80 == 3e12

        control.fork(tmp_path / "fork.ids", "orders")
        scenario.wait_until(lambda: len(fork_exit_codes(node.log)) == workers, "the forks")
        got = fork_results(tmp_path / "fork.ids")
        assert len(got) + sum(code != 0 for code in fork_exit_codes(node.log)) == workers  # gRPC may crash in a child
        assert all(sum(fork.refusals.values()) >= 100 for fork in got)
        assert not any(fork.ids for fork in got)
        # A child may generate UUIDs, which are unique.
        uuids = [*map(str, chain(before, client.uuids(1000))), *chain.from_iterable(fork.uuids for fork in got)]
        assert len(set(uuids)) == len(uuids) >= 2000
        assert len(client.allocate_range("orders", 10)) == 10
    assert node.stop() == 0
