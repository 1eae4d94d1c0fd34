"""What every store promises of claims of prefixes, on each of them."""

import asyncio

from idalloc_server.domain.store import Store
from tests.support.store_backends import Opener


class TestClaims:
    async def test_the_first_is_what_was_asked_for_and_later_ones_are_higher(self, store: Store) -> None:
        starts = [
            (await store.claim_start(7, at_least, "me", 60)).start_timestamp
            for at_least in (1000, 1000, 500, 1002, 1001, 2000, 0)
        ]
        assert starts == [1000, 1001, 1002, 1003, 1004, 2000, 2001]

    async def test_prefixes_do_not_know_each_other(self, store: Store) -> None:
        for prefix in (0, 1, 65535):
            assert (await store.claim_start(prefix, 1000, "me", 60)).start_timestamp == 1000

    async def test_claims_in_the_same_second_by_many_are_all_different(self, store: Store, opener: Opener) -> None:
        other = await opener.open()
        claims = await asyncio.gather(
            *((store, other)[n % 2].claim_start(3, 1000 - n % 3, f"holder {n}", 60) for n in range(50))
        )
        starts = [claim.start_timestamp for claim in claims]
        assert len(set(starts)) == 50
        assert min(starts) >= 998
        assert len({claim.holder for claim in claims}) == 1

    async def test_a_free_prefix_becomes_the_claimants(self, store: Store) -> None:
        assert (await store.claim_start(3, 1000, "me", 60)).holder == "me"
        assert (await store.claim_start(3, 1000, "me", 60)).holder == "me"

    async def test_a_holder_seen_lately_stays_and_the_claim_counts_all_the_same(
        self, store: Store, opener: Opener
    ) -> None:
        first = await store.claim_start(3, 1000, "me", 60)
        await opener.backend.advance(0.05)
        second = await store.claim_start(3, 1000, "another", 60)
        assert (second.holder, second.seen_at, second.start_timestamp) == ("me", first.seen_at, 1001)

    async def test_a_holder_not_seen_for_long_is_followed_by_the_claimant(self, store: Store, opener: Opener) -> None:
        first = await store.claim_start(3, 1000, "me", 60)
        await opener.backend.advance(0.3)
        assert (await store.claim_start(3, 1000, "another", 10)).holder == "me"
        second = await store.claim_start(3, 1000, "another", 0.2)
        assert second.holder == "another"
        assert second.seen_at >= first.seen_at + 0.3
        assert (await store.claim_start(3, 1000, "me", 60)).holder == "another"

    async def test_a_holder_that_is_kept_does_not_grow_stale(self, store: Store, opener: Opener) -> None:
        first = await store.claim_start(3, 1000, "me", 60)
        await opener.backend.advance(1.0)
        await store.keep_prefix(3, "me", 60)
        second = await store.claim_start(3, 1000, "another", 0.9)
        assert second.holder == "me"
        assert second.seen_at >= first.seen_at + 1.0
        assert second.start_timestamp == 1001

    async def test_keeping_takes_a_stale_prefix_and_no_fresh_one(self, store: Store, opener: Opener) -> None:
        await store.claim_start(3, 1000, "me", 60)
        await store.keep_prefix(3, "another", 60)
        assert (await store.claim_start(3, 1000, "third", 60)).holder == "me"
        await opener.backend.advance(0.1)
        await store.keep_prefix(3, "another", 0.05)
        assert (await store.claim_start(3, 1000, "third", 60)).holder == "another"

    async def test_keeping_a_prefix_that_was_never_claimed_claims_nothing(self, store: Store) -> None:
        await store.keep_prefix(3, "me", 60)
        claim = await store.claim_start(3, 1000, "another", 60)
        assert (claim.start_timestamp, claim.holder) == (1000, "another")

    async def test_a_released_prefix_is_free_and_its_starts_stay_taken(self, store: Store) -> None:
        await store.claim_start(3, 1000, "me", 60)
        await store.release_prefix(3, "me")
        claim = await store.claim_start(3, 1000, "another", 60)
        assert (claim.start_timestamp, claim.holder) == (1001, "another")

    async def test_only_the_holder_releases(self, store: Store) -> None:
        await store.claim_start(3, 1000, "me", 60)
        await store.release_prefix(3, "another")
        await store.release_prefix(4, "another")
        assert (await store.claim_start(3, 1000, "another", 60)).holder == "me"
