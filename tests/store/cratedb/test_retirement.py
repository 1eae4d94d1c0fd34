"""A retirement that races with writes in CrateDB, which has no transactions."""

from collections.abc import AsyncIterator, Awaitable
from collections.abc import Sequence as Many
from typing import Any

import pytest

from idalloc_server.domain.errors import Refusal, StoreOutcomeUnknown, StoreRetired, StoreUnavailable
from idalloc_server.domain.sequences.sequence import Reset, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RowChange
from idalloc_server.domain.store.retirement import RETIRED_BY, RETIREMENT, retirement_row
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock
from tests.support.store_rows import new_row, read_row

Stores = tuple[Store, Store]
AT = 1_700_000_000.0
RETIREMENT_ROW = retirement_row("db1, schema idalloc", f"{RETIRED_BY}me", AT)


def change(by: str, *, deleted: bool = False) -> RowChange:
    return RowChange(Sequence(), 0, by, AT, deleted=deleted)


def claim(store: Store) -> Awaitable[object]:
    return store.claim_start(7, 1000, "me", 60)


class TestRaces:
    """CrateDB has no transactions: a write that the retirement row overtakes is undone."""

    @pytest.fixture
    async def stores(self, emulator: CrateEmulator, clock: FakeClock) -> AsyncIterator[Stores]:
        stores = [open_store(f"crate://{emulator.host}/", clock) for _ in range(2)]
        for store in stores:
            await store.open()
        yield stores[0], stores[1]
        for store in stores:
            await store.close()

    async def overtake(
        self,
        emulator: CrateEmulator,
        stores: Stores,
        match: str,
        call: Awaitable[object],
        error: type[Refusal] = StoreRetired,
    ) -> None:
        """Make a call; the retirement row is written just before one of its statements."""
        await stores[1].create(RETIREMENT_ROW._replace(deleted=True))
        execute = emulator.statements.execute

        def execute_after_the_row(statement: str, args: Many[Any]) -> dict[str, Any]:
            if match in statement:
                execute("UPDATE doc.sequences SET mode = 'period' WHERE name = ?", [RETIREMENT])
            return execute(statement, args)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(error):
            patch.setattr(emulator.statements, "execute", execute_after_the_row)
            await call

    async def test_a_late_create_is_deleted(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P1: a create that the retirement row overtakes is refused and leaves a tombstone."""
        yearly = Sequence(reset=Reset.YEARLY, format="{year}-{value}")
        call = stores[0].create(new_row("late", yearly, generation=3))
        await self.overtake(emulator, stores, "INSERT INTO", call)
        row = await read_row(stores[1], "late")
        assert row.deleted
        assert row.generation == 5  # odd, as of every sequence with a reset
        with pytest.raises(StoreRetired):
            await stores[1].grant("late", 1, 1000)

    async def test_a_late_create_with_ids_has_an_unknown_outcome(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P9: the ids of a create that the retirement row overtakes are burned, and so counted."""
        call = stores[0].create(new_row("late", last_value=5))
        await self.overtake(emulator, stores, "INSERT INTO", call, StoreOutcomeUnknown)
        row = await read_row(stores[1], "late")
        assert (row.deleted, row.last_value) == (True, 5)

    async def test_a_late_revival_is_deleted(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P1: a revival that the retirement row overtakes is refused and leaves a tombstone."""
        await stores[0].create(new_row("late", deleted=True))
        await self.overtake(emulator, stores, "rev_by = CASE", stores[0].revise("late", 0, change("again")))
        assert (await read_row(stores[1], "late")).deleted

    async def test_a_late_claim_is_refused(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P6: a start timestamp that was claimed after the retirement row is not used."""
        await self.overtake(emulator, stores, "(prefix, last_start, holder", claim(stores[0]))

    async def test_an_orphaned_row_grants_nothing(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P1: if the creator crashed before it deleted the row, the first grant is given back."""
        await stores[1].create(new_row("orphan"))
        await stores[1].create(new_row("known"))
        assert await stores[0].grant("known", 1, 1000)
        await stores[1].create(RETIREMENT_ROW)
        for _ in range(2):
            with pytest.raises(StoreRetired):
                await stores[0].grant("orphan", 5, 1000)
        assert (await read_row(stores[1], "orphan")).last_value == 0
        assert await stores[0].grant("known", 1, 1000)  # until the retirement ends it
        sent = len(emulator.requests)
        await stores[0].grant("known", 1, 1000)
        assert len(emulator.requests) == sent + 1

    async def test_a_grant_with_an_unreadable_retirement_is_unknown(
        self, emulator: CrateEmulator, stores: Stores
    ) -> None:
        """P9: a grant's ids are burned and counted if the retirement row is unreadable after it."""
        await stores[1].create(new_row("orders"))
        emulator.inject(Fault("error", match="SELECT name", times=-1, status=403, code=4037))
        with pytest.raises(StoreUnavailable, match="whether it is retired") as refused:
            await stores[0].grant("orders", 5, 1000)
        assert type(refused.value).__name__ == "StoreOutcomeUnknown"

    async def test_a_grant_that_cannot_be_given_back_is_unknown(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P9: the ids of a grant on a retired store are burned if they cannot be given back."""
        await stores[1].create(new_row("orphan"))
        await stores[1].create(RETIREMENT_ROW)
        emulator.inject(Fault("error", match="last_value - ", status=400, code=4000))
        with pytest.raises(StoreUnavailable, match="cannot be given back: this store was retired") as refused:
            await stores[0].grant("orphan", 5, 1000)
        assert type(refused.value).__name__ == "StoreOutcomeUnknown"
        assert (await read_row(stores[1], "orphan")).last_value == 5

    async def test_a_create_with_an_unreadable_retirement_is_unknown(
        self, emulator: CrateEmulator, stores: Stores
    ) -> None:
        """P9: a create has an unknown outcome if the retirement row cannot be read after it."""
        execute = emulator.statements.execute

        def execute_then_fail(statement: str, args: Many[Any]) -> dict[str, Any]:
            answer = execute(statement, args)
            if statement.startswith("INSERT INTO"):
                emulator.inject(Fault("error", match="SELECT name", status=400, code=4000))
            return answer

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreUnavailable) as refused:
            patch.setattr(emulator.statements, "execute", execute_then_fail)
            await stores[0].create(new_row("orders"))
        assert type(refused.value).__name__ == "StoreOutcomeUnknown"
        assert (await read_row(stores[1], "orders")).name == "orders"
