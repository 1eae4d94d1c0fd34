"""The contract of every store: names that an import skipped."""

import pytest

from idalloc_server.backup.counter_documents import read_lines
from idalloc_server.backup.exporter import export_lines
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.errors import SequenceDeleted
from idalloc_server.domain.sequences.sequence import Reset
from idalloc_server.domain.store.name_holds import SequenceReserved, is_reserved
from idalloc_server.domain.store.protocol import Store
from tests.store.conftest import ALL
from tests.store.test_first_use import CONFIG
from tests.support.fake_store import FakeClock
from tests.support.sequence_allocators import ids
from tests.unit.server.domain.administration.conftest import new_token

LINES = [b'{"_id":"%s","_source":{"v":-5}}' % name for name in (b"orders", b"boxes", b"bills", b"cartons")]


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestReservedNames:
    async def test_a_reserved_name_is_refused_until_it_is_released(self, store: Store, clock: FakeClock) -> None:
        """P1: a skipped counter never starts at 1: calls fail until a create, advance or import."""
        importer = Importer(store, clock)
        await importer.run(read_lines(LINES))
        assert importer.reserved == len(LINES)
        allocator = Allocator(store, clock, CONFIG)
        service = SequenceService(store, clock, allocator)
        for name in ("orders", "boxes", "bills", "cartons"):
            with pytest.raises(SequenceReserved, match="is reserved: the import skipped it: is negative"):
                await allocator.issue(name, 5)
        # As a server that does not know reservations sees it.
        with pytest.raises(SequenceDeleted, match="it was deleted"):
            await store.grant("orders", 5, 1000)
        assert len([line async for line in export_lines(store) if '"reserved": true' in line]) == len(LINES)
        await service.create("orders", {"start": 701}, new_token())
        await service.advance("boxes", 801, "", "", new_token())
        given = {"start": 5, "reset": Reset.YEARLY, "format": "{year}-{value}"}
        await service.create("bills", given, new_token())
        again = Importer(store, clock)
        await again.run(read_lines([b'{"_id":"cartons","_source":{"v":900}}']))
        assert (again.raised, again.problems) == (1, [])
        assert [ids(await allocator.issue(name, 1)) for name in ("orders", "boxes", "bills", "cartons")] == [
            [701],
            [802],
            [5],
            [901],
        ]
        assert not any(is_reserved(row) for row in await store.list("", "", 9, with_deleted=True, with_periods=True))
        await allocator.return_leases()
