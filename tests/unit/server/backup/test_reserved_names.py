"""Names that an import skipped: reserved until a create with a start, an advance or an import."""

import json
from typing import Any

import pytest

from idalloc_server.backup.counter_documents import read_lines
from idalloc_server.backup.export_file import header_line, read_export
from idalloc_server.backup.exporter import export_lines
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.errors import (
    InvalidRequest,
    RequestIdBurned,
    SequenceDeleted,
    SequenceExists,
    StoreRetired,
)
from idalloc_server.domain.sequences.sequence import Kind, Reset, Sequence, name_of_period
from idalloc_server.domain.store.name_holds import SequenceReserved
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.store.retirement import RETIRED_BY, retirement_row
from tests.support.fake_store import FakeClock, MemoryStore
from tests.unit.server.domain.administration.conftest import Node, new_token
from tests.unit.server.domain.idempotency.conftest import Node as NodeWithRequestIds

NEXT_STEP = "create it with a start, or advance it, past the highest id in use"
NEGATIVE = b'{"_id":"orders","_source":{"v":-5}}'
CORRECTED = b'{"_id":"orders","_source":{"v":700}}'


@pytest.fixture
def node(store: MemoryStore, clock: FakeClock) -> Node:
    return Node(store, clock)


async def run_import(store: MemoryStore, *lines: bytes, clock: FakeClock | None = None) -> Importer:
    importer = Importer(store, clock or FakeClock())
    await importer.run(read_lines(lines))
    return importer


async def import_export(store: MemoryStore, *lines: dict[str, Any] | str) -> Importer:
    texts = [header_line(), *(line if isinstance(line, str) else json.dumps(line) for line in lines)]
    importer = Importer(store, FakeClock())
    await importer.run(read_export([text.encode() for text in texts]))
    return importer


YEARLY = {"reset": "YEARLY", "format": "{year}-{value}"}


def line(name: str, last_value: str | None, **settings: object) -> dict[str, Any]:
    return {"sequence": name, "last_value": last_value, "generation": "1", "settings": settings}


async def refused(node: Node, name: str = "orders") -> str:
    """Return the message with which an allocation is rejected."""
    with pytest.raises(SequenceReserved) as error:
        await node.take(name)
    return str(error.value)


class TestReservation:
    async def test_a_skipped_name_is_refused_with_its_reason(self, node: Node, store: MemoryStore) -> None:
        """P1: a counter that was not imported does not start at 1 at its first use."""
        done = await run_import(store, NEGATIVE, b'{"_id":"boxes","_source":{"v":7}}')
        assert (done.created, done.reserved) == (1, 1)
        message = await refused(node)
        assert message.startswith("sequence 'orders' is reserved: the import skipped it: is negative (-5): it wrapped")
        assert message.endswith(NEXT_STEP)
        assert await refused(node) == message  # also the next call
        assert await node.take("boxes") == [8]

    async def test_reads_and_changes_are_refused_with_the_reason(self, node: Node, store: MemoryStore) -> None:
        """Administration names the reason, too; a list of deleted sequences describes it."""
        await run_import(store, NEGATIVE)
        service = node.service
        for call in (
            service.get("orders"),
            service.parse("orders", "5"),
            service.update("orders", {"description": "x"}, "", new_token()),
            service.delete("orders", "", new_token()),
        ):
            with pytest.raises(SequenceReserved, match="is reserved: the import skipped it: is negative"):
                await call
        assert await service.list("", "", 10, with_deleted=False) == ([], "")
        [listed], _ = await service.list("", "", 10, with_deleted=True)
        assert listed.row.sequence.description.startswith("reserved: the import skipped it: is negative (-5)")

    async def test_a_call_with_a_request_id_is_refused(self, store: MemoryStore, clock: FakeClock) -> None:
        """P7: a call with a request id is rejected, too; a retry of an earlier one is burned."""
        node = NodeWithRequestIds(store, clock)
        await node.take()
        del store.rows["orders"]  # as after a move to another store
        await run_import(store, NEGATIVE, clock=clock)
        fresh = NodeWithRequestIds(store, clock)
        assert isinstance(await fresh.refused(), RequestIdBurned)
        other = await fresh.refused(request_id="22222222-2222-4222-8222-222222222222")
        assert isinstance(other, SequenceReserved)

    async def test_a_reason_is_bounded_and_safe(self, node: Node, store: MemoryStore) -> None:
        """The reason fits into a status, and has no control characters."""
        await run_import(store, json.dumps({"_id": "orders", "_source": {"v": "\u202e\n" * 5_000}}).encode())
        description = store.rows["orders"].sequence.description
        assert len(description) < 320
        assert description.isprintable()

    @pytest.mark.parametrize(
        "lines",
        [
            [b'{"index":{"_id":"orders"}}', b"{"],
            [b'{"index":{"_id":"orders"}}', b"[]"],
            [b'{"index":{"_id":"orders"}}'],
            [b'{"update":{"_id":"orders"}}', b'{"doc":{"v":1}}'],
            [b'{"_id":"orders","_source":null}'],
            [b'{"_id":"orders","_source":{"v":1}}', b'{"_id":"orders","_source":{"v":900}}'],
            [NEGATIVE, CORRECTED],
        ],
    )
    async def test_each_line_with_a_name_reserves_it(self, node: Node, store: MemoryStore, lines: list[bytes]) -> None:
        """P1: a name with any skipped line is reserved, also if another line of it is valid."""
        assert (await run_import(store, *lines)).created == 0
        await refused(node)

    @pytest.mark.parametrize(
        "content",
        [b"{", b"[]", b'{"_id":5,"_source":{"v":1}}', b'{"_id":"a\\u0000"}', b'{"_id":"\\ud800","_source":{"v":1}}'],
    )
    async def test_a_line_without_a_name_reserves_nothing(self, store: MemoryStore, content: bytes) -> None:
        """A line without a valid name is only reported."""
        assert len(read_lines([content]).problems) == 1
        assert (await run_import(store, content)).reserved == 0
        assert not store.rows

    async def test_a_sequence_of_the_store_is_not_reserved(self, node: Node, store: MemoryStore) -> None:
        """A skipped line changes no sequence that exists, live or deleted."""
        await node.take("orders", 5)
        await store.create(Row("gone", 9, Sequence(), revision=1, revised_by="x", deleted=True))
        done = await run_import(store, NEGATIVE, NEGATIVE.replace(b"orders", b"gone"))
        assert done.reserved == 0
        assert await node.take("orders") == [6]
        with pytest.raises(SequenceDeleted, match="it was deleted"):
            await node.take("gone")

    async def test_a_retired_store_reserves_nothing(self, store: MemoryStore, clock: FakeClock) -> None:
        """A retired store rejects an import before it writes."""
        await store.create(retirement_row("elsewhere", f"{RETIRED_BY}me", clock.wall()))
        before = dict(store.rows)
        with pytest.raises(StoreRetired):
            await run_import(store, NEGATIVE)
        assert store.rows == before


