"""Nodes, callers, people, clocks and a store with faults, in any order, against the promises of the README.

``IDALLOC_TEST_EXAMPLES=20000`` runs that many random examples, of more steps, in place of the few of ``make test``,
which are the same ones each time. A failure prints its steps, and two ways to repeat it: ``IDALLOC_TEST_SEED``, which
with the same number of examples repeats the run, and ``IDALLOC_TEST_BLOB``, which repeats the one example.
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
    def nodes_start(self, prefixes: tuple[int, ...], given: dict[str, Any]) -> None:
        for prefix in prefixes:
            self._start(prefix)
        self._change(0, "a", "create", given)
        self.world.pass_time(1.0)
        for which in range(len(prefixes)):
            self.use_it_for_a_while(which, "a", 5, 8)
        self._back_up()

    # Callers.

    @rule(which=NODES, name=NAMES, counts=st.lists(COUNTS, min_size=1, max_size=3))
    def allocate(self, which: int, name: str, counts: list[int]) -> None:
        for id_count in counts:
            self._call(which, self._allocate, name, id_count)

    @rule(which=NODES, name=NAMES, id_count=st.integers(1, 20), times=st.integers(2, 8))
    def use_it_for_a_while(self, which: int, name: str, id_count: int, times: int) -> None:
        for _ in range(times):
            self._call(which, self._allocate, name, id_count)
            self.world.pass_time(0.3)

    @rule(name=NAMES, counts=st.lists(st.integers(2, 10), min_size=4, max_size=12), unknown=st.booleans())
    def two_nodes_share_it(self, name: str, counts: list[int], unknown: bool) -> None:
        """Their leases have several pieces; a grant whose outcome nobody knows may lie in between."""
        for turn, id_count in enumerate(counts):
            if unknown and turn == len(counts) // 2:
                self.world.troubles["grant"].append(StoreFault(error=StoreOutcomeUnknown))
            self._call(turn, self._allocate, name, id_count)
            self.world.pass_time(0.3)

    @rule(which=NODES, request=st.integers(0, 3), other=st.sampled_from([0, 0, 0, 0, 1]))
    def allocate_with_a_request_id(self, which: int, request: int, other: int) -> None:
        request_id = str(UUID(int=request + 1))
        self._call(which, self._allocate_once, "aabc"[request], 3 + request + other, request_id)

    @rule(
        which=NODES,
        id_count=st.integers(1, 40),
        offset=st.sampled_from([0, 3, 65535]),
        increment=st.sampled_from([0, 10]),
    )
    def make_document_ids(self, which: int, id_count: int, offset: int, increment: int) -> None:
        self._call(which, self._make_doc_ids, id_count, offset, increment)

    @rule(which=NODES, index=st.integers(0, 5))
    def cancel_a_call(self, which: int, index: int) -> None:
        node = self._node(which)
        if node and node.callers:
            node.callers[index % len(node.callers)].cancel()

    # People.

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
    def send_a_change_again(self, which: int, name: str) -> None:
        if name in self.changes:
            change_token, kind, given = self.changes[name]
            self._call(which, self._run_change, name, kind, given, change_token)

    # Time, and what goes wrong.

    @rule(seconds=TIMES)
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(method=METHODS, trouble=FAULTS)
    def trouble_comes(self, method: str, trouble: StoreFault) -> None:
        self.world.troubles[method].append(trouble)

    @rule(down=st.booleans())
    def the_store_goes_or_comes_back(self, down: bool) -> None:
        self.world.down = down

    @rule(which=NODES, seconds=st.sampled_from([-100_000.0, -3_600.0, -2.0, 30.0, 90.0, 86_400.0, 0.0]))
    def a_clock_is_set(self, which: int, seconds: float) -> None:
        node = self._node(which)
        if node:
            node.clock.set_by = seconds and node.clock.set_by + seconds
            node.link.ledger.forgets_periods = True

    @rule(which=NODES)
    def a_node_is_paused(self, which: int) -> None:
        node = self._node(which)
        if node:
            node.loop.paused = True

    @rule(which=NODES)
    def a_node_goes_on(self, which: int) -> None:
        if self.world.nodes:
            self.world.nodes[which % len(self.world.nodes)].loop.paused = False

    @rule(which=NODES, name=NAMES, seconds=st.sampled_from([50.0, 150.0, 182.0]), id_count=st.integers(1, 3))
    def a_node_sleeps_and_is_asked_at_once(self, which: int, name: str, seconds: float, id_count: int) -> None:
        node = self._node(which)
        if node:
            self._call_node(node, self._allocate, name, 200 * id_count)
            node.loop.run_ready()
            node.loop.paused = True
            self.world.pass_time(seconds)
            node.loop.paused = False
            self._call_node(node, self._allocate, name, id_count)

    @rule(which=NODES, name=NAMES, id_count=COUNTS, turns=st.integers(0, 5), seconds=st.sampled_from([0.0, 0.0, 182.0]))
    def a_node_is_stopped_amid_an_answer(
        self, which: int, name: str, id_count: int, turns: int, seconds: float
    ) -> None:
        """Its callers are cancelled, or it sleeps, so many turns of its loop after the store has answered."""
        node = self._node(which)
        if node:
            self._call_node(node, self._allocate, name, id_count)
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
    def two_nodes_are_asked_with_one_request_id(self, which: int, request: int, seconds: float) -> None:
        self.allocate_with_a_request_id(which, request, 0)
        self.world.pass_time(seconds)
        self.allocate_with_a_request_id(which + 1, request, 0)
        self.world.pass_time(0.5)

    @rule(which=NODES, name=NAMES, seconds=st.sampled_from([20.0, 61.0, 150.0]))
    def the_store_is_away_while_it_is_used(self, which: int, name: str, seconds: float) -> None:
        self.use_it_for_a_while(which, name, 4, 6)
        self.world.down = True
        for _ in range(4):
            self.world.pass_time(seconds)
            self._call(which, self._allocate, name, 1)
        self.world.down = False

    @rule(
        which=NODES,
        other=NODES,
        name=NAMES,
        past=st.sampled_from([0, 400, 3_000]),
        seconds=st.sampled_from([1.0, 45.0, 61.0]),
    )
    def it_is_advanced_while_it_is_used(self, which: int, other: int, name: str, past: int, seconds: float) -> None:
        self.use_it_for_a_while(which, name, 4, 6)
        self._change(other, name, "advance", (past, ""))
        for _ in range(5):
            self.world.pass_time(seconds)
            self._call(which, self._allocate, name, 1)

    @rule(which=NODES, name=NAMES, method=METHODS, trouble=FAULTS, counts=st.lists(COUNTS, min_size=1, max_size=3))
    def allocate_amid_trouble(self, which: int, name: str, method: str, trouble: StoreFault, counts: list[int]) -> None:
        self.world.troubles[method].append(trouble)
        self.allocate(which, name, counts)
        self.world.pass_time(0.01)
        self.allocate(which, name, counts[:1])

    @rule(which=NODES)
    def idle_lanes_are_dropped(self, which: int) -> None:
        node = self._node(which)
        if node:
            node.drop_idle_sequences()

    @rule(prefix=st.sampled_from([0, 0, 1]))
    def a_node_starts(self, prefix: int) -> None:
        if len(self.world.nodes) < 4:
            self._start(prefix)

    @rule(which=NODES)
    def a_node_is_killed(self, which: int) -> None:
        if self.world.nodes:
            self.world.kill(self.world.nodes[which % len(self.world.nodes)])

    @rule(which=NODES)
    def a_node_ends(self, which: int) -> None:
        node = self._node(which)
        if node:
            self._close(node)

    # Backups.

    @rule()
    def a_backup_is_made(self) -> None:
        self._back_up()

    @rule(which=NODES, name=NAMES, current=st.booleans(), seconds=st.sampled_from([0.0, 61.0]))
    def an_export_is_imported_while_it_is_used(self, which: int, name: str, current: bool, seconds: float) -> None:
        self.use_it_for_a_while(which, name, 4, 6)
        self._import(self._export() if current else self.exported)
        for _ in range(4):
            self.world.pass_time(seconds)
            self._call(which, self._allocate, name, 1)

    @precondition(lambda self: self.backup is not None)
    @rule()
    def the_backup_is_restored(self) -> None:
        for name, (value, sequence) in self._rows().items():
            self._remember(name, value, sequence)
        self.world.restore(self.backup)
        self.promises.store_restored()
        for which in range(len(self.world.nodes)):
            self.use_it_for_a_while(which, "a", 20, 6)

    @precondition(lambda self: self.promises.restored)
    @rule(which=NODES)
    def the_runbook_repairs_it(self, which: int) -> None:
        node = self._node(which)
        if node:
            self._repair(node)

    @invariant()
    def all_goes_on(self) -> None:
        self.world.settle()
        for node in self.world.nodes:
            if node.is_quiet:
                self._check_balance(node)

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


@pytest.mark.timeout(0 if EXAMPLES else 300)
@pytest.mark.parametrize(("machine", "share"), [(Service, 1.0), (ServiceOnDisk, 0.1)])
def test_the_promises_hold_whatever_happens(machine: type[Service], share: float) -> None:
    if EXAMPLES:
        number = int(os.environ.get("IDALLOC_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"IDALLOC_TEST_SEED={number} IDALLOC_TEST_EXAMPLES={EXAMPLES}")
        machine = seed(number)(machine)
    if blob := os.environ.get("IDALLOC_TEST_BLOB"):
        machine = reproduce_failure(__version__, blob.encode())(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int((EXAMPLES or 100) * share),
            stateful_step_count=60 if EXAMPLES else 40,
            derandomize=not EXAMPLES,
            print_blob=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        ),
    )
