"""The simulated cluster of ``test_state_machine``: calls, changes, backups, repairs and stops."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

from idalloc_server.backup.exporter import export_lines
from idalloc_server.domain.administration.change_keys import ChangeKey
from idalloc_server.domain.errors import StoreWentBackwards
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Kind, Reset, Sequence
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store
from tests.support.promises.calls import CheckedCalls, unless_refused
from tests.support.promises.checker import PromiseChecker
from tests.support.simulation.node import Node
from tests.support.simulation.world import World


class SimulatedCluster(RuleBasedStateMachine):
    """Nodes on one store, and the checker of their promises."""

    on_disk: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory() if self.on_disk else None
        self.world = World(Path(self.folder.name) / "idalloc.db" if self.folder else None)
        self.promises = PromiseChecker()
        self.calls = CheckedCalls(self.promises, lambda: self.world.now)
        self.backup: Any = None
        self.exported: list[bytes] = []
        # The lowest and the highest value of each counter so far, and its last settings.
        self.lost: dict[str, tuple[int, int, Sequence]] = {}
        self.changes: dict[str, tuple[ChangeKey, str, Any]] = {}

    def _end(self) -> None:
        """Assert that all nodes serve after the faults, and stop them."""
        self.world.clear_faults()
        for node in self.world.nodes:
            node.loop.paused = False
            node.clock.offset = 0.0
        self.world.pass_time(150.0)
        if self.promises.restored and self.world.nodes:
            self._repair(self.world.nodes[0])
        for node in list(self.world.nodes):
            for name in "abc":
                self._call_node(node, self.calls.allocate, name, 2)
            self.world.pass_time(10.0)
        for node in list(self.world.nodes):
            self._close(node)

    def _node(self, which: int) -> Node | None:
        """Return a node that is not paused, or None."""
        running = [node for node in self.world.nodes if not node.loop.paused]
        return running[which % len(running)] if running else None

    def _start(self, prefix: int) -> None:
        node = self.world.start_node(prefix)
        if node:
            self.promises.record_start(node)

    def _close(self, node: Node) -> None:
        error = self.world.finish(node.loop, node.close())
        assert error is None, error
        assert not node.allocator.held_ids
        self.promises.check_balance(node)
        self.world.kill(node)

    def _call(self, which: int, work: Any, *arguments: Any) -> None:
        node = self._node(which)
        if node:
            self._call_node(node, work, *arguments)

    def _call_node(self, node: Node, work: Any, *arguments: Any) -> None:
        task = node.loop.create_task(unless_refused(work, node, *arguments))
        node.callers.append(task)
        task.add_done_callback(node.callers.remove)

    def _change(self, which: int, name: str, kind: str, given: Any) -> None:
        node = self._node(which)
        if node:
            change_key = node.service.change_key("", b"")
            self.changes[name] = (change_key, kind, given)
            self._call_node(node, self.calls.change, name, kind, given, change_key)

    @property
    def _store(self) -> Store:
        return self.world.direct if self.world.memory is None else self.world.memory

    def _export(self) -> list[bytes]:
        lines: list[bytes] = []

        async def collect() -> None:
            lines.extend([line.encode() async for line in export_lines(self._store)])

        error = self.world.finish(self.world.store_loop, collect())
        assert error is None, error
        return lines

    def _back_up(self) -> None:
        self.backup, self.exported = self.world.copy_store(), self._export()

    def _import(self, lines: list[bytes]) -> None:
        """Import as ``idalloc store import`` does, under the running nodes."""
        error = self.world.finish(self.world.store_loop, self.calls.bring_in(self._store, self.world.clock, lines))
        assert error is None, error

    def _rows(self) -> dict[str, tuple[int, Sequence]]:
        if self.world.memory is not None:
            return {name: (row.last_value or 0, row.sequence) for name, row in self.world.memory.rows.items()}
        found: dict[str, tuple[int, Sequence]] = {}

        async def read_export() -> None:
            for row in await self.world.direct.list("", "", 1000, with_deleted=True, with_periods=True):
                if row.name != IDENTITY:
                    found[row.name] = (row.last_value or 0, row.sequence)

        self.world.finish(self.world.store_loop, read_export())
        return found

    def _remember(self, name: str, value: int, sequence: Sequence) -> None:
        low, high, _ = self.lost.get(name, (value, value, sequence))
        self.lost[name] = (min(low, value, sequence.start), max(high, value, sequence.start), sequence)

    def _repair(self, node: Node) -> None:
        """Repair a restored store as in the runbook: advance all sequences past all issued ids."""
        self.world.clear_faults()
        for name, (value, sequence) in self._rows().items():
            self._remember(name, value, sequence)
        # Not only the counters: a tail of the lost store may have been returned to the restored
        # one.
        for each in [*self.world.nodes, *self.world.gone]:
            for name, value, sequence in each.connection.ledger.all:
                self._remember(name, value, sequence)
        # Correct the clock, and wait until it has passed all issued timestamps.
        node.clock.offset = 0.0
        for _, high, sequence in self.lost.values():
            if sequence.kind != Kind.COUNTER:
                self.world.pass_time(max(0.0, high / sequence.kind.per_second - node.clock.wall()))
        # Changes that are still pending, such as a deletion, could interfere.
        for caller in [caller for each in self.world.nodes for caller in each.callers]:
            caller.cancel()
        self.world.pass_time(200.0)
        values: dict[tuple[str, str], tuple[int, int]] = {}
        error = self.world.finish(node.loop, self._advance_all(node, values))
        assert error is None, error
        self.promises.record_repair(values, self.world.now)
        self.world.pass_time(1.1)
        for other in self.world.nodes:
            if not other.loop.paused:
                for name in self.lost:
                    if PERIOD_SEPARATOR not in name:
                        self._assert_that_it_continues(other, name)

    def _assert_that_it_continues(self, node: Node, name: str) -> None:
        error = self.world.finish(node.loop, self.calls.allocate(node, name, 1))
        if isinstance(error, StoreWentBackwards) and "of another sequence" in str(error):
            self.world.pass_time(1.1)  # the node checks once a second who changed the row
            error = self.world.finish(node.loop, self.calls.allocate(node, name, 1))
        assert not isinstance(error, (StoreWentBackwards, AssertionError)), error

    async def _advance_all(self, node: Node, values: dict[tuple[str, str], tuple[int, int]]) -> None:
        service = node.service
        for counter, (low, high, _) in self.lost.items():
            name, _, period = counter.partition(PERIOD_SEPARATOR)
            row = await node.connection.get(name)
            if row is None or row.deleted:
                sequence = row.sequence if row else self.lost[name][2]
                given = {
                    field: getattr(sequence, field)
                    for field in ("start", "step", "min_value", "max_value", "kind", "ordering", "format", "reset")
                }
                await service.create(name, given, service.change_key("", b""))
                row = await node.connection.get(name)
            assert row
            # Align the value to the current settings: a counter right before it would look like a
            # store that is behind.
            value = row.sequence.align(high if row.sequence.step > 0 else low)
            if not period and row.sequence.reset != Reset.NEVER:
                value = row.sequence.before_start  # its periods have the counters; any change will do
            elif period and row.sequence.reset == Reset.NEVER:
                continue  # a period of the sequence that this one replaced
            else:
                values[name, period] = (value, row.sequence.step)
            if row.sequence.is_past(value, row.sequence.bound):
                bound = "max_value" if row.sequence.step > 0 else "min_value"
                await service.update(name, {bound: value}, "", service.change_key("", b""))
            changed = await service.advance(name, value, period, "", service.change_key("", b""))
            seen = max(other.allocator.generation_seen(name) for other in self.world.nodes)
            if changed.summary.row.generation <= seen:
                ahead = seen / 1000 - node.clock.wall()
                assert ahead > 0, f"{name!r} repeats generation {changed.summary.row.generation}"
                # The seen generation is of a clock that was ahead: advance with a later clock.
                node.clock.offset = ahead + 1.0
                await service.advance(name, value, period, "", service.change_key("", b""))
                node.clock.offset = 0.0
