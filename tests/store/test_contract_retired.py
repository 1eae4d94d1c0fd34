"""What every store promises once it has the mark of a retired store, on each of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from collections.abc import Sequence as Many
from typing import Any

import pytest

from idalloc_server.domain.errors import SequenceDeleted, StoreRetired, StoreUnavailable
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.retirement import RETIRED_BY, RETIREMENT, mark, retired
from idalloc_server.domain.sequences.model import Reset, Sequence
from idalloc_server.domain.store import Store
from idalloc_server.store.urls import open_store
from tests.store.conftest import ALL
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock
from tests.support.store_backends import Opener
from tests.support.store_rows import made, row_of

Call = Callable[[Store], Awaitable[object]]
Stores = tuple[Store, Store]
AT = 1_700_000_000.0
MARK = mark("db1, schema idalloc", f"{RETIRED_BY}me", AT)


def change(by: str, *, deleted: bool = False) -> Revision:
    return Revision(Sequence(), 0, by, AT, deleted=deleted)


def claim(store: Store) -> Awaitable[object]:
    return store.claim_start(7, 1000, "me", 60)


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestRetired:
    @pytest.mark.parametrize(
        "call",
        [
            lambda store: store.create(made("new")),
            lambda store: store.create(made("old")),
            lambda store: store.revise("old", 1, change("again")),
            lambda store: store.revise("live", 0, change("update")),
            lambda store: store.grant("old", 1, 1000),
            claim,
        ],
        ids=["create", "create anew", "revive", "update", "grant", "claim"],
    )
    async def test_it_refuses_and_applies_nothing(
        self, store: Store, call: Callable[[Store], Awaitable[object]]
    ) -> None:
        """P1, P6: nothing is created, revived or claimed in a retired store."""
        await claim(store)
        await store.create(made("old"))
        await store.revise("old", 0, change("end", deleted=True))
        await store.create(made("live"))
        await store.create(MARK)
        before = await self.rows(store)
        with pytest.raises(StoreRetired, match=r"retired on 2023-11-14T22:13:20\+00:00; go on at: db1, schema"):
            await call(store)
        assert await self.rows(store) == before
        assert await store.get("new") is None

    async def rows(self, store: Store) -> list[Row]:
        """Returns all rows; CrateDB notes the lease that was asked for also where nothing was granted."""
        return [row._replace(lease_ms=0) for row in await store.list("", "", 9, deleted=True, periods=True)]

    async def test_what_lives_goes_on_until_it_is_ended(self, store: Store) -> None:
        """P1: leases of sequences that are not ended yet are renewed, and then end."""
        await store.create(made("live"))
        await store.grant("live", 1, 1000)
        await store.create(MARK)
        grant = await store.grant("live", 1, 1000)
        assert grant is not None
        assert grant.granted == 1
        ended = await store.revise("live", 0, change("end", deleted=True))
        assert ended is not None
        assert ended.deleted

    async def test_the_mark_is_in_no_list_of_sequences(self, store: Store) -> None:
        """Callers who list sequences do not see the mark."""
        await store.create(MARK)
        assert await store.list("", "", 9, deleted=True, periods=False) == []
        assert await store.get(RETIREMENT) == MARK

    async def test_without_the_mark_it_creates_again(self, store: Store) -> None:
        """A tombstone of the mark undoes the retirement, and the mark can be set again."""
        await store.create(MARK)
        await store.revise(RETIREMENT, 0, Revision(MARK.sequence, 0, "undo", AT, deleted=True))
        assert await store.create(made("new")) == made("new")
        await claim(store)
        await store.revise(RETIREMENT, 1, Revision(MARK.sequence, 0, "again", AT))
        with pytest.raises(StoreRetired):
            await store.create(made("newer"))

    async def test_many_that_create_are_refused_or_listed(self, store: Store, opener: Opener) -> None:
        """P1: whatever creation a retirement races with is either refused, or was there before the mark."""
        other = await opener.open()

        async def create(n: int) -> str:
            try:
                return (await (store, other)[n % 2].create(made(f"s{n:02d}"))).name
            except StoreRetired:
                return ""

        *created, _ = await asyncio.gather(*(create(n) for n in range(20)), store.create(MARK))
        rows = await store.list("", "", 99, deleted=False, periods=False)
        assert {row.name for row in rows} == set(filter(None, created))


class TestRacesOfCrateDB:
    """CrateDB has no transactions: what a mark overtakes is undone."""

    @pytest.fixture
    async def stores(self, emulator: CrateEmulator, clock: FakeClock) -> AsyncIterator[Stores]:
        stores = [open_store(f"crate://{emulator.host}/", clock) for _ in range(2)]
        for store in stores:
            await store.open()
        yield stores[0], stores[1]
        for store in stores:
            await store.close()

    async def overtake(self, emulator: CrateEmulator, stores: Stores, match: str, call: Awaitable[object]) -> None:
        """Makes a call, with the mark written just before one of its statements is applied."""
        await stores[1].create(MARK._replace(deleted=True))
        execute = emulator.statements.execute

        def execute_behind_the_mark(statement: str, args: Many[Any]) -> dict[str, Any]:
            if match in statement:
                execute("UPDATE doc.sequences SET mode = 'period' WHERE name = ?", [RETIREMENT])
            return execute(statement, args)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreRetired):
            patch.setattr(emulator.statements, "execute", execute_behind_the_mark)
            await call

    async def test_a_create_that_comes_late_is_ended(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P1: the creator sees the mark afterwards, refuses, and leaves a tombstone."""
        yearly = Sequence(reset=Reset.YEARLY, format="{year}-{value}")
        call = stores[0].create(made("late", yearly, generation=3))
        await self.overtake(emulator, stores, "INSERT INTO", call)
        row = await row_of(stores[1], "late")
        assert row.deleted
        assert row.generation == 5  # odd, as of every sequence with a reset
        with pytest.raises(StoreRetired):
            await stores[1].grant("late", 1, 1000)

    async def test_a_revival_that_comes_late_is_ended(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P1: a deleted sequence that is created again just then is a tombstone again."""
        await stores[0].create(made("late", deleted=True))
        await self.overtake(emulator, stores, "rev_by = CASE", stores[0].revise("late", 0, change("again")))
        assert (await row_of(stores[1], "late")).deleted

    async def test_a_claim_that_comes_late_is_refused(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P6: a start timestamp that was claimed after the mark is used by nobody."""
        await self.overtake(emulator, stores, "(prefix, last_start, holder", claim(stores[0]))

    async def test_a_row_that_was_left_alive_grants_nothing(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P1: its creator ended before it could end the row; the first grant of any process is given back."""
        await stores[1].create(made("orphan"))
        await stores[1].create(made("known"))
        assert await stores[0].grant("known", 1, 1000)
        await stores[1].create(MARK)
        for _ in range(2):
            with pytest.raises(StoreRetired):
                await stores[0].grant("orphan", 5, 1000)
        assert (await row_of(stores[1], "orphan")).last_value == 0
        assert await stores[0].grant("known", 1, 1000)  # until the retirement ends it
        sent = len(emulator.requests)
        await stores[0].grant("known", 1, 1000)
        assert len(emulator.requests) == sent + 1

    async def test_a_grant_that_cannot_look_is_unknown(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P9: the ids of a grant after which the mark could not be read are burned, and counted as such."""
        await stores[1].create(made("orders"))
        emulator.inject(Fault("error", match="SELECT name", times=-1, status=403, code=4037))
        with pytest.raises(StoreUnavailable, match="whether the store is retired") as refused:
            await stores[0].grant("orders", 5, 1000)
        assert type(refused.value).__name__ == "StoreOutcomeUnknown"

    async def test_ids_that_cannot_go_back_are_unknown(self, emulator: CrateEmulator, stores: Stores) -> None:
        """P9: the ids of a grant on a retired store are burned where another write hinders their way back."""
        await stores[1].create(made("orphan"))
        await stores[1].create(MARK)
        emulator.inject(Fault("error", match="last_value - ", status=400, code=4000))
        with pytest.raises(StoreUnavailable, match="cannot be given back: this store was retired") as refused:
            await stores[0].grant("orphan", 5, 1000)
        assert type(refused.value).__name__ == "StoreOutcomeUnknown"
        assert (await row_of(stores[1], "orphan")).last_value == 5

    async def test_a_create_that_cannot_look_is_unknown(self, emulator: CrateEmulator, stores: Stores) -> None:
        """A create after which the mark could not be read was made, and is not reported as if it was not."""
        execute = emulator.statements.execute

        def execute_then_fail(statement: str, args: Many[Any]) -> dict[str, Any]:
            answer = execute(statement, args)
            if statement.startswith("INSERT INTO"):
                emulator.inject(Fault("error", match="SELECT name", status=400, code=4000))
            return answer

        with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreUnavailable) as refused:
            patch.setattr(emulator.statements, "execute", execute_then_fail)
            await stores[0].create(made("orders"))
        assert type(refused.value).__name__ == "StoreOutcomeUnknown"
        assert (await row_of(stores[1], "orders")).name == "orders"


def test_the_end_of_a_row_is_that_of_a_retirement() -> None:
    """P1: an export has a row that was ended so as one that moved."""
    ended = retired(Row("s", 5, Sequence(), 7), MARK)
    assert (ended.deleted, ended.generation, ended.by.startswith(RETIRED_BY)) == (True, 8, True)
    assert issubclass(StoreRetired, SequenceDeleted)  # a lane drops its lease
