"""The contract of every store: opening, adopting the table of CrateDB's guide, closing."""

import asyncio

import pytest

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation
from tests.support.fake_store import FakeClock
from tests.support.store_backends import COLUMNS, Opener
from tests.support.store_rows import grant, ids_of, new_row


class TestOpen:
    async def test_counters_and_claims_survive_a_restart(self, opener: Opener) -> None:
        """P1, P6: the next process continues after the granted ids and claimed start timestamp."""
        first = await opener.open()
        await first.create(new_row("s"))
        await first.grant("s", 10, 1000)
        await first.claim_start(3, 1000, "me", 60)
        await first.close()
        second = await opener.open()
        assert list(ids_of(await second.grant("s", 1, 1000))) == [11]
        assert (await second.claim_start(3, 1000, "me", 60)).start_timestamp == 1001

    async def test_concurrent_opens_succeed(self, opener: Opener) -> None:
        """P1: eight processes that open an empty store at once share one counter."""
        stores = [opener.new() for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.create(new_row("s")) for store in stores))
        grants = await asyncio.gather(*(store.grant("s", 1, 1000) for store in stores))
        assert sorted(each for granted in grants for each in ids_of(granted)) == list(range(1, 9))

    async def test_stores_on_one_server_share_nothing(self, opener: Opener, clock: FakeClock) -> None:
        """P1, P6, P7: one name, prefix or request id in two stores on one server is two of them."""
        neighbor = Opener(opener.backend.beside(), clock)
        stores = [await opener.open(), await neighbor.open()]
        for each in stores:
            await each.create(new_row("s"))
        assert [list(ids_of(await each.grant("s", 3, 1000))) for each in stores] == [[1, 2, 3], [1, 2, 3]]
        await grant(stores[0], "s", 10)
        assert (await grant(stores[1], "s", 0)).last_value == 3
        assert [(await each.claim_start(3, 1000, "me", 60)).start_timestamp for each in stores] == [1000, 1000]
        answers = [RecordedAllocation("r", "s", first_id, 2, 1, 1, "", 0, "node") for first_id in (4, 40)]
        for each, answer in zip(stores, answers, strict=True):
            await each.record([answer])
        assert [await each.recorded("r") for each in stores] == answers
        await neighbor.close()

    async def test_a_two_column_table_is_adopted(self, opener: Opener) -> None:
        """P1: the table of CrateDB's guide is adopted, and its counters continue."""
        await opener.backend.make_guide_table()
        await opener.put("orders", last_value=41)
        store = await opener.open()
        assert list(ids_of(await store.grant("orders", 2, 1000))) == [42, 43]
        await store.create(new_row("orders"))
        await store.create(new_row("invoices", Sequence(start=100)))
        assert list(ids_of(await store.grant("invoices", 1, 1000))) == [100]
        assert await opener.row("orders") == dict(zip(COLUMNS, (43, None, None, None, None, 1000), strict=True))

    async def test_recipe_clients_work_during_adoption(self, opener: Opener) -> None:
        """P1: recipe clients and four processes that adopt the table at once never share an id."""
        await opener.backend.make_guide_table()
        await opener.put("orders", last_value=0)
        taken: list[int] = []

        async def old() -> None:
            taken.extend([await opener.backend.take_as_recipe_client("orders") for _ in range(15)])

        async def new(store: Store) -> None:
            await store.open()
            for _ in range(15):
                granted = await grant(store, "orders", 4)
                ids = list(ids_of(granted))
                if await store.give_back("orders", 1, granted.version):
                    ids.pop()
                taken.extend(ids)

        stores = [opener.new() for _ in range(4)]
        await asyncio.gather(old(), old(), *(new(store) for store in stores))
        assert len(taken) == len(set(taken))
        assert len(taken) >= 30 + 4 * 15 * 3

    async def test_a_closed_store_refuses_calls(self, store: Store) -> None:
        """Closing twice is allowed; later calls raise StoreUnavailable."""
        await store.close()
        await store.close()
        with pytest.raises(StoreUnavailable):
            await store.grant("s", 1, 1000)

    async def test_now_is_the_clock_of_the_store(self, store: Store, opener: Opener) -> None:
        """P6: the store's clock agrees with the time of a claim."""
        seen_at = (await store.claim_start(3, 1000, "me", 60)).seen_at
        now = await store.now()
        assert now is None or 0 <= now - seen_at < 30
