"""The contract of every store: recorded allocations of requests with a request_id."""

import asyncio

import pytest

from idalloc_server.domain.sequences.sequence import MAX_ID
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation
from idalloc_server.domain.store.retention import RecordPosition, Retention
from tests.store.conftest import ALL
from tests.support.store_backends import Opener

pytestmark = pytest.mark.parametrize("opener", ALL, indirect=True)


def allocation(request_id: str, first_id: int = 1) -> RecordedAllocation:
    return RecordedAllocation(request_id, "orders", first_id, 10, -5, 3, "2026-11", 65535, "node 'a'", 1000)


class TestRecord:
    async def test_a_recorded_allocation_is_read_by_another_process(self, store: Store, opener: Opener) -> None:
        """P7: another process reads the recorded allocation, with values at the ends of 64 bits."""
        other = await opener.open()
        one, two = allocation("one"), RecordedAllocation("two", "日本", -MAX_ID, MAX_ID, 2**61, 2**40, "", 0, "")
        assert await store.record([one, two]) == {"one": one, "two": two}
        assert await other.recorded("one") == one
        assert await other.recorded("two") == two

    async def test_the_earlier_record_wins(self, store: Store, opener: Opener) -> None:
        """P7: a request_id keeps its first allocation, which later records of that id return."""
        other = await opener.open()
        await store.record([allocation("b", 1)])
        answer = await other.record([allocation("a", 2), allocation("b", 2), allocation("c", 2)])
        assert answer == {"a": allocation("a", 2), "b": allocation("b", 1), "c": allocation("c", 2)}

    async def test_one_call_records_200_allocations(self, store: Store) -> None:
        """P7: one call records up to 200 allocations and returns all of them."""
        many = [allocation(f"request {number}", number) for number in range(200)]
        assert await store.record(many) == {each.request_id: each for each in many}

    async def test_concurrent_records_of_one_id_agree(self, store: Store, opener: Opener) -> None:
        """P7: concurrent records of one request_id by two processes all get the same allocation."""
        other = await opener.open()
        answers = await asyncio.gather(*((store, other)[n % 2].record([allocation("a", n)]) for n in range(12)))
        assert {answer["a"] for answer in answers} == {await store.recorded("a")}

    async def test_an_unknown_request_id_has_no_allocation(self, store: Store) -> None:
        """P7: a request_id that was never recorded has no allocation."""
        assert await store.recorded("a") is None


def retention_at(position: RecordPosition | None, window: float = 1.0) -> Retention:
    """Return a retention with one position, seen `window` seconds ago."""
    assert position
    return Retention([(position, window)], window)


class TestForgetRecorded:
    async def test_only_older_records_are_removed(self, store: Store) -> None:
        """P7: a record that came after the seen position stays."""
        assert await store.newest_recorded() is None
        await store.record([allocation("old")])
        seen = retention_at(await store.newest_recorded())
        await store.record([allocation("young")])
        assert await store.forget_recorded(seen, 10) == 1
        assert await store.recorded("old") is None
        assert await store.recorded("young") == allocation("young")
        assert await store.forget_recorded(seen, 10) == 0

    async def test_the_order_ignores_a_clock_that_was_set_back(self, store: Store, opener: Opener) -> None:
        """P7: a later record has a later position, also after the store's clock was set back."""
        other = await opener.open()
        await store.record([allocation("first")])
        seen = retention_at(await other.newest_recorded())
        await opener.backend.set_back(86400)
        await other.record([allocation("second")])
        await store.record([allocation("third")])
        assert await store.forget_recorded(seen, 10) == 1
        assert await other.recorded("second") == allocation("second")
        newest = await other.newest_recorded()
        assert newest
        assert (newest.term, newest.number) > (seen.last.term, seen.last.number)
        await store.record([allocation("fourth")])
        assert await store.forget_recorded(retention_at(newest), 10) == 2

    async def test_each_record_has_its_own_window(self, store: Store) -> None:
        """P7: a record with a longer window stays."""
        await store.record([allocation("long")._replace(window_ms=2000), allocation("short")])
        seen = await store.newest_recorded()
        await store.record([allocation("young")])
        assert await store.forget_recorded(retention_at(seen), 10) == 1
        assert await store.recorded("long") == allocation("long")._replace(window_ms=2000)
        assert await store.recorded("short") is None
        # A store may write a record again to read it, which makes it newer.
        seen = await store.newest_recorded()
        await store.record([allocation("younger")])
        assert await store.forget_recorded(retention_at(seen, 2.0), 10) == 2

    async def test_a_record_without_a_window_has_the_default(self, store: Store) -> None:
        """P7: a row of an older version stays for the default window."""
        await store.record([allocation("old")._replace(window_ms=None)])
        seen = await store.newest_recorded()
        await store.record([allocation("young")])
        assert await store.forget_recorded(retention_at(seen, 3599.0), 10) == 0
        assert await store.forget_recorded(retention_at(seen, 3600.0), 10) == 1

    async def test_records_are_removed_in_batches(self, store: Store) -> None:
        """P7: one call examines at most ``limit`` records."""
        await store.record([allocation(f"{number}") for number in range(7)])
        seen = retention_at(await store.newest_recorded())
        await store.record([allocation("young")])
        found = [await store.forget_recorded(seen, 3) for _ in range(4)]
        assert found == [3, 3, 1, 0]

    async def test_records_are_counted(self, store: Store) -> None:
        """P7: the number of kept records is known."""
        await store.record([allocation(f"{number}") for number in range(7)])
        await store.newest_recorded()
        assert await store.count_recorded(100) == 7
