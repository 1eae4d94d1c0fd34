"""The contract of every store: claims of prefixes and start timestamps."""

import asyncio

import pytest

from idalloc_server.domain.store.protocol import Store
from tests.store.conftest import ALL
from tests.support.store_backends import Opener


class TestClaims:
    async def test_each_claim_is_higher_than_the_last(self, store: Store) -> None:
        """P6: a claim is the requested start timestamp, or one more than the last claim."""
        starts = [
            (await store.claim_start(7, at_least, "me", 60)).start_timestamp
            for at_least in (1000, 1000, 500, 1002, 1001, 2000, 0)
        ]
        assert starts == [1000, 1001, 1002, 1003, 1004, 2000, 2001]

    async def test_prefixes_are_independent(self, store: Store) -> None:
        """P6: each prefix has its own start timestamps."""
        for prefix in (0, 1, 65535):
            assert (await store.claim_start(prefix, 1000, "me", 60)).start_timestamp == 1000

    async def test_concurrent_claims_are_all_different(self, store: Store, opener: Opener) -> None:
        """P6: 50 concurrent claims of one prefix get different start timestamps, and one holder."""
        other = await opener.open()
        claims = await asyncio.gather(
            *((store, other)[n % 2].claim_start(3, 1000 - n % 3, f"holder {n}", 60) for n in range(50))
        )
        starts = [claim.start_timestamp for claim in claims]
        assert len(set(starts)) == 50
        assert min(starts) >= 998
        assert len({claim.holder for claim in claims}) == 1

    async def test_a_free_prefix_gets_the_claimant_as_holder(self, store: Store) -> None:
        """P6: the first claimant of a prefix becomes its holder."""
        assert (await store.claim_start(3, 1000, "me", 60)).holder == "me"
        assert (await store.claim_start(3, 1000, "me", 60)).holder == "me"

    async def test_a_recent_holder_stays(self, store: Store, opener: Opener) -> None:
        """P6: a claim against a recent holder gets a new start timestamp, but not the prefix."""
        first = await store.claim_start(3, 1000, "me", 60)
        await opener.backend.advance(0.05)
        second = await store.claim_start(3, 1000, "another", 60)
        assert (second.holder, second.seen_at, second.start_timestamp) == ("me", first.seen_at, 1001)

    async def test_a_stale_holder_is_replaced(self, store: Store, opener: Opener) -> None:
        """P6: a claimant replaces a holder that was not seen for ``stale_after`` seconds."""
        first = await store.claim_start(3, 1000, "me", 60)
        await opener.backend.advance(0.3)
        assert (await store.claim_start(3, 1000, "another", 10)).holder == "me"
        second = await store.claim_start(3, 1000, "another", 0.2)
        assert second.holder == "another"
        assert second.seen_at >= first.seen_at + 0.3
        assert (await store.claim_start(3, 1000, "me", 60)).holder == "another"

    async def test_keep_prefix_renews_the_holder(self, store: Store, opener: Opener) -> None:
        """P6: a holder that renews does not become stale."""
        first = await store.claim_start(3, 1000, "me", 60)
        await opener.backend.advance(1.0)
        await store.keep_prefix(3, "me", 60)
        second = await store.claim_start(3, 1000, "another", 0.9)
        assert second.holder == "me"
        assert second.seen_at >= first.seen_at + 1.0
        assert second.start_timestamp == 1001

    async def test_keep_prefix_takes_only_a_stale_prefix(self, store: Store, opener: Opener) -> None:
        """P6: keep_prefix replaces a stale holder, and no recent one."""
        await store.claim_start(3, 1000, "me", 60)
        await store.keep_prefix(3, "another", 60)
        assert (await store.claim_start(3, 1000, "third", 60)).holder == "me"
        await opener.backend.advance(0.1)
        await store.keep_prefix(3, "another", 0.05)
        assert (await store.claim_start(3, 1000, "third", 60)).holder == "another"

    async def test_keep_prefix_claims_nothing(self, store: Store) -> None:
        """P6: keep_prefix of an unclaimed prefix changes nothing."""
        await store.keep_prefix(3, "me", 60)
        claim = await store.claim_start(3, 1000, "another", 60)
        assert (claim.start_timestamp, claim.holder) == (1000, "another")

    async def test_a_released_prefix_keeps_its_start_timestamps(self, store: Store) -> None:
        """P6: a released prefix is free, and its start timestamps are never claimed again."""
        await store.claim_start(3, 1000, "me", 60)
        await store.release_prefix(3, "me")
        claim = await store.claim_start(3, 1000, "another", 60)
        assert (claim.start_timestamp, claim.holder) == (1001, "another")

    async def test_only_the_holder_releases_a_prefix(self, store: Store) -> None:
        """P6: a release by another process than the holder changes nothing."""
        await store.claim_start(3, 1000, "me", 60)
        await store.release_prefix(3, "another")
        await store.release_prefix(4, "another")
        assert (await store.claim_start(3, 1000, "another", 60)).holder == "me"


@pytest.mark.parametrize("opener", ALL, indirect=True)
class TestStartTimestamps:
    async def test_the_last_claim_of_each_prefix_is_returned(self, store: Store, opener: Opener) -> None:
        """P6: claimed_starts has the last start timestamp of every claimed prefix."""
        other = await opener.open()
        assert await store.claimed_starts() == {}
        await store.claim_start(3, 1000, "me", 60)
        await store.claim_start(3, 1000, "me", 60)
        await other.claim_start(65535, 7, "me", 60)
        await other.keep_prefix(4, "me", 60)
        await other.release_prefix(4, "me")
        assert await store.claimed_starts() == {3: 1001, 65535: 7}

    async def test_a_start_timestamp_is_raised_and_never_lowered(self, store: Store) -> None:
        """P6: raise_start never lowers a start timestamp, and later claims are higher."""
        await store.claim_start(3, 1000, "me", 60)
        for last_start, expected in ((2000, 2000), (1500, 2000), (2000, 2000)):
            await store.raise_start(3, last_start)
            assert await store.claimed_starts() == {3: expected}
        claim = await store.claim_start(3, 1000, "me", 60)
        assert (claim.start_timestamp, claim.holder) == (2001, "me")

    async def test_raising_an_unclaimed_prefix_leaves_it_free(self, store: Store) -> None:
        """P6: raising a prefix without a holder does not claim it."""
        await store.raise_start(3, 2000)
        assert await store.claimed_starts() == {3: 2000}
        claim = await store.claim_start(3, 1000, "me", 60)
        assert (claim.start_timestamp, claim.holder) == (2001, "me")
