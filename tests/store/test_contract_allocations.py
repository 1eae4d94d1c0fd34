"""What every store promises of answers that are written down, and of start timestamps that are moved."""

import asyncio

import pytest

from idalloc_server.domain.records import RecordedAllocation
from idalloc_server.domain.retention import RecordPosition, Retention
from idalloc_server.domain.sequences.model import MAX_ID
from idalloc_server.domain.store import Store
from tests.store.conftest import ALL
from tests.support.store_backends import Opener

pytestmark = pytest.mark.parametrize("opener", ALL, indirect=True)


def allocation(request_id: str, first_id: int = 1) -> RecordedAllocation:
    return RecordedAllocation(request_id, "orders", first_id, 10, -5, 3, "2026-11", 65535, "node 'a'", 1000)


class TestRecord:
    async def test_what_is_written_down_stands(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        one, two = allocation("one"), RecordedAllocation("two", "日本", -MAX_ID, MAX_ID, 2**61, 2**40, "", 0, "")
        assert await store.record([one, two]) == {"one": one, "two": two}
        assert await other.recorded("one") == one
        assert await other.recorded("two") == two

    async def test_the_earlier_one_stands(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        await store.record([allocation("b", 1)])
        answer = await other.record([allocation("a", 2), allocation("b", 2), allocation("c", 2)])
        assert answer == {"a": allocation("a", 2), "b": allocation("b", 1), "c": allocation("c", 2)}

    async def test_two_hundred_at_once(self, store: Store) -> None:
        many = [allocation(f"request {number}", number) for number in range(200)]
        assert await store.record(many) == {each.request_id: each for each in many}

    async def test_of_many_at_once_one_stands_for_all(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        answers = await asyncio.gather(*((store, other)[n % 2].record([allocation("a", n)]) for n in range(12)))
        assert {answer["a"] for answer in answers} == {await store.recorded("a")}

    async def test_there_is_none_that_was_not_written_down(self, store: Store) -> None:
        assert await store.recorded("a") is None


def kept(store_point: RecordPosition | None, window: float = 1.0) -> Retention:
    """What may be removed where that point was seen long enough ago for this window, and no longer."""
    assert store_point
    return Retention([(store_point, window)], window)


class TestForgetting:
    async def test_the_old_ones_go_and_the_young_ones_stay(self, store: Store) -> None:
        """P7: what was recorded after the point that was seen stays."""
        assert await store.newest_recorded() is None
        await store.record([allocation("old")])
        seen = kept(await store.newest_recorded())
        await store.record([allocation("young")])
        assert await store.forget_recorded(seen, 10) == 1
        assert await store.recorded("old") is None
        assert await store.recorded("young") == allocation("young")
        assert await store.forget_recorded(seen, 10) == 0

    async def test_a_later_one_is_later_whatever_the_clock_says(self, store: Store, opener: Opener) -> None:
        """P7: the order of records does not follow a clock that is set back."""
        other = await opener.open()
        await store.record([allocation("first")])
        seen = kept(await other.newest_recorded())
        await opener.backend.set_back(86400)
        await other.record([allocation("second")])
        await store.record([allocation("third")])
        assert await store.forget_recorded(seen, 10) == 1
        assert await other.recorded("second") == allocation("second")
        newest = await other.newest_recorded()
        assert newest
        assert (newest.term, newest.number) > (seen.last.term, seen.last.number)
        await store.record([allocation("fourth")])
        assert await store.forget_recorded(kept(newest), 10) == 2

    async def test_each_has_its_own_window(self, store: Store) -> None:
        """P7: an answer with a longer window stays."""
        await store.record([allocation("long")._replace(window_ms=2000), allocation("short")])
        seen = await store.newest_recorded()
        await store.record([allocation("young")])
        assert await store.forget_recorded(kept(seen), 10) == 1
        assert await store.recorded("long") == allocation("long")._replace(window_ms=2000)
        assert await store.recorded("short") is None
        assert await store.forget_recorded(kept(seen, 2.0), 10) == 1

    async def test_one_without_a_window_has_the_longest(self, store: Store) -> None:
        """P7: a row of an older version stays for the default window."""
        await store.record([allocation("old")._replace(window_ms=None)])
        seen = await store.newest_recorded()
        await store.record([allocation("young")])
        assert await store.forget_recorded(kept(seen, 3599.0), 10) == 0
        assert await store.forget_recorded(kept(seen, 3600.0), 10) == 1

    async def test_they_go_in_batches(self, store: Store) -> None:
        """P7: one call looks at so many at most."""
        await store.record([allocation(f"{number}") for number in range(7)])
        seen = kept(await store.newest_recorded())
        await store.record([allocation("young")])
        found = [await store.forget_recorded(seen, 3) for _ in range(4)]
        assert found == [3, 3, 1, 0]

    async def test_they_are_counted(self, store: Store) -> None:
        """P7: how many answers are kept can be known."""
        await store.record([allocation(f"{number}") for number in range(7)])
        await store.newest_recorded()
        assert await store.count_recorded(100) == 7


class TestStarts:
    async def test_the_last_claim_of_each_prefix_is_told(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        assert await store.claimed_starts() == {}
        await store.claim_start(3, 1000, "me", 60)
        await store.claim_start(3, 1000, "me", 60)
        await other.claim_start(65535, 7, "me", 60)
        await other.keep_prefix(4, "me", 60)
        await other.release_prefix(4, "me")
        assert await store.claimed_starts() == {3: 1001, 65535: 7}

    async def test_one_is_raised_and_never_lowered(self, store: Store) -> None:
        await store.claim_start(3, 1000, "me", 60)
        for last_start, standing in ((2000, 2000), (1500, 2000), (2000, 2000)):
            await store.raise_start(3, last_start)
            assert await store.claimed_starts() == {3: standing}
        claim = await store.claim_start(3, 1000, "me", 60)
        assert (claim.start_timestamp, claim.holder) == (2001, "me")

    async def test_a_prefix_that_nobody_claimed_is_raised_and_stays_free(self, store: Store) -> None:
        await store.raise_start(3, 2000)
        assert await store.claimed_starts() == {3: 2000}
        claim = await store.claim_start(3, 1000, "me", 60)
        assert (claim.start_timestamp, claim.holder) == (2001, "me")
