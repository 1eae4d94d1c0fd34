"""A node paused by SIGSTOP past its lease issues none of its old ids after SIGCONT."""

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import idalloc
from tests.support.faults.issued_ranges import IssuedRange, boot_time_ns, read_ranges
from tests.support.faults.node_control import FaultKind, NodeControl, injected_faults, issued_after
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server
from tests.support.promises.effects import EffectiveAdvance
from tests.support.waiting import hold_for

LEASE_SECONDS = 3
LEASES = {"lease_ttl": f"{LEASE_SECONDS}s", "store_timeout": "2s", "outage_reserve": "500ms"}
# A client's deadline, which outlasts a pause.
TIMEOUT = 30.0
# More ids than any node holds.
AHEAD = 10_000_000
# Calls that wait for a paused node.
WAITING = 16

# The fault that delays a refill, and where the pause interrupts it.
CUTS: dict[FaultKind, str] = {"slow": "after its write", "late": "before its write"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault" in metafunc.fixturenames:
        full = metafunc.config.getoption("--full", False)
        metafunc.parametrize("fault", list(CUTS) if full else ["slow"])


def start_clients(scenario: Scenario, node: Server, name: str) -> list[ClientProcess]:
    """Start two clients of a node: one of orders, one of a sequence with the ordering rising."""
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


def issued(clients: Sequence[ClientProcess], sequence: str = "orders") -> list[IssuedRange]:
    """Return the ranges that these clients have received so far."""
    return [each for client in clients for each in read_ranges(client.log) if each.sequence == sequence]


def highest_id(clients: Sequence[ClientProcess]) -> int:
    """Return the highest id of orders that these clients have received."""
    return max(each.highest for each in issued(clients))


def advance_and_wait(client: idalloc.Client, past: int) -> int:
    """Advance orders past a value, wait until effective; return the boot time in nanoseconds."""
    advanced = client.sequences.advance("orders", past)
    hold_for(max(0.0, advanced.effective_delay.total_seconds()), "leases from before the advance end")
    return boot_time_ns()


def make_sequences(client: idalloc.Client) -> None:
    """Create orders with large leases, and invoices with the ordering rising."""
    client.sequences.create("orders", min_lease_size=AHEAD // 10)
    client.sequences.create("invoices", ordering="rising")


def pause(scenario: Scenario, node: Server) -> bool:
    """Pause a node unless it holds the SQLite file's lock; return whether it is paused."""
    file = scenario.store.removeprefix("sqlite://")
    if not node.try_pause(Path(file) if file != scenario.store else None):
        return False
    scenario.count_faults()
    return True


def resume(node: Server, client: idalloc.Client, past: int) -> None:
    """Resume a node while calls wait; assert that they get no id at or below ``past``."""
    with ThreadPoolExecutor(WAITING) as pool:
        waiting = [pool.submit(client.allocate_range, "orders", 10) for _ in range(WAITING)]
        hold_for(0.3, "the calls are sent to a process that does not run")
        assert not any(call.done() for call in waiting)
        node.send(signal.SIGCONT)
        assert [ids for call in waiting if (ids := call.result())[0] <= past] == []


def assert_fresh(clients: Sequence[ClientProcess], since: int, past: int) -> None:
    """Assert that calls after ``since`` exist and got no id at or below ``past``."""
    later = [each for each in issued(clients) if each.asked >= since]
    assert later
    assert [each for each in later if EffectiveAdvance(since, past, 1).forbids(each.ids, each.asked)] == []


@pytest.mark.scenario(1, "a node paused past its lease while another serves, then resumed")
@pytest.mark.usefixtures("on_each_store")
def test_a_resumed_node_issues_nothing_from_before_the_pause(scenario: Scenario) -> None:
    """P4: a paused node issues nothing from before the pause."""
    paused, serving = scenario.start_nodes(2, **LEASES)
    log = scenario.folder / "waiting.jsonl"
    with idalloc.Client(serving.address) as client, idalloc.Client(paused.address, timeout=TIMEOUT, log=log) as waiting:
        make_sequences(client)
        sleepers, others = start_clients(scenario, paused, "paused"), start_clients(scenario, serving, "serving")
        everyone = sleepers + others
        for turn in range(scenario.pick(1, 6)):
            scenario.wait_for_records(everyone, 30)
            waiting.allocate_range("orders")  # connects
            scenario.wait_until(lambda: pause(scenario, paused), "a pause")
            stopped = boot_time_ns()
            advanced = turn % 3 != 2
            past, since = 0, stopped
            if advanced:
                past = highest_id(everyone) + AHEAD
                since = advance_and_wait(client, past)
            else:
                hold_for(LEASE_SECONDS, "the lease ends during the pause")
            resumed = boot_time_ns()
            assert resumed - stopped >= LEASE_SECONDS * 1e9
            resume(paused, waiting, past)
            scenario.wait_for_records(everyone, 30)
            if advanced:
                assert_fresh(sleepers, since, past)
            # The paused node answered nothing meanwhile; the other one served.
            assert not [each for each in issued(sleepers) if stopped + 1e9 < each.answered < resumed]
            assert [each for each in issued(others) if stopped + 1e9 < each.answered < resumed]
        for each in everyone:
            each.stop()
    note = f"leases of {LEASE_SECONDS} s on {scenario.store_name}"
    scenario.prove("with an advance in between", note=note, logs=[log])


@pytest.mark.scenario(1, "a node paused in the middle of a refill")
def test_a_refill_interrupted_by_a_pause_issues_nothing_stale(scenario: Scenario, fault: FaultKind) -> None:
    """P4: a refill during which the node was paused past its lease issues nothing."""
    control = NodeControl(scenario.folder / "control.json")
    module = "tests.support.faults.faulty_node"
    [paused] = scenario.start_nodes(1, module=module, arguments=control.arguments, **LEASES | {"log_level": "debug"})
    [serving] = scenario.start_nodes(1, **LEASES)

    def refills() -> int:
        return injected_faults(paused.log, "orders")[fault, "grant"]

    def pause_in_refill() -> bool:
        known = refills()
        scenario.wait_until(lambda: refills() > known, "a refill")
        return pause(scenario, paused)

    log = scenario.folder / "waiting.jsonl"
    with idalloc.Client(serving.address) as client, idalloc.Client(paused.address, timeout=TIMEOUT, log=log) as waiting:
        make_sequences(client)
        # Two calls need as many ids as a node leases at first, so they often wait for refills.
        bulk = scenario.start_client(
            paused, log="bulk.jsonl", mode="ranges", id_count=500_000, threads=2, timeout=TIMEOUT, pause=0.0
        )
        everyone = [bulk, *start_clients(scenario, paused, "paused"), *start_clients(scenario, serving, "serving")]
        for _ in range(scenario.pick(1, 3)):
            scenario.wait_for_records(everyone, 10)
            waiting.allocate_range("orders")
            control.inject(fault, "grant", seconds=0.4)
            scenario.wait_until(pause_in_refill, "a pause")
            past = highest_id(everyone) + AHEAD
            since = advance_and_wait(client, past)
            control.clear_faults()
            resumed = boot_time_ns()
            resume(paused, waiting, past)
            scenario.wait_for_records(everyone, 10)
            assert_fresh(everyone, since, past)
            fresh = issued_after(paused.log, "orders", resumed)
            assert fresh
            assert min(fresh) > past
        for each in everyone:
            each.stop()
    scenario.prove(f"{CUTS[fault]}, with an advance in between", logs=[log])
