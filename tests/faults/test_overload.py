"""Servers survive, with bounded memory, too many callers, slow readers, big requests and floods."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from idalloc_server.listen.native import KEPT_THREADS
from idalloc_server.listen.transport import MAX_ENDED_STREAMS, MAX_STREAMS_PER_CONNECTION
from tests.support.faults.resources import ResourceMonitor
from tests.support.faults.scenario import ClientProcess, Scenario
from tests.support.faults.workload import longest_stall
from tests.support.processes import Server, environment
from tests.support.waiting import hold_for

pytestmark = pytest.mark.parametrize("transport", ["grpcio", "native"])

# Growth of a server's memory without load: heap fragmentation, caches, the sequences' state.
SLACK_MB = 40
# Memory of a call in flight; measured: 5 kB (grpcio, not started) to 20 kB.
CALL_MB = 0.03
# Memory of a slow reader: three replies of 0.7 MB, each with 10,000 ids as texts and as a notice.
READER_MB = 3
# Memory of a flooding connection, whose rejected calls are freed with a delay: 30 s of calls took
# grpcio up and down between 30 and 100 MB more, and no further.
FLOOD_MB = 100
# What some floods add per second, since the transport frees it late or never; see SECURITY.md.
FLOOD_MB_PER_SECOND = {
    ("grpcio", "rapid_resets"): 40,
    ("grpcio", "unknown_methods"): 60,
    ("native", "calls"): 10,
    ("native", "unknown_methods"): 100,
}
# gRPC's own threads vary, and the server keeps some of the threads that served slow readers.
MORE_THREADS = 4 + KEPT_THREADS
# Deadline of the bystander, which gets no errors: no answer takes longer.
PATIENCE = 20.0


class Attack:
    """A process of attacks, such as ``tests/support/faults/attacks.py``."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        assert process.stdout
        self._out = process.stdout
        self.seen: Counter[str] = Counter()  # the outcomes

    def wait(self) -> None:
        """Wait until the attack is complete; its connections stay open."""
        self.seen = Counter(json.loads(self._out.readline()))

    def end(self) -> int:
        """Close its connections, and return how many the server had not closed."""
        assert self._process.stdin
        self._process.stdin.close()
        kept = int(self._out.readline())
        self._process.wait(60)
        return kept


