"""Too many callers, readers that never read, connections without end, bombs: memory is bounded, others are served."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from idalloc_server.listen.transport import KEPT_THREADS, MAX_STREAMS_PER_CONNECTION
from tests.faults.callers import longest_stall
from tests.faults.resources import Watch
from tests.faults.scenario import ClientProcess, Scenario
from tests.support.processes import Server, environment

pytestmark = pytest.mark.parametrize("transport", ["grpcio", "native"])

# What a server's memory may differ by without anyone holding anything: pieces of the heap, caches, the sequences' own.
SLACK_MB = 40
# A call that is under way, at most: measured were 5 kB (grpcio, not begun) to 20 kB.
CALL_MB = 0.03
# A reply with 10,000 ids twice over, as texts and as a notice, is 0.7 MB: one is built, one is on its way, one waits.
READER_MB = 3
# What one connection that floods may cost: calls that are refused are freed some time later.
FLOOD_MB = 60
# grpc's own threads come and go, and the server keeps some of those in which slow readers were waited for.
MORE_THREADS = 4 + KEPT_THREADS
# A well-behaved client's deadline: it has no error, so no answer took longer.
PATIENCE = 20.0


class Attack:
    """A process of ``tests/faults/attack.py``.

    Attributes:
        seen: What came of what it did.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        assert process.stdout
        self._out = process.stdout
        self.seen: Counter[str] = Counter()

    def wait(self) -> None:
        """Waits until it did all; it holds then what it holds."""
        self.seen = Counter(json.loads(self._out.readline()))

    def end(self) -> int:
        """Has it let go; returns how many connections the server had kept."""
        assert self._process.stdin
        self._process.stdin.close()
        kept = int(self._out.readline())
        self._process.wait(60)
        return kept


@dataclass
class Siege:
    """A node, a client that is served through all that happens, and how much the node holds.

    Attributes:
        scenario: Where it belongs.
        node: The node.
        transport: The node's.
        watch: What it holds, and held at most.
        witness: The client.
    """

    scenario: Scenario
    node: Server
    transport: str
    watch: Watch
    witness: ClientProcess

    @contextmanager
    def attack(self, attack: str, number: int, **wishes: Any) -> Iterator[Attack]:
        """Attacks, and lets go at the end of the block; in it, all was done."""
        command = {"target": self.node.address, "attack": attack, "number": number} | wishes
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.attack", json.dumps(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        try:
            made = Attack(process)
            made.wait()
            # Others are served also while it holds what it holds.
            self.scenario.wait_for_records([self.witness], 20)
            yield made
        finally:
            process.kill()
            with process:  # closes its pipes and waits
                pass

    def assert_memory(self, megabytes: float = 0) -> None:
        """Asserts that the node never held more than what it had at first and so much."""
        bound = self.watch.before.memory + SLACK_MB + megabytes
        assert self.watch.peak.memory <= bound, f"{self.watch.before} at first, {self.watch.peak} at most: > {bound} MB"

    def assert_calm(self) -> None:
        """Asserts that descriptors and threads come back to what they were."""
        before = self.watch.before

        def calm() -> bool:
            now = self.watch.now()
            return now.descriptors <= before.descriptors + 2 and now.threads <= before.threads + MORE_THREADS

        try:
            self.scenario.wait_until(calm, "calm", within=30)
        except AssertionError:
            raise AssertionError(f"{before} before, {self.watch.now()} after") from None

    def prove(self, what: str) -> None:
        """Has the client and then the node end, which gives back what it holds, and verifies."""
        self.scenario.wait_for_records([self.witness], 20)
        summary = self.witness.stop()
        assert not summary.errors, summary.messages
        before, peak, after = self.watch.before, self.watch.peak, self.watch.now()
        self.watch.end()
        assert self.node.stop() == 0
        self.scenario.prove(
            f"{what}, {self.transport}",
            note=f"memory {before.memory:.0f} MB, at most {peak.memory:.0f}, then {after.memory:.0f}; "
            f"descriptors {before.descriptors}, {peak.descriptors}, {after.descriptors}; "
            f"threads {before.threads}, {peak.threads}, {after.threads}; "
            f"the client besides: no error, waited {longest_stall(self.witness, 1):.1f} s at most",
        )


@pytest.fixture
def siege(scenario: Scenario, transport: str) -> Iterator[Siege]:
    node = scenario.start_node(transport=transport)
    witness = scenario.start_client(
        node, sequence="payments", mode="ranges,ids,stream,docids", timeout=PATIENCE, pause=0.01
    )
    scenario.wait_for_records([witness], 100)
    with Watch(node.process.pid) as watch:
        yield Siege(scenario, node, transport, watch, witness)


@pytest.mark.scenario(10, "many callers")
@pytest.mark.long
def test_two_thousand_callers_at_once_are_all_served(siege: Siege) -> None:
    processes, callers = siege.scenario.pick((2, 150), (4, 500))
    crowd = [
        siege.scenario.start_client(
            siege.node, module="tests.faults.aio_client", mode="ranges,docids", threads=callers, timeout=60
        )
        for _ in range(processes)
    ]
    siege.scenario.fault(processes * callers)
    siege.scenario.wait_for_records(crowd, 2 * callers)
    siege.scenario.wait_for_records([siege.witness], 20)
    time.sleep(siege.scenario.pick(0, 10))
    summaries = [client.stop() for client in crowd]
    assert not [summary.messages for summary in summaries if summary.errors]
    assert all(summary.calls > callers for summary in summaries)

    siege.assert_memory(CALL_MB * processes * callers)
    siege.assert_calm()
    siege.prove(f"{processes * callers:,} callers")


