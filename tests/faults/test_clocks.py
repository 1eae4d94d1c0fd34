"""Wall clocks that stop, agree to the second, are wrong, or jump: no id is repeated (P1, P6)."""

import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import idalloc
from tests.support.cratedb.cluster import ProxiedCrate
from tests.support.faults.local_clients import CallLoop, LoggedClients, wait_for_answers
from tests.support.faults.node_control import NodeControl
from tests.support.faults.scenario import Scenario, wait_until_serving
from tests.support.processes import Server

NODE = "tests.support.faults.faulty_node"
SECOND = 1_800_000_000
DAY = 86400.0
YEAR = 365 * DAY


@pytest.mark.scenario(3, "nodes started at once on one prefix, with the same second on the clock")
class TestSamePrefixAndSecond:
    @pytest.fixture
    def clock(self, tmp_path: Path) -> NodeControl:
        clock = NodeControl(tmp_path / "clock.json")
        clock.set_wall_clock(SECOND + 0.5)
        return clock

    def test_each_process_claims_its_own_start_timestamp(
        self, scenario: Scenario, logs: LoggedClients, clock: NodeControl
    ) -> None:
        """P6: processes with one prefix that start in the same second share no start timestamp."""
        count, killed, rounds = scenario.pick((4, 1, 5), (50, 25, 50))

        def start(count: int, **settings: object) -> list[Server]:
            scenario.count_faults(count)
            return scenario.start_nodes(
                count, module=NODE, arguments=clock.arguments, node_prefix=7, prefix_conflict="warn", **settings
            )

        def take(clients: list[idalloc.Client]) -> list[int]:
            with ThreadPoolExecutor(16) as threads:
                for _ in range(rounds):
                    list(threads.map(lambda client: client.doc_ids(100), clients))
                    list(threads.map(lambda client: client.allocate_range("orders", 10), clients))
                return list(threads.map(lambda client: client.node().start_timestamp, clients))

        nodes = start(count)
        with logs.clients(nodes) as clients:
            starts = take(clients)
            assert sorted(starts) == list(range(SECOND, SECOND + count))

            # In the same second, kill some nodes and start others, one with several processes.
            for node in nodes[:killed]:
                node.process.kill()
                node.process.wait()
            scenario.count_faults(killed)
            later = start(killed)
            [node_with_workers] = start(1, workers=2)
            with logs.clients([*later, *[node_with_workers] * 4]) as newer:
                assert not set(take(clients[killed:] + newer)) & set(starts[:killed])
        verdict = scenario.prove(f"{count + killed + 2} processes", logs=logs.files)
        assert verdict.report["docIds"] == (count + count + 4) * 100 * rounds

    @pytest.mark.long
    def test_all_but_one_are_refused_with_prefix_conflict_refuse(
        self, scenario: Scenario, logs: LoggedClients, clock: NodeControl
    ) -> None:
        """P6: with prefix_conflict = refuse, one of the nodes with the same prefix starts."""
        count = scenario.pick(2, 50)
        begun = scenario.launch_nodes(
            count, module=NODE, arguments=clock.arguments, node_prefix=7, prefix_conflict="refuse"
        )
        serving = [node for node in begun if wait_until_serving(node)]
        refused = [node for node in begun if node not in serving]
        assert len(serving) == 1
        for node in refused:
            assert node.process.returncode == 2
            assert "prefix 7 is in use by" in node.log.read_text()
        scenario.count_faults(count)
        with logs.client(serving[0]) as client:
            ids = [*client.doc_ids(1000), *client.doc_ids(1000)]
        assert ids == sorted(ids)
        scenario.prove(f"{count - 1} of {count} refused, where prefix_conflict says so", logs=logs.files)