class TestRelease:
    async def test_a_creation_with_a_start_ends_it(self, node: Node, store: MemoryStore) -> None:
        """P1: CreateSequence needs the start, which the reservation does not know."""
        await run_import(store, NEGATIVE)
        with pytest.raises(
            InvalidRequest, match="start: must be set, past the highest id in use: reserved: the import"
        ):
            await node.service.create("orders", {"description": "all"}, new_token())
        await refused(node)
        token = new_token()
        for _ in range(2):  # the same request again returns the same sequence
            made = await node.service.create("orders", {"start": 701, "description": "all"}, token)
            assert (made.row.deleted, made.row.sequence.description) == (False, "all")
        assert await node.take("orders", 2) == [701, 702]
        with pytest.raises(SequenceExists):
            await node.service.create("orders", {"start": 701}, new_token())

    @pytest.mark.parametrize(
        "given",
        [
            {"start": 5, "reset": Reset.YEARLY, "format": "{year}-{value:06d}", "time_zone": "Europe/Vienna"},
            {"start": 1, "kind": Kind.TIMESTAMP_MS},
            {"start": 100, "step": 10, "max_value": 999},
        ],
    )
    async def test_it_may_become_any_kind_of_sequence(
        self, node: Node, store: MemoryStore, given: dict[str, Any]
    ) -> None:
        """A reserved name has no kind and no periods that a creation would have to keep."""
        await run_import(store, NEGATIVE)
        await node.service.create("orders", given, new_token())
        assert "kind" in given or await node.take("orders") == [given["start"]]

    async def test_an_advance_ends_it(self, node: Node, store: MemoryStore, clock: FakeClock) -> None:
        """P1: AdvanceSequence makes a default sequence that continues past the value."""
        await run_import(store, NEGATIVE)
        token = new_token()
        for _ in range(2):
            advanced = await node.service.advance("orders", 700, "", "", token)
            row = advanced.summary.row
            assert (row.deleted, row.sequence, row.last_value, advanced.effective_delay) == (False, Sequence(), 700, 0)
        assert await node.take("orders") == [701]

    async def test_an_advance_of_a_deleted_sequence_is_refused(self, node: Node) -> None:
        """A sequence that was deleted on purpose stays deleted."""
        await node.take("orders")
        await node.service.delete("orders", "", new_token())
        with pytest.raises(SequenceDeleted, match="it was deleted"):
            await node.service.advance("orders", 700, "", "", new_token())

    async def test_a_later_deletion_is_an_ordinary_one(self, node: Node, store: MemoryStore) -> None:
        """A deleted sequence, once reserved, is created again behind its last id, without start."""
        await run_import(store, NEGATIVE)
        await node.service.create("orders", {"start": 701}, new_token())
        await node.take("orders")
        await node.service.delete("orders", "", new_token())
        await node.service.create("orders", {}, new_token())
        assert await node.take("orders") == [702]

    async def test_a_corrected_line_ends_it(self, node: Node, store: MemoryStore) -> None:
        """P1: a repeated import with the line corrected creates the sequence, once."""
        await run_import(store, NEGATIVE)
        await refused(node)
        again = await run_import(store, NEGATIVE)
        assert (again.reserved, again.problems) == (0, [])
        done = await run_import(store, CORRECTED)
        assert (done.raised, done.problems) == (1, [])
        assert await node.take("orders") == [701]
        late = await run_import(store, NEGATIVE)
        assert late.reserved == 0
        assert await node.take("orders") == [702]

    async def test_a_corrected_export_line_of_any_kind_ends_it(self, node: Node, store: MemoryStore) -> None:
        """P1: also with a reset, whose periods continue behind their counters."""
        wrong, right = line("bills", "-7", **YEARLY), line("bills", "0", **YEARLY)
        year = {"sequence": "bills", "period": "2023", "last_value": "41", "generation": "1"}
        assert (await import_export(store, wrong)).reserved == 1
        assert (await import_export(store, right, year)).problems == []
        assert await node.take("bills") == [42]


