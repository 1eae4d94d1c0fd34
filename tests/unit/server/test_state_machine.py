"""A simulated cluster keeps P1 to P7 and P9 under calls, changes, clock steps and faults.

``make test`` and ``make test-long`` run few examples, the same ones each time.
``IDALLOC_TEST_EXAMPLES=20000`` runs that many random ones, with more steps. A failure prints its
steps and two ways to repeat it: ``IDALLOC_TEST_SEED`` repeats the run, with the same number of
examples; ``IDALLOC_TEST_BLOB`` repeats the example.
"""

import os
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, __version__, reproduce_failure, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test
from structlog.testing import capture_logs

from idalloc_server.domain.errors import StoreOutcomeUnknown
from tests.support.simulation.cluster import SimulatedCluster
from tests.support.simulation.store_connection import StoreFault
from tests.support.simulation.strategies import CHANGES, COUNTS, FAULTS, METHODS, NAMES, NODES, SETTINGS, TIMES

EXAMPLES = int(os.environ.get("IDALLOC_TEST_EXAMPLES", "0"))


class Service(SimulatedCluster):
    """Nodes that share a store in memory."""

    @initialize(prefixes=st.sampled_from([(0, 0), (0, 0, 1)]), given=SETTINGS)
    def start_nodes(self, prefixes: tuple[int, ...], given: dict[str, Any]) -> None:
        for prefix in prefixes:
            self._start(prefix)
        self._change(0, "a", "create", given)
        self.world.pass_time(1.0)
        for which in range(len(prefixes)):
            self.use_sequence_for_a_while(which, "a", 5, 8)
        self._back_up()

    # Callers.

    @rule(which=NODES, name=NAMES, counts=st.lists(COUNTS, min_size=1, max_size=3))
    def allocate(self, which: int, name: str, counts: list[int]) -> None:
        for id_count in counts:
            self._call(which, self.calls.allocate, name, id_count)

    @rule(which=NODES, name=NAMES, id_count=st.integers(1, 20), times=st.integers(2, 8))
    def use_sequence_for_a_while(self, which: int, name: str, id_count: int, times: int) -> None:
        for _ in range(times):
            self._call(which, self.calls.allocate, name, id_count)
            self.world.pass_time(0.3)

    @rule(name=NAMES, counts=st.lists(st.integers(2, 10), min_size=4, max_size=12), unknown=st.booleans())
    def two_nodes_share_a_sequence(self, name: str, counts: list[int], unknown: bool) -> None:
        """Give the leases several pieces; a grant with an unknown outcome may lie in between."""
        for turn, id_count in enumerate(counts):
            if unknown and turn == len(counts) // 2:
                self.world.faults["grant"].append(StoreFault(error=StoreOutcomeUnknown))
            self._call(turn, self.calls.allocate, name, id_count)
            self.world.pass_time(0.3)

    @rule(which=NODES, request=st.integers(0, 3), other=st.sampled_from([0, 0, 0, 0, 1]))
    def allocate_with_a_request_id(self, which: int, request: int, other: int) -> None:
        request_id = str(UUID(int=request + 1))
        self._call(which, self.calls.allocate_once, "aabc"[request], 3 + request + other, request_id)

    @rule(
        which=NODES,
        id_count=st.integers(1, 40),
        offset=st.sampled_from([0, 3, 65535]),
        increment=st.sampled_from([0, 10]),
    )
    def make_document_ids(self, which: int, id_count: int, offset: int, increment: int) -> None:
        self._call(which, self.calls.make_doc_ids, id_count, offset, increment)

    @rule(which=NODES, index=st.integers(0, 5))
    def cancel_a_call(self, which: int, index: int) -> None:
        node = self._node(which)
        if node and node.callers:
            node.callers[index % len(node.callers)].cancel()

    # Administrators.

    @rule(which=NODES, name=NAMES, given=SETTINGS)
    def create(self, which: int, name: str, given: dict[str, Any]) -> None:
        self._change(which, name, "create", given)

    @rule(which=NODES, name=NAMES, given=CHANGES)
    def update(self, which: int, name: str, given: dict[str, Any]) -> None:
        self._change(which, name, "update", given)

    @rule(which=NODES, name=NAMES)
    def delete(self, which: int, name: str) -> None:
        self._change(which, name, "delete", None)

    @rule(which=NODES, name=NAMES, past=st.sampled_from([-500, 0, 10, 55, 700, 20_000]), yesterday=st.booleans())
    def advance(self, which: int, name: str, past: int, yesterday: bool) -> None:
        self._change(which, name, "advance", (past, "2023-11-14" if yesterday else ""))

    @rule(which=NODES, name=NAMES)
    def repeat_a_change(self, which: int, name: str) -> None:
        if name in self.changes:
            change_key, kind, given = self.changes[name]
            self._call(which, self.calls.change, name, kind, given, change_key)

    # Time and faults.

    @rule(seconds=TIMES)
    def let_time_pass(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(method=METHODS, fault=FAULTS)
    def inject_fault(self, method: str, fault: StoreFault) -> None:
        self.world.faults[method].append(fault)

    @rule(down=st.booleans())
    def store_goes_down_or_up(self, down: bool) -> None:
        self.world.down = down

    @rule(which=NODES, seconds=st.sampled_from([-100_000.0, -3_600.0, -2.0, 30.0, 90.0, 86_400.0, 0.0]))
    def set_a_clock(self, which: int, seconds: float) -> None:
        node = self._node(which)
        if node:
            node.clock.offset = seconds and node.clock.offset + seconds
            node.connection.ledger.forgets_periods = True

    @rule(which=NODES)
    def pause_a_node(self, which: int) -> None:
        node = self._node(which)
        if node:
            node.loop.paused = True

    @rule(which=NODES)
    def resume_a_node(self, which: int) -> None:
        if self.world.nodes:
            self.world.nodes[which % len(self.world.nodes)].loop.paused = False

    @rule(which=NODES, name=NAMES, seconds=st.sampled_from([50.0, 150.0, 182.0]), id_count=st.integers(1, 3))
    def resume_a_node_with_calls_waiting(self, which: int, name: str, seconds: float, id_count: int) -> None:
        node = self._node(which)
        if node:
            self._call_node(node, self.calls.allocate, name, 200 * id_count)
            node.loop.run_ready()
            node.loop.paused = True
            self.world.pass_time(seconds)
            node.loop.paused = False
            self._call_node(node, self.calls.allocate, name, id_count)

    @rule(which=NODES, name=NAMES, id_count=COUNTS, turns=st.integers(0, 5), seconds=st.sampled_from([0.0, 0.0, 182.0]))
    def stop_a_node_during_an_answer(self, which: int, name: str, id_count: int, turns: int, seconds: float) -> None:
        """Cancel calls, or pause the node, a few turns of its loop after the store has answered."""
        node = self._node(which)
        if node:
            self._call_node(node, self.calls.allocate, name, id_count)
            self.world.settle()
            node.loop.paused = True
            self.world.pass_time(0.01)
            node.loop.paused = False
            for _ in range(turns):
                node.loop.run_ready()
            if seconds:
                node.loop.paused = True
                self.world.pass_time(seconds)
                node.loop.paused = False
            else:
                for caller in node.callers:
                    caller.cancel()

    @rule(which=NODES, request=st.integers(0, 3), seconds=st.sampled_from([0.0, 0.5, 100.0]))
    def call_two_nodes_with_one_request_id(self, which: int, request: int, seconds: float) -> None:
        self.allocate_with_a_request_id(which, request, 0)
        self.world.pass_time(seconds)
        self.allocate_with_a_request_id(which + 1, request, 0)
        self.world.pass_time(0.5)

    @rule(which=NODES, name=NAMES, seconds=st.sampled_from([20.0, 61.0, 150.0]))
    def store_is_down_during_use(self, which: int, name: str, seconds: float) -> None:
        self.use_sequence_for_a_while(which, name, 4, 6)
        self.world.down = True
        for _ in range(4):
            self.world.pass_time(seconds)
            self._call(which, self.calls.allocate, name, 1)
        self.world.down = False

    @rule(
        which=NODES,
        other=NODES,
        name=NAMES,
        past=st.sampled_from([0, 400, 3_000]),
        seconds=st.sampled_from([1.0, 45.0, 61.0]),
    )
    def advance_a_sequence_in_use(self, which: int, other: int, name: str, past: int, seconds: float) -> None:
        self.use_sequence_for_a_while(which, name, 4, 6)
        self._change(other, name, "advance", (past, ""))
        for _ in range(5):
            self.world.pass_time(seconds)
            self._call(which, self.calls.allocate, name, 1)

    @rule(which=NODES, name=NAMES, method=METHODS, fault=FAULTS, counts=st.lists(COUNTS, min_size=1, max_size=3))
    def allocate_during_a_fault(self, which: int, name: str, method: str, fault: StoreFault, counts: list[int]) -> None:
        self.world.faults[method].append(fault)
        self.allocate(which, name, counts)
        self.world.pass_time(0.01)
        self.allocate(which, name, counts[:1])

    @rule(which=NODES, name=st.sampled_from("defg"), fault=FAULTS, id_count=COUNTS, seconds=TIMES)
    def two_nodes_use_a_sequence_first(
        self, which: int, name: str, fault: StoreFault, id_count: int, seconds: float
    ) -> None:
        self.world.faults["create"].append(fault)
        for turn in range(3):
            self._call(which + turn % 2, self.calls.allocate, name, id_count)
        self.world.pass_time(seconds)
        self._call(which, self.calls.allocate, name, 1)

    @rule(which=NODES)
    def drop_idle_sequences(self, which: int) -> None:
        node = self._node(which)
        if node:
            node.drop_idle_sequences()

    @rule(prefix=st.sampled_from([0, 0, 1]))
    def start_a_node(self, prefix: int) -> None:
        if len(self.world.nodes) < 4:
            self._start(prefix)

    @rule(which=NODES)
    def kill_a_node(self, which: int) -> None:
        if self.world.nodes:
            self.world.kill(self.world.nodes[which % len(self.world.nodes)])

    @rule(which=NODES)
    def stop_a_node(self, which: int) -> None:
        node = self._node(which)
        if node:
            self._close(node)

    # Backups.

    @rule()
    def back_up_the_store(self) -> None:
        self._back_up()

    @rule(which=NODES, name=NAMES, current=st.booleans(), seconds=st.sampled_from([0.0, 61.0]))
    def import_an_export_during_use(self, which: int, name: str, current: bool, seconds: float) -> None:
        self.use_sequence_for_a_while(which, name, 4, 6)
        self._import(self._export() if current else self.exported)
        for _ in range(4):
            self.world.pass_time(seconds)
            self._call(which, self.calls.allocate, name, 1)

    @precondition(lambda self: self.backup is not None)
    @rule()
    def restore_the_backup(self) -> None:
        for name, (value, sequence) in self._rows().items():
            self._remember(name, value, sequence)
        self.world.restore(self.backup)
        self.promises.record_restore()
        for which in range(len(self.world.nodes)):
            self.use_sequence_for_a_while(which, "a", 20, 6)

    @precondition(lambda self: self.promises.restored)
    @rule(which=NODES)
    def repair_the_store_by_the_runbook(self, which: int) -> None:
        node = self._node(which)
        if node:
            self._repair(node)

    @invariant()
    def settle_and_check(self) -> None:
        self.world.settle()
        for node in self.world.nodes:
            if node.is_quiet:
                self.promises.check_balance(node)

    def teardown(self) -> None:
        try:
            if not self.world.problems:
                self._end()
        finally:
            self.world.end()
            if self.folder:
                self.folder.cleanup()


class ServiceOnDisk(Service):
    """Nodes that share a SQLite file."""

    on_disk = True


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.mark.hypothesis
@pytest.mark.timeout(0 if EXAMPLES else 300)
@pytest.mark.parametrize(
    ("machine", "share"), [(Service, 1.0), pytest.param(ServiceOnDisk, 0.1, marks=pytest.mark.test_long)]
)
def test_the_promises_hold_in_any_order_of_events(machine: type[Service], share: float) -> None:
    """P1 to P7, P9: nodes keep the promises under calls, changes, faults, pauses and restores."""
    if EXAMPLES:
        number = int(os.environ.get("IDALLOC_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"IDALLOC_TEST_SEED={number} IDALLOC_TEST_EXAMPLES={EXAMPLES}")
        machine = seed(number)(machine)
    if blob := os.environ.get("IDALLOC_TEST_BLOB"):
        machine = reproduce_failure(__version__, blob.encode())(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int((EXAMPLES or settings().max_examples) * share),
            stateful_step_count=60 if EXAMPLES else 40,
            derandomize=not EXAMPLES,
            print_blob=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        ),
    )
