"""The server that scenarios harm: it is harmed as they say, and is the real one otherwise."""

import asyncio
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import idalloc
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import Refusal, StoreUnavailable
from idalloc_server.domain.records import Row
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.store.urls import open_store
from tests.faults.control import Control, Kind, ended_forks, forks, harmed
from tests.faults.node import HarmedStore, Orders, SetClock
from tests.faults.scenario import Scenario
from tests.support.processes import Server

DAY = 86400.0


@pytest.fixture
def scenario(tmp_path: Path) -> Iterator[Scenario]:
    scenario = Scenario(tmp_path, full=False)
    yield scenario
    scenario.close()


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control.json")


def start(scenario: Scenario, control: Control, **settings: object) -> Server:
    [node] = scenario.start_nodes(1, module="tests.faults.node", arguments=control.arguments, **settings)
    return node


def test_clocks_are_moved_at_once(control: Control) -> None:
    clock, real = SetClock(Orders(control.file)), SystemClock()
    assert clock.wall() == pytest.approx(real.wall(), abs=5)
    control.set_wall(offset=-DAY)
    assert clock.wall() == pytest.approx(real.wall() - DAY, abs=5)
    control.set_wall(4e9)
    assert clock.wall() == clock.wall() == 4e9
    control.move_boot(DAY)
    assert clock.boot() == pytest.approx(real.boot() + DAY, abs=5)
    control.move_boot(0)
    control.set_wall()
    assert clock.wall() == pytest.approx(real.wall(), abs=5)
    assert clock.boot() == pytest.approx(real.boot() + DAY, abs=5)


# What is answered to a write that asks for 3 ids, and where the counter is when that is over.
@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "answer", "counter"),
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
        ("rejected", "StoreRejected", 0),
        ("unreachable", "StoreUnreachable", 0),
    ],
)
async def test_a_call_to_the_store_goes_wrong_as_told(
    what: Kind, answer: str, counter: int, control: Control, tmp_path: Path
) -> None:
    real = open_store(f"sqlite://{tmp_path}/ids.db", SystemClock())
    store = HarmedStore(real, Orders(control.file))
    await store.open()
    try:
        await store.create(Row("orders", 0, Sequence()))
        control.harm(what, "grant", times=1, seconds=0.2)
        began = time.monotonic()
        try:
            patience = 0.5 if answer == "TimeoutError" else 20
            found = str((await asyncio.wait_for(store.grant("orders", 3, 1000), patience)).last_value)
        except (StoreUnavailable, TimeoutError) as error:
            found = type(error).__name__
        assert found == answer
        if what in ("late", "slow"):
            assert time.monotonic() - began >= 0.2
        if what == "later":
            assert await last_value(store) == 0
            await asyncio.sleep(0.5)
        assert await last_value(store) == counter
        assert (await store.grant("orders", 3, 1000)).last_value == counter + 3  # once was all that was to be harmed
    finally:
        await store.close()


async def last_value(store: HarmedStore) -> int:
    row = await store.get("orders")
    assert row.last_value is not None
    return int(row.last_value)


async def test_calls_are_harmed_by_name_and_until_healed(control: Control, tmp_path: Path) -> None:
    store = HarmedStore(open_store(f"sqlite://{tmp_path}/ids.db", SystemClock()), Orders(control.file))
    await store.open()
    try:
        control.harm("rejected", "create", "get")
        for _ in range(3):
            with pytest.raises(Refusal):
                await store.get("orders")
        assert await store.claimed_starts() == {}
        control.harm("unreachable")
        with pytest.raises(Refusal, match="503"):
            await store.get("orders")
        with pytest.raises(Refusal, match="no connection"):
            await store.claimed_starts()
        control.heal()
        assert await store.get("orders") is None
    finally:
        await store.close()


def test_a_node_of_several_workers_is_harmed_while_it_runs(
    scenario: Scenario, control: Control, tmp_path: Path
) -> None:
    workers = 2
    control.set_wall(3e9)
    node = start(scenario, control, workers=workers)
    with idalloc.Client(node.address, timeout=20) as client:
        assert client.node().start_timestamp in range(3 * 10**9, 3 * 10**9 + workers)
        control.harm("rejected", "grant", times=1)
        assert len(client.allocate_range("orders", 10)) == 10  # the SDK tries again
        assert harmed(node.log)["rejected", "grant"] == 1
        before = client.uuids(1000)
        assert before[0].int >> 80 == 3e12

        control.fork(tmp_path / "fork.ids", "orders")
        scenario.wait_until(lambda: len(ended_forks(node.log)) == workers, "the forks")
        got = forks(tmp_path / "fork.ids")
        assert len(got) + sum(code != 0 for code in ended_forks(node.log)) == workers  # where gRPC does not crash
        assert all(sum(fork.refusals.values()) >= 100 for fork in got)
        assert not any(fork.ids for fork in got)
        # These it may make: none is anyone else's.
        uuids = [*map(str, chain(before, client.uuids(1000))), *chain.from_iterable(fork.uuids for fork in got)]
        assert len(set(uuids)) == len(uuids) >= 2000
        assert len(client.allocate_range("orders", 10)) == 10
    assert node.stop() == 0
