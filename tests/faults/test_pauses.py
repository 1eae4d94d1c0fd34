"""A node stands still past its lease (SIGSTOP), while others go on: what it held is nobody's when it goes on itself."""

import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import idalloc
from tests.faults.control import Control, Kind, harmed
from tests.faults.issued import Issued, boot_ns, read
from tests.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server

LEASE_SECONDS = 1.5
LEASES = {"lease_ttl": f"{LEASE_SECONDS}s", "store_timeout": "500ms", "outage_reserve": "500ms"}
# How long a caller waits: over a pause.
TIMEOUT = 30.0
# More than any node holds.
AHEAD = 10_000_000
# How many calls wait for a paused node when it wakes up.
WAITING = 16

# What a store does to a refill, and where the pause then cuts it.
CUTS: dict[Kind, str] = {"slow": "after its write", "late": "before its write"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "harm" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full", False)
        metafunc.parametrize("harm", list(CUTS) if full else ["slow"])


def start_clients(scenario: Scenario, node: Server, name: str) -> list[ClientProcess]:
    """Callers of one node, of every kind; some of them of a sequence that rises over all nodes."""
    return [
        scenario.start_client(
            node,
            log=f"{name}-{sequence}.jsonl",
            sequence=sequence,
            mode="ranges,ids,stream",
            threads=threads,
            timeout=TIMEOUT,
        )
        for sequence, threads in (("orders", 3), ("invoices", 2))
    ]


def issued(clients: Sequence[ClientProcess], sequence: str = "orders") -> list[Issued]:
    """Ranges that these clients have got until now."""
    return [each for client in clients for each in read(client.log) if each.sequence == sequence]


def highest_id(clients: Sequence[ClientProcess]) -> int:
    """The highest id of orders that these clients have."""
    return max(each.highest for each in issued(clients))


def advance_and_wait(client: idalloc.Client, past: int) -> int:
    """Advances orders past a value; returns when, on the boot clock, no node issues an older id any more."""
    advanced = client.sequences.advance("orders", past)
    time.sleep(max(0.0, advanced.effective_delay.ToTimedelta().total_seconds()))
    return boot_ns()


def make_sequences(client: idalloc.Client) -> None:
    """Makes one that nodes hold many ids of, and one that rises over all nodes."""
    client.sequences.create("orders", min_lease_size=AHEAD // 10)
    client.sequences.create("invoices", ordering="rising")


def pause(scenario: Scenario, node: Server) -> bool:
    """Stops a node, unless it just then has the lock of SQLite's file."""
    if not node.try_pause(Path(scenario.store.removeprefix("sqlite://"))):
        return False
    scenario.fault()
    return True


def wake_up(node: Server, client: idalloc.Client, past: int) -> None:
    """Lets a node go on, with calls of its client before it that were made when an advance was effective."""
    with ThreadPoolExecutor(WAITING) as pool:
        waiting = [pool.submit(client.allocate_range, "orders", 10) for _ in range(WAITING)]
        time.sleep(0.3)  # until they are sent
        assert not any(call.done() for call in waiting)
        node.send(signal.SIGCONT)
        assert [ids for call in waiting if (ids := call.result())[0] <= past] == []


def assert_fresh(clients: Sequence[ClientProcess], since: int, past: int) -> None:
    """No call that was made after an advance was effective got an id that it went past; and there were such calls."""
    later = [each for each in issued(clients) if each.asked >= since]
    assert later
    assert [each for each in later if each.lowest <= past] == []


@pytest.mark.scenario(1, "a node paused past its lease while another serves, then resumed")
def test_a_node_that_wakes_up_issues_nothing_older_than_its_lease(scenario: Scenario) -> None:
    paused, serving = scenario.start_nodes(2, **LEASES)
    log = scenario.folder / "waiting.jsonl"
    with idalloc.Client(serving.address) as client, idalloc.Client(paused.address, timeout=TIMEOUT, log=log) as waiting:
        make_sequences(client)
        sleepers, others = start_clients(scenario, paused, "paused"), start_clients(scenario, serving, "serving")
        everyone = sleepers + others
        for turn in range(scenario.pick(1, 6)):
            scenario.wait_for_records(everyone, 30)
            waiting.allocate_range("orders")  # it is connected
            scenario.wait_until(lambda: pause(scenario, paused), "a pause")
            stopped = boot_ns()
            advanced = turn % 3 != 2
            past, since = 0, stopped
            if advanced:
                past = highest_id(everyone) + AHEAD
                since = advance_and_wait(client, past)
            else:
                time.sleep(LEASE_SECONDS)
            resumed = boot_ns()
            assert resumed - stopped >= LEASE_SECONDS * 1e9
            wake_up(paused, waiting, past)
            scenario.wait_for_records(everyone, 30)
            if advanced:
                assert_fresh(sleepers, since, past)
            # Nobody got anything from it meanwhile, and the other one served.
            assert not [each for each in issued(sleepers) if stopped + 1e9 < each.answered < resumed]
            assert [each for each in issued(others) if stopped + 1e9 < each.answered < resumed]
        for each in everyone:
            each.stop()
    scenario.prove("with an advance in between", note=f"leases of {LEASE_SECONDS} s", logs=[log])


@pytest.mark.scenario(1, "a node paused in the middle of a refill")
def test_a_refill_that_a_pause_cut_in_two_issues_nothing_that_went_stale(scenario: Scenario, harm: Kind) -> None:
    control = Control(scenario.folder / "control.json")
    [paused] = scenario.start_nodes(1, module="tests.faults.node", arguments=control.arguments, **LEASES)
    [serving] = scenario.start_nodes(1, **LEASES)

    def refills() -> int:
        return harmed(paused.log)[harm, "grant"]

    def pause_in_refills() -> bool:
        # Each sequence has one refill at a time, so two at once are those of both.
        known = refills()
        scenario.wait_until(lambda: refills() >= known + 2, "a refill of each")
        return pause(scenario, paused)

    log = scenario.folder / "waiting.jsonl"
    with idalloc.Client(serving.address) as client, idalloc.Client(paused.address, timeout=TIMEOUT, log=log) as waiting:
        make_sequences(client)
        # One that takes more at a time than a node holds: it waits for refills.
        bulk = scenario.start_client(
            paused, log="bulk.jsonl", mode="ranges", id_count=500_000, threads=2, timeout=TIMEOUT
        )
        everyone = [bulk, *start_clients(scenario, paused, "paused"), *start_clients(scenario, serving, "serving")]
        for _ in range(scenario.pick(1, 3)):
            scenario.wait_for_records(everyone, 10)
            waiting.allocate_range("orders")
            control.harm(harm, "grant", seconds=0.4)
            scenario.wait_until(pause_in_refills, "a pause")
            past = highest_id(everyone) + AHEAD
            since = advance_and_wait(client, past)
            control.heal()
            resumed = boot_ns()
            wake_up(paused, waiting, past)
            scenario.wait_for_records(everyone, 10)
            assert_fresh(everyone, since, past)
            # Whoever waited for that refill got nothing from it.
            assert [each for each in issued([bulk]) if each.answered > resumed and each.lowest <= past] == []
        for each in everyone:
            each.stop()
    scenario.prove(f"{CUTS[harm]}, with an advance in between", logs=[log])