@pytest.mark.scenario(3, "a node of a fixed prefix that starts again and again with a clock that was set")
def test_doc_ids_rise_over_restarts_with_any_clock(scenario: Scenario, logs: LoggedClients) -> None:
    """P6: document ids of a fixed prefix rise over restarts, whatever the wall clock does."""
    clock = NodeControl(scenario.folder / "clock.json")
    # A day back; a restart in the same second; a year ahead; 1970.
    steps = [0, -DAY, -DAY, YEAR, -time.time()]
    steps += [random.Random(3).uniform(-YEAR, YEAR) for _ in range(scenario.pick(0, 15))]
    ids: list[str] = []
    orders: list[int] = []
    began = time.time()
    for number, step in enumerate(steps):
        clock.set_wall_clock(began + step)
        scenario.count_faults()
        [node] = scenario.start_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=7)
        with logs.client(node) as client:
            ids += client.doc_ids(10)
            orders += client.allocate_range("orders", 10)
            clock.set_wall_clock(began + step - DAY)
            ids += client.doc_ids(10)
            orders += client.allocate_range("orders", 10)
        node.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
    assert all(one < other for one, other in pairwise(ids))
    assert all(one < other for one, other in pairwise(orders))

    # A document id has no clock past 2106, which must not move the prefix's start timestamp.
    clock.set_wall_clock(2**32)
    [node] = scenario.launch_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=7)
    assert not wait_until_serving(node)
    assert "past the year 2106" in node.log.read_text()
    assert node.process.returncode == 2
    clock.set_wall_clock()
    [node] = scenario.start_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=7)
    with logs.client(node) as client:
        assert ids[-1] < client.doc_ids()[0]
        assert client.node().start_timestamp < time.time() + 2 * YEAR
    scenario.prove(logs=logs.files)


