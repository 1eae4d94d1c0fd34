"""The calls of a simulated node whose replies and refusals are checked."""

from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from idalloc_server.backup.export_file import read_export
from idalloc_server.backup.exporter import retire
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.administration.change_keys import ChangeKey
from idalloc_server.domain.errors import Refusal, StartRefused
from idalloc_server.domain.sequences.sequence import Reset
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row
from tests.support.promises.checker import PromiseChecker
from tests.support.simulation.node import EPOCH_WALL, MachineClock, Node

# After every generation: no id is issued any more.
NO_GENERATION = 2**63


@dataclass(eq=False)
class CheckedCalls:
    """Makes calls, and records what they return."""

    _promises: PromiseChecker  # checks the replies
    _now: Callable[[], float]  # returns the simulated time, in seconds

    async def allocate(self, node: Node, name: str, id_count: int) -> None:
        """Allocate ids."""
        request = self._promises.record_request(node, name, id_count, self._now())
        try:
            held = node.allocator.issue_now(name, id_count)
            taken = held or await node.allocator.issue(name, id_count)
        except Refusal as refusal:
            self._promises.record_refusal(request, refusal)
            raise
        self._promises.record_reply(request, taken, self._now(), waited=held is None)

    async def allocate_once(self, node: Node, name: str, id_count: int, request_id: str) -> None:
        """Allocate ids with a request id."""
        node.took_requests = True
        request = self._promises.record_request(node, name, id_count, self._now(), request_id)
        try:
            taken, _ = await node.request_ids.allocate_once(name, id_count, request_id, 0)
        except Refusal as refusal:
            self._promises.record_refusal(request, refusal)
            raise
        self._promises.record_reply(request, taken, self._now())

    async def make_doc_ids(self, node: Node, id_count: int, offset: int = 0, increment: int = 0) -> None:
        """Generate document ids."""
        assert node.doc_ids
        prefix = self._promises.prefix(node)
        runs = node.doc_ids.issue_now(id_count, offset, increment)
        if runs is None:
            runs = await node.doc_ids.issue(id_count, offset, increment)
        self._promises.record_doc_ids(node, runs, id_count, prefix)

    async def set_prefix(self, node: Node, prefix: int) -> None:
        """Change the prefix of a node; one change at a time."""
        assert node.doc_ids
        self._promises.record_prefix(node, None)
        await node.doc_ids.change(prefix=prefix)
        self._promises.record_prefix(node, prefix)
        self._promises.record_start(node)

    async def change(self, node: Node, name: str, kind: str, given: Any, change_key: ChangeKey) -> None:
        """Create, update, delete or advance a sequence.

        Args:
            node: The node.
            name: The sequence's name.
            kind: create, update, delete or advance.
            given: The settings of a creation or an update; the value and the period of an advance.
            change_key: Identifies the change.
        """
        service = node.service
        self._promises.record_change_call(node, name)
        if kind == "create":
            self._record_row((await service.create(name, given, change_key)).row, change_key)
            return
        if kind == "update":
            changed = await service.update(name, given, "", change_key)
        elif kind == "delete":
            changed = await service.delete(name, "", change_key)
        else:
            past, period = given
            changed = await service.advance(name, past, period, "", change_key)
            at = self._now() + changed.effective_delay
            self._promises.record_advance(name, changed.summary.period, at, past, changed.summary.row.sequence.step)
        row = changed.summary.row
        self._record_row(row, change_key)
        if kind == "update" and row.lease_ms and not changed.effective_delay:
            return  # It ended no leases: the generation may be another change's.
        self._promises.record_change(name, self._now() + changed.effective_delay, row.generation + row.deleted, node)

    def _record_row(self, row: Row, change_key: ChangeKey) -> None:
        """Check that the row of a reply is of this change, and record its settings."""
        assert change_key.value == row.revised_by, f"a change of {row.name!r} is answered by another one's row (P5)"
        self._promises.record_settings(row.name, row.generation, row.sequence)

    async def bring_in(self, store: Store, clock: MachineClock, lines: list[bytes]) -> None:
        """Import lines of an export."""
        file = read_export(lines)
        importer = Importer(store, clock, by="import:1")
        await importer.run(file)
        at = self._now() if importer.effective_at is None else importer.effective_at - EPOCH_WALL - clock.offset
        refused = {problem.line for problem in [*file.problems, *importer.problems]}
        for item in file.items:
            if item.line in refused:
                continue
            name, step = item.row.name, item.row.sequence.step
            if item.row.sequence.reset == Reset.NEVER and item.row.last_value is not None:
                self._promises.record_advance(name, "", at, item.row.last_value, step)
            for line, counter in item.periods.items():
                if line not in refused:
                    self._promises.record_advance(name, counter.period, at, counter.last_value, step)

    async def retire(self, node: Node, names: Iterable[str]) -> None:
        """Retire the store. From then on no node issues ids of any sequence, such as these."""
        await retire(node.connection, node.clock, "elsewhere", random=Random(0).randbytes)
        for name in names:
            self._promises.record_change(name, self._now(), NO_GENERATION)


async def unless_refused(call: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    """Make a call, which may be refused."""
    with suppress(Refusal, StartRefused):
        await call(*arguments)
