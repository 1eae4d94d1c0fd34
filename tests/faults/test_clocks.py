"""Clocks that stand still, agree too well, are wrong, or jump: no id comes again (P1, P6)."""

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
from tests.faults.control import Control
from tests.faults.cratedb import Proxied
from tests.faults.near import Caller, Logs, wait_for_answers
from tests.faults.scenario import Scenario, serves
from tests.support.processes import Server

NODE = "tests.faults.node"
SECOND = 1_800_000_000
DAY = 86400.0
YEAR = 365 * DAY


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.mark.scenario(3, "nodes started at once on one prefix, with the same second on the clock")
class TestTheSameSecond:
    @pytest.fixture
    def clock(self, tmp_path: Path) -> Control:
        clock = Control(tmp_path / "clock.json")
        clock.set_wall(SECOND + 0.5)
        return clock

    def test_each_process_has_a_start_timestamp_of_its_own(
        self, scenario: Scenario, logs: Logs, clock: Control
    ) -> None:
        count, killed, rounds = scenario.pick((4, 1, 5), (50, 25, 50))

        def start(count: int, **settings: object) -> list[Server]:
            scenario.fault(count)
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

            # In the same second some are killed, others come instead; and one that has several processes.
            for node in nodes[:killed]:
                node.process.kill()
                node.process.wait()
            scenario.fault(killed)
            later = start(killed)
            [crowd] = start(1, workers=2)
            with logs.clients([*later, *[crowd] * 4]) as newer:
                assert not set(take(clients[killed:] + newer)) & set(starts[:killed])
        verdict = scenario.prove(f"{count + killed + 2} processes", logs=logs.files)
        assert verdict.report["documentIds"] == (count + count + 4) * 100 * rounds

    @pytest.mark.long
    def test_all_but_one_are_refused_where_they_must_not_share_it(
        self, scenario: Scenario, logs: Logs, clock: Control
    ) -> None:
        count = scenario.pick(2, 50)
        begun = scenario.begin_nodes(
            count, module=NODE, arguments=clock.arguments, node_prefix=7, prefix_conflict="refuse"
        )
        serving = [node for node in begun if serves(node)]
        refused = [node for node in begun if node not in serving]
        assert len(serving) == 1
        for node in refused:
            assert node.process.returncode == 2
            assert "prefix 7 is in use by" in node.log.read_text()
        scenario.fault(count)
        with logs.client(serving[0]) as client:
            ids = [*client.doc_ids(1000), *client.doc_ids(1000)]
        assert ids == sorted(ids)
        scenario.prove(f"{count - 1} of {count} refused, where prefix_conflict says so", logs=logs.files)


@pytest.mark.scenario(3, "a node of a fixed prefix that starts again and again with a clock that was set")
def test_document_ids_rise_over_restarts_whatever_the_clock_says(scenario: Scenario, logs: Logs) -> None:
    clock = Control(scenario.folder / "clock.json")
    # Back for a day; killed and started in the same second; ahead for a year, and never so far again; 1970.
    steps = [0, -DAY, -DAY, YEAR, -time.time()]
    steps += [random.Random(3).uniform(-YEAR, YEAR) for _ in range(scenario.pick(0, 15))]
    ids: list[str] = []
    orders: list[int] = []
    began = time.time()
    for number, step in enumerate(steps):
        clock.set_wall(began + step)
        scenario.fault()
        [node] = scenario.start_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=7)
        with logs.client(node) as client:
            ids += client.doc_ids(10)
            orders += client.allocate_range("orders", 10)
            clock.set_wall(began + step - DAY)
            ids += client.doc_ids(10)
            orders += client.allocate_range("orders", 10)
        node.stop(signal.SIGKILL if number % 2 else signal.SIGTERM)
    assert all(one < other for one, other in pairwise(ids))
    assert all(one < other for one, other in pairwise(orders))

    # Past the year 2106 no document id can say the time: such a start must not spoil the prefix either.
    clock.set_wall(2**32)
    [node] = scenario.begin_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=7)
    assert not serves(node)
    assert "past the year 2106" in node.log.read_text()
    assert node.process.returncode == 2
    clock.set_wall()
    [node] = scenario.start_nodes(1, module=NODE, arguments=clock.arguments, node_prefix=7)
    with logs.client(node) as client:
        assert ids[-1] < client.doc_ids()[0]
        assert client.node().start_timestamp < time.time() + 2 * YEAR
    scenario.prove(logs=logs.files)