@pytest.mark.scenario(10, "streams that nobody reads")
def test_slow_readers_hold_up_nobody_and_hold_no_more_than_their_share(siege: Siege) -> None:
    readers = siege.scenario.pick(30, 200)
    # What one round leaves behind, the next one uses.
    for _ in range(2):
        with siege.attack("slow_readers", readers) as attack:
            siege.scenario.fault(readers)
            time.sleep(siege.scenario.pick(0.5, 5))
            assert attack.seen["opened"] == attack.end() == readers
        assert siege.watch.peak.descriptors >= siege.watch.before.descriptors + readers
        siege.assert_memory(READER_MB * readers)
        siege.assert_calm()
    siege.prove(f"{readers} slow readers")


@pytest.mark.scenario(10, "connections opened and dropped")
def test_dropped_connections_leave_nothing_behind(siege: Siege) -> None:
    number = siege.scenario.pick(400, 10_000)
    with siege.attack("connections", number, abreast=16) as attack:
        siege.scenario.fault(number)
        assert attack.seen.total() == number
        assert len(attack.seen) >= 8
    siege.assert_memory(16 * READER_MB)  # some have begun a stream
    siege.assert_calm()
    siege.prove(f"{number:,} connections")


@pytest.mark.scenario(10, "request bombs")
def test_what_is_too_large_is_refused(siege: Siege) -> None:
    metadata, wrong = siege.scenario.pick((6, 90), (60, 9_000))
    with siege.attack("metadata", metadata) as attack:
        siege.scenario.fault(metadata)
        assert attack.seen["answered"] + attack.seen["closed"] == metadata
    with siege.attack("wrong_requests", wrong) as attack:
        siege.scenario.fault(wrong)
        assert attack.seen == {"INVALID_ARGUMENT": wrong}
    begun = siege.scenario.pick(20, 200)
    with siege.attack("half_messages", begun) as attack:
        siege.scenario.fault(begun)
        assert attack.seen["begun"] == begun
    siege.assert_memory()

    number, abreast = siege.scenario.pick((3, 2), (48, 8))
    with siege.attack("large_messages", number, abreast=abreast, size=64_000_000) as attack:
        siege.scenario.fault(number)
        assert attack.seen == {"RESOURCE_EXHAUSTED": number}
    # grpcio refuses one as soon as it knows how long it is. Native reads all of it, and hands a copy on: it holds as
    # many as come at once.
    siege.assert_memory(abreast * (2 * 64 if siege.transport == "native" else 4))
    siege.assert_calm()
    siege.prove(
        f"{metadata} times metadata of 1 MB, of 10,000 keys, without an end; {wrong:,} names of 64 kB and counts of "
        f"2^63-1; {begun} messages of 4 GB that stay half; {number} of 64 MB"
    )


@pytest.mark.scenario(10, "request bombs")
@pytest.mark.long
def test_a_flood_of_calls_is_taken_no_faster_than_it_is_worked_off(siege: Siege) -> None:
    number, seconds = siege.scenario.pick((2_000, 1), (1_000_000, 30))
    with siege.attack("tiny_calls", number, seconds=seconds) as attack:
        answered = attack.seen["answered"]
        siege.scenario.fault(answered)
        assert answered >= 100
    siege.assert_memory()

    number, abreast = siege.scenario.pick((30_000, 2), (200_000, 5))
    with siege.attack("unread_calls", number, abreast=abreast, seconds=siege.scenario.pick(4, 15)) as attack:
        sent = attack.seen["sent"]
        siege.scenario.fault(sent)
    under_way = abreast * MAX_STREAMS_PER_CONNECTION[siege.transport]
    assert sent > 2 * under_way
    siege.assert_memory(CALL_MB * under_way)
    siege.assert_calm()
    siege.prove(f"{answered:,} tiny calls; {sent:,} of which no answer was read")


@pytest.mark.scenario(10, "floods of one connection")
@pytest.mark.parametrize("kind", ["rapid_resets", "calls", "unknown_methods"])
def test_a_flood_of_one_connection_starves_nobody(siege: Siege, kind: str) -> None:
    """One connection that sends without a pause costs bounded memory, and others are served meanwhile."""
    served = siege.witness.records
    with siege.attack("flood", 10_000, abreast=1, seconds=siege.scenario.pick(2, 30), kind=kind) as attack:
        siege.scenario.fault(attack.seen["sent"])
        assert attack.seen["sent"] >= 1_000
        assert siege.witness.records > served
    # Native frees nothing of a connection that it ends for unknown methods: SECURITY.md says what that costs.
    if (siege.transport, kind) != ("native", "unknown_methods"):
        siege.assert_memory(FLOOD_MB)
    siege.assert_calm()
    siege.prove(f"{attack.seen['sent']:,} {kind.replace('_', ' ')}")