class TestExportFiles:
    async def test_a_skipped_line_of_an_export_reserves_its_name(self, node: Node, store: MemoryStore) -> None:
        """P1: an invalid line of an export does not let its sequence start over."""
        done = await import_export(store, line("orders", "10", stp="2"), line("boxes", "3"))
        assert (done.created, done.reserved) == (1, 1)
        assert "is reserved: the import skipped it: unknown field 'stp'" in await refused(node)

    async def test_a_rejected_line_reserves_its_name(self, node: Node, store: MemoryStore) -> None:
        """P1: a line that the import itself rejects does not let its sequence start over."""
        assert (await import_export(store, line("orders", None))).reserved == 1
        assert "has no last_value" in await refused(node)

    async def test_a_skipped_period_reserves_its_sequence(self, node: Node, store: MemoryStore) -> None:
        """P1: a period whose line was skipped does not start over."""
        year = {"sequence": "bills", "period": "2023", "last_value": "many", "generation": "1"}
        done = await import_export(store, line("bills", "0", **YEARLY), year)
        assert (done.created, done.reserved) == (0, 1)
        assert "is reserved: the import skipped it: last_value" in await refused(node, "bills")
        assert name_of_period("bills", "2023") not in store.rows

    async def test_a_reservation_survives_a_transfer(self, node: Node, store: MemoryStore, clock: FakeClock) -> None:
        """P1: an export has reservations; an import elsewhere keeps them and their reasons."""
        await run_import(store, NEGATIVE)
        message = await refused(node)
        lines = [each async for each in export_lines(store)]
        assert json.loads(lines[1])["reserved"] is True
        there = MemoryStore(clock)
        for created in (1, 0):
            done = await import_export(there, *lines[1:])
            assert (done.reserved, done.problems) == (created, [])
        assert await refused(Node(there, clock)) == message
        assert json.loads([each async for each in export_lines(there)][1])["reserved"] is True

    async def test_an_exported_reservation_changes_no_live_sequence(self, node: Node, store: MemoryStore) -> None:
        """A backup from before the name was released does not end the sequence."""
        await run_import(store, NEGATIVE)
        lines = [each async for each in export_lines(store)]
        await node.service.advance("orders", 700, "", "", new_token())
        done = await import_export(store, *lines[1:])
        assert (done.reserved, done.problems) == (0, [])
        assert await node.take("orders") == [701]

    async def test_other_lines_have_no_field_reserved(self, store: MemoryStore) -> None:
        """Compatibility: an export without reservations is one that servers without them read."""
        await store.create(Row("orders", 5, Sequence(), revision=1, revised_by="x"))
        await store.create(Row("gone", 5, Sequence(), revision=1, revised_by="x", deleted=True))
        assert not [each async for each in export_lines(store) if "reserved" in each]


async def test_a_reservation_that_is_released_meanwhile(node: Node, store: MemoryStore, clock: FakeClock) -> None:
    """P1: a creation whose reservation another node ends first does not take that node's ids."""
    await run_import(store, NEGATIVE)
    gate = store.hold("revise")
    other = Node(store, clock)
    import asyncio

    waiting = asyncio.ensure_future(node.service.create("orders", {"start": 701}, new_token()))
    await asyncio.sleep(0)
    store.rows["orders"].deleted = False
    row = store.rows["orders"]
    row.revision, row.revised_by, row.last_value = 2, "other", 900
    gate.set()
    with pytest.raises(SequenceExists):
        await waiting
    assert await other.take("orders") == [901]