@pytest.mark.scenario(3, "clocks set back and forth while nodes serve")
class TestJumps:
    def test_periods_that_come_again_go_on_where_they_were(self, scenario: Scenario, logs: Logs) -> None:
        """In Newfoundland a minute after midnight was set back to the day before, so that the day began twice."""
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
        clocks = [Control(scenario.folder / f"clock-{each}.json") for each in range(2)]
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
                    # Both nodes never agree on the time.
                    at = moments[(turn + number) % len(moments)]
                    clock.set_wall(at.timestamp())
                    scenario.fault()
                    for _ in range(3):
                        got = client.allocate_texts("invoices", 7)
                        periods.append(at.astimezone(zone).date().isoformat())
                        assert {text.split("/")[0] for text in got} == {periods[-1]}
                        texts += got
        assert len(set(texts)) == len(texts) == len(periods) * 7
        assert periods.count("2010-11-07") > 2 * 3
        verdict = scenario.prove("over midnight and daylight saving time, with a daily reset", logs=logs.files)
        assert {each["period"] for each in verdict.report["sequences"]} == set(periods)

    def test_nothing_comes_twice_or_out_of_order_under_load(self, scenario: Scenario, logs: Logs) -> None:
        clocks = [Control(scenario.folder / f"clock-{each}.json") for each in range(scenario.pick(2, 3))]
        nodes = [scenario.start_nodes(1, module=NODE, arguments=clock.arguments)[0] for clock in clocks]
        jumps = random.Random(3)
        with ExitStack() as stack:
            clients = stack.enter_context(logs.clients(nodes, timeout=5))
            create = clients[0].sequences.create
            create("invoices", reset="daily", time_zone="Europe/Vienna", format="{year}-{month}-{day}/{value}")
            create("rising", ordering="rising")
            create("ticks", kind="timestamp-ms")
            callers = [Caller(call) for client in clients for call in _calls(client)]
            ticks = [Caller(lambda client=client: client.allocate_range("ticks", 3)) for client in clients]  # type: ignore[misc]
            wait_for_answers(scenario, callers + ticks)
            for _ in range(scenario.pick(10, 100)):
                clock = jumps.choice(clocks)
                match jumps.randrange(4):
                    case 0:
                        clock.set_wall(offset=jumps.uniform(-YEAR, YEAR))
                    case 1:
                        clock.set_wall(time.time() + jumps.uniform(-3, 3) * DAY)  # and it stands still
                    case 2:
                        clock.set_wall(offset=jumps.uniform(-100, 100))
                    case 3:
                        clock.move_boot(jumps.uniform(0, 400))  # suspended, for about two leases at most
                scenario.fault()
                wait_for_answers(scenario, callers)
            # Timestamps wait for the clock where that was set back; so all clocks go on behind the latest of them.
            refused = sum(caller.errors["SEQUENCE_AHEAD_OF_CLOCK"] for caller in ticks)
            for clock in clocks:
                clock.set_wall(offset=2 * YEAR)
            wait_for_answers(scenario, callers + ticks)
            for caller in callers + ticks:
                caller.stop()
        assert refused
        verdict = scenario.prove("to a year either way, under load", logs=logs.files)
        assert len([each for each in verdict.report["sequences"] if each["sequence"] == "invoices"]) > 2

    @pytest.mark.long
    def test_one_node_with_a_wrong_clock_spoils_nothing_for_others(self, scenario: Scenario, logs: Logs) -> None:
        """CrateDB has a clock of its own, which a node's is compared with."""
        clock, right = Control(scenario.folder / "wrong.json"), Control(scenario.folder / "right.json")
        with Proxied() as proxied:
            scenario.store = proxied.crate.store
            for wrong in scenario.pick([YEAR], [YEAR, -YEAR]):
                clock.set_wall(offset=wrong)
                [refused] = scenario.begin_nodes(1, module=NODE, arguments=clock.arguments)
                assert not serves(refused)
                assert "max_clock_skew" in refused.log.read_text()
                scenario.fault()
            clock.set_wall()
            nodes = [
                scenario.start_nodes(1, module=NODE, arguments=each.arguments, node_prefix=7)[0]
                for each in (clock, right)
            ]
            with logs.clients(nodes) as (one, other):
                one.sequences.create("ticks", kind="timestamp-ms")
                clock.set_wall(offset=YEAR)
                scenario.fault()
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
    """What callers of one node do; what rises within a process is looked at."""
    doc_ids, uuids = _Rising(), _Rising()
    return [
        lambda: client.allocate_range("orders", 10),
        lambda: client.allocate_range("orders", 5, exactly_once=True),
        lambda: client.allocate_texts("invoices", 7),
        lambda: client.allocate_range("rising", 3),
        lambda: doc_ids.take(client.doc_ids(10)),
        lambda: uuids.take(list(map(str, client.uuids(10)))),
    ]


class _Rising:
    """Sees that texts rise, also from one call to the next."""

    def __init__(self) -> None:
        self._last = ""

    def take(self, texts: list[str]) -> None:
        for text in texts:
            assert text > self._last, f"{text} came after {self._last}"
            self._last = text