@pytest.mark.scenario(3, "clocks set back and forth while nodes serve")
class TestJumps:
    def test_a_repeated_period_continues_its_counter(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P1: a day that begins twice, as in Newfoundland in 2010, continues its counter."""
        zone = ZoneInfo("America/St_Johns")
        back = datetime(2010, 11, 7, 2, 31, tzinfo=UTC)
        moments = [
            back - timedelta(minutes=1, seconds=1),  # a second before midnight
            back - timedelta(minutes=1),  # midnight
            back - timedelta(seconds=1),
            back,  # 23:01 of the day before
            back + timedelta(minutes=59),  # midnight
            back - timedelta(days=1),
            back + timedelta(days=365),
            back - timedelta(seconds=30),
            back + timedelta(days=1),
            back,
        ]
        moments += random.Random(3).choices(moments, k=scenario.pick(0, 300))
        clocks = [NodeControl(scenario.folder / f"clock-{each}.json") for each in range(2)]
        nodes = [
            scenario.start_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=number)[0]
            for number, clock in enumerate(clocks)
        ]
        texts: list[str] = []
        periods: list[str] = []
        with logs.clients(nodes) as clients:
            clients[0].sequences.create(
                "invoices", reset="daily", time_zone=zone.key, format="{year}-{month}-{day}/{value}"
            )
            for turn in range(len(moments)):
                for number, (clock, client) in enumerate(zip(clocks, clients, strict=True)):
                    # The nodes' clocks differ.
                    at = moments[(turn + number) % len(moments)]
                    clock.set_wall_clock(at.timestamp())
                    scenario.count_faults()
                    for _ in range(3):
                        got = client.allocate_range("invoices", 7, texts=True).texts
                        periods.append(at.astimezone(zone).date().isoformat())
                        assert {text.split("/")[0] for text in got} == {periods[-1]}
                        texts += got
        assert len(set(texts)) == len(texts) == len(periods) * 7
        assert periods.count("2010-11-07") > 2 * 3
        verdict = scenario.prove("over midnight and daylight saving time, with a daily reset", logs=logs.files)
        assert {each["period"] for each in verdict.report["sequences"]} == set(periods)

    def test_no_id_is_repeated_or_out_of_order_under_load(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P1: clocks that jump under load repeat no id and break no order."""
        clocks = [NodeControl(scenario.folder / f"clock-{each}.json") for each in range(scenario.pick(2, 3))]
        nodes = [scenario.start_nodes(1, module=NODE, arguments=clock.arguments)[0] for clock in clocks]
        jumps = random.Random(3)
        with ExitStack() as stack:
            clients = stack.enter_context(logs.clients(nodes, timeout=5))
            create = clients[0].sequences.create
            create("invoices", reset="daily", time_zone="Europe/Vienna", format="{year}-{month}-{day}/{value}")
            create("rising", ordering="rising")
            create("ticks", kind="timestamp-ms")
            callers = [CallLoop(call) for client in clients for call in _calls(client)]
            ticks = [CallLoop(lambda client=client: client.allocate_range("ticks", 3)) for client in clients]  # type: ignore[misc]
            wait_for_answers(scenario, callers + ticks)
            for _ in range(scenario.pick(10, 100)):
                clock = jumps.choice(clocks)
                match jumps.randrange(4):
                    case 0:
                        clock.set_wall_clock(offset=jumps.uniform(-YEAR, YEAR))
                    case 1:
                        clock.set_wall_clock(time.time() + jumps.uniform(-3, 3) * DAY)  # stopped
                    case 2:
                        clock.set_wall_clock(offset=jumps.uniform(-100, 100))
                    case 3:
                        clock.advance_boot_clock(jumps.uniform(0, 400))  # a suspend of up to two leases
                scenario.count_faults()
                wait_for_answers(scenario, callers)
            # Timestamps are refused while a clock is behind them: set all ahead of the latest one.
            refused = sum(caller.errors["SEQUENCE_AHEAD_OF_CLOCK"] for caller in ticks)
            for clock in clocks:
                clock.set_wall_clock(offset=2 * YEAR)
            wait_for_answers(scenario, callers + ticks)
            for caller in callers + ticks:
                caller.stop()
        assert refused
        verdict = scenario.prove("to a year either way, under load", logs=logs.files)
        assert len([each for each in verdict.report["sequences"] if each["sequence"] == "invoices"]) > 2

    @pytest.mark.long
    def test_a_wrong_clock_of_one_node_does_not_affect_others(self, scenario: Scenario, logs: LoggedClients) -> None:
        """P6: a node with a clock far from CrateDB's claims no start and moves no counter ahead."""
        clock, right = NodeControl(scenario.folder / "wrong.json"), NodeControl(scenario.folder / "right.json")
        with ProxiedCrate() as proxied:
            scenario.store = proxied.crate.store
            for wrong in scenario.pick([YEAR], [YEAR, -YEAR]):
                clock.set_wall_clock(offset=wrong)
                [refused] = scenario.launch_nodes(1, module=NODE, arguments=clock.arguments)
                assert not wait_until_serving(refused)
                assert "max_clock_skew" in refused.log.read_text()
                scenario.count_faults()
            clock.set_wall_clock()
            nodes = [
                scenario.start_nodes(1, module=NODE, arguments=each.arguments, node_prefix=7)[0]
                for each in (clock, right)
            ]
            with logs.clients(nodes) as (one, other):
                one.sequences.create("ticks", kind="timestamp-ms")
                clock.set_wall_clock(offset=YEAR)
                scenario.count_faults()
                for _ in range(10):
                    for client in (one, other):
                        client.doc_ids(10)
                        client.allocate_range("orders", 10)
                        ticks = client.allocate_range("ticks", 10)
                        assert ticks[-1] / 1000 < time.time() + DAY
                with pytest.raises(idalloc.IdallocError, match="clock"):
                    one.update_node(prefix=8)
            scenario.prove("a year ahead on one of two nodes, on the CrateDB emulator", logs=logs.files)


def _calls(client: idalloc.Client) -> list[Callable[[], object]]:
    """Return the calls of one node's clients, which assert that document ids and UUIDs rise."""
    doc_ids, uuids = _RisingTexts(), _RisingTexts()
    return [
        lambda: client.allocate_range("orders", 10),
        lambda: client.allocate_range("orders", 5, idempotent=True),
        lambda: client.allocate_range("invoices", 7, texts=True),
        lambda: client.allocate_range("rising", 3),
        lambda: doc_ids.check(client.doc_ids(10)),
        lambda: uuids.check(list(map(str, client.uuids(10)))),
    ]


class _RisingTexts:
    """Asserts that texts rise, also from one call to the next."""

    def __init__(self) -> None:
        self._last = ""

    def check(self, texts: list[str]) -> None:
        for text in texts:
            assert text > self._last, f"{text} came after {self._last}"
            self._last = text