@dataclass
class Overload:
    """A node under attack, and a well-behaved client that must be served meanwhile."""

    scenario: Scenario
    node: Server
    transport: str
    watch: ResourceMonitor  # the node's resources
    bystander: ClientProcess  # the well-behaved client
    program: str = "tests.support.faults.attacks"  # the module of the attacks

    @contextmanager
    def attack(self, attack: str, number: int, **options: Any) -> Iterator[Attack]:
        """Run an attack for the block: complete at its start; its connections close at its end."""
        command = {"target": self.node.address, "attack": attack, "number": number} | options
        process = subprocess.Popen(
            [sys.executable, "-m", self.program, json.dumps(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        try:
            made = Attack(process)
            made.wait()
            # The bystander is served while the attack's connections are open.
            self.scenario.wait_for_records([self.bystander], 20)
            yield made
        finally:
            process.kill()
            with process:  # closes its pipes and waits
                pass

    def assert_memory(self, megabytes: float = 0) -> None:
        """Assert that the node's memory never grew by more than this, and ``SLACK_MB``."""
        bound = self.watch.before.memory + SLACK_MB + megabytes
        assert self.watch.peak.memory <= bound, f"{self.watch.before} at first, {self.watch.peak} at most: > {bound} MB"

    def assert_resources_released(self) -> None:
        """Assert that descriptors and threads return to their numbers at the start."""
        before = self.watch.before

        def released() -> bool:
            now = self.watch.now()
            return now.descriptors <= before.descriptors + 2 and now.threads <= before.threads + MORE_THREADS

        try:
            self.scenario.wait_until(released, "released resources", within=30)
        except AssertionError:
            raise AssertionError(f"{before} before, {self.watch.now()} after") from None

    def prove(self, what: str) -> None:
        """Stop the bystander and the node, and verify the logs."""
        self.scenario.wait_for_records([self.bystander], 20)
        summary = self.bystander.stop()
        assert not summary.errors, summary.messages
        before, peak, after = self.watch.before, self.watch.peak, self.watch.now()
        self.watch.stop()
        assert self.node.stop() == 0
        self.scenario.prove(
            f"{what}, {self.transport}",
            note=f"memory {before.memory:.0f} MB, at most {peak.memory:.0f}, then {after.memory:.0f}; "
            f"descriptors {before.descriptors}, {peak.descriptors}, {after.descriptors}; "
            f"threads {before.threads}, {peak.threads}, {after.threads}; "
            f"the client besides: no error, waited {longest_stall(self.bystander, 1):.1f} s at most",
        )


@pytest.fixture
def overload(scenario: Scenario, transport: str) -> Iterator[Overload]:
    node = scenario.start_node(transport=transport)
    bystander = scenario.start_client(
        node, sequence="payments", mode="ranges,ids,stream,docids", timeout=PATIENCE, pause=0.01
    )
    scenario.wait_for_records([bystander], 100)
    with ResourceMonitor(node.process.pid) as watch:
        yield Overload(scenario, node, transport, watch, bystander)


@pytest.mark.scenario(10, "many callers")
@pytest.mark.long
def test_two_thousand_concurrent_callers_are_served(overload: Overload) -> None:
    """All of 2,000 concurrent callers are served, with bounded memory."""
    processes, callers = overload.scenario.pick((2, 150), (4, 500))
    crowd = [
        overload.scenario.start_client(
            overload.node,
            module="tests.support.faults.aio_load_client",
            mode="ranges,docids",
            threads=callers,
            timeout=60,
        )
        for _ in range(processes)
    ]
    overload.scenario.count_faults(processes * callers)
    overload.scenario.wait_for_records(crowd, 2 * callers)
    overload.scenario.wait_for_records([overload.bystander], 20)
    hold_for(overload.scenario.pick(0, 10), "the crowd calls")
    summaries = [client.stop() for client in crowd]
    assert not [summary.messages for summary in summaries if summary.errors]
    assert all(summary.calls > callers for summary in summaries)

    overload.assert_memory(CALL_MB * processes * callers)
    overload.assert_resources_released()
    overload.prove(f"{processes * callers:,} callers")


@pytest.mark.scenario(10, "streams that nobody reads")
def test_slow_readers_delay_nobody_and_use_bounded_memory(overload: Overload) -> None:
    """Streams that nobody reads delay no other client and use bounded memory."""
    readers = overload.scenario.pick(30, 200)
    # The second round reuses the memory of the first one.
    for _ in range(2):
        with overload.attack("slow_readers", readers) as attack:
            overload.scenario.count_faults(readers)
            hold_for(overload.scenario.pick(0.5, 5), "the streams stay unread")
            assert attack.seen["opened"] == attack.end() == readers
        assert overload.watch.peak.descriptors >= overload.watch.before.descriptors + readers
        overload.assert_memory(READER_MB * readers)
        overload.assert_resources_released()
    overload.prove(f"{readers} slow readers")


@pytest.mark.scenario(10, "connections opened and dropped")
def test_dropped_connections_leak_no_resources(overload: Overload) -> None:
    """Connections dropped in any state leak no memory, descriptors or threads."""
    number = overload.scenario.pick(400, 10_000)
    with overload.attack("connections", number, concurrency=16) as attack:
        overload.scenario.count_faults(number)
        assert attack.seen.total() == number
        assert len(attack.seen) >= 8
    overload.assert_memory(16 * READER_MB)  # some have started a stream
    overload.assert_resources_released()
    overload.prove(f"{number:,} connections")


@pytest.mark.scenario(10, "request bombs")
def test_oversized_requests_are_refused(overload: Overload) -> None:
    """Oversized metadata, names, counts and messages are refused, with bounded memory."""
    metadata, wrong = overload.scenario.pick((6, 90), (60, 9_000))
    with overload.attack("metadata", metadata) as attack:
        overload.scenario.count_faults(metadata)
        assert attack.seen["answered"] + attack.seen["closed"] == metadata
    with overload.attack("wrong_requests", wrong) as attack:
        overload.scenario.count_faults(wrong)
        assert attack.seen == {"INVALID_ARGUMENT": wrong}
    begun = overload.scenario.pick(20, 200)
    with overload.attack("half_messages", begun) as attack:
        overload.scenario.count_faults(begun)
        assert attack.seen["begun"] == begun
    overload.assert_memory()

    number, concurrency = overload.scenario.pick((3, 2), (48, 8))
    with overload.attack("large_messages", number, concurrency=concurrency, size=64_000_000) as attack:
        overload.scenario.count_faults(number)
        assert attack.seen == {"RESOURCE_EXHAUSTED": number}
    # grpcio refuses a message once its length is known; native reads and copies it whole.
    overload.assert_memory(concurrency * (2 * 64 if overload.transport == "native" else 4))
    overload.assert_resources_released()
    overload.prove(
        f"{metadata} times metadata of 1 MB, of 10,000 keys, without an end; {wrong:,} names of 64 kB and counts of "
        f"2^63-1; {begun} messages of 4 GB that stay half; {number} of 64 MB"
    )


@pytest.mark.scenario(10, "request bombs")
@pytest.mark.long
def test_a_flood_of_calls_meets_backpressure(overload: Overload) -> None:
    """A server reads calls no faster than it serves them, so their memory is bounded."""
    number, seconds = overload.scenario.pick((2_000, 1), (1_000_000, 30))
    with overload.attack("tiny_calls", number, seconds=seconds) as attack:
        answered = attack.seen["answered"]
        overload.scenario.count_faults(answered)
        assert answered >= 100
    overload.assert_memory()

    number, concurrency = overload.scenario.pick((30_000, 2), (200_000, 5))
    with overload.attack(
        "unread_calls", number, concurrency=concurrency, seconds=overload.scenario.pick(4, 15)
    ) as attack:
        sent = attack.seen["sent"]
        overload.scenario.count_faults(sent)
    under_way = concurrency * (MAX_STREAMS_PER_CONNECTION + MAX_ENDED_STREAMS)
    assert sent > 2 * under_way
    overload.assert_memory(CALL_MB * under_way)
    overload.assert_resources_released()
    overload.prove(f"{answered:,} tiny calls; {sent:,} of which no answer was read")


@pytest.mark.scenario(10, "floods of one connection")
@pytest.mark.parametrize("kind", ["rapid_resets", "calls", "unknown_methods"])
def test_a_flood_of_one_connection_starves_nobody(overload: Overload, kind: str) -> None:
    """A connection that sends without a pause uses bounded memory; other clients are served."""
    served, seconds = overload.bystander.records, overload.scenario.pick(2, 30)
    with overload.attack("flood", 10_000, concurrency=1, seconds=seconds, kind=kind) as attack:
        overload.scenario.count_faults(attack.seen["sent"])
        assert attack.seen["sent"] >= 1_000
        assert overload.bystander.records > served
    growth = FLOOD_MB_PER_SECOND.get((overload.transport, kind), 0)
    overload.assert_memory(FLOOD_MB + growth * (seconds + 1))
    overload.assert_resources_released()
    overload.prove(f"{attack.seen['sent']:,} {kind.replace('_', ' ')}")
