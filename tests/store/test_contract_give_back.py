"""The contract of every store: unused tails that are given back."""

import asyncio

from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.protocol import Store
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, ids_of, new_row


class TestGiveBack:
    async def test_an_unused_tail_is_granted_again(self, store: Store) -> None:
        """P2: an unused tail that was given back is granted again."""
        await store.create(new_row("s", Sequence(start=100, step=10)))
        first = await grant(store, "s", 5)
        assert await store.give_back("s", 3, first.version)
        assert list(ids_of(await store.grant("s", 2, 1000))) == [120, 130]

    async def test_an_unused_descending_tail_is_granted_again(self, store: Store) -> None:
        """P2: the same for a negative step."""
        await store.create(new_row("s", Sequence(start=100, step=-1, max_value=100)))
        first = await grant(store, "s", 5)
        assert await store.give_back("s", 4, first.version)
        assert list(ids_of(await store.grant("s", 2, 1000))) == [99, 98]

    async def test_a_tail_is_given_back_only_once(self, store: Store, opener: Opener) -> None:
        """P1: of concurrent calls for one tail, only one moves the counter."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        answers = await asyncio.gather(*(store.give_back("s", 2, first.version) for _ in range(5)))
        assert sorted(answers) == [False, False, False, False, True]
        found = await opener.row("s")
        assert found is not None
        assert found["last_value"] == 8

    async def test_a_tail_stays_burned_after_another_grant(self, store: Store, opener: Opener) -> None:
        """P1: a tail cannot be given back after another process was granted ids."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        await (await opener.open()).grant("s", 1, 1000)
        assert not await store.give_back("s", 5, first.version)
        assert list(ids_of(await store.grant("s", 1, 1000))) == [12]

    async def test_a_tail_stays_burned_after_another_tail_was_given_back(self, store: Store, opener: Opener) -> None:
        """P2: the counter never goes below a value that another process remembers."""
        other = await opener.open()
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        second = await grant(other, "s", 5)
        assert await other.give_back("s", 5, second.version)
        assert not await store.give_back("s", 5, first.version)
        assert list(ids_of(await other.grant("s", 1, 1000))) == [11]

    async def test_a_tail_stays_burned_after_another_renewal(self, store: Store, opener: Opener) -> None:
        """P2: the counter never goes below a value that a renewal of another process returned."""
        other = await opener.open()
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        assert (await grant(other, "s", 0)).last_value == 10
        assert not await store.give_back("s", 5, first.version)
        assert (await grant(other, "s", 0)).last_value == 10

    async def test_a_renewal_changes_the_version(self, store: Store) -> None:
        """P2: after a renewal only the version that it returned gives the tail back."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        renewed = await grant(store, "s", 0)
        assert renewed.version != first.version
        assert not await store.give_back("s", 5, first.version)
        assert await store.give_back("s", 5, renewed.version)
        assert list(ids_of(await store.grant("s", 1, 1000))) == [6]

    async def test_a_tail_stays_burned_after_a_recipe_client(self, store: Store, opener: Opener) -> None:
        """P1: a tail cannot be given back after a recipe client took a value."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        assert await opener.backend.take_as_recipe_client("s") == 11
        assert not await store.give_back("s", 5, first.version)

    async def test_a_tail_stays_burned_if_the_row_was_replaced(self, store: Store, opener: Opener) -> None:
        """P1: a row that was deleted and inserted again has another version."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        await opener.put("s", last_value=10, generation=1)
        assert not await store.give_back("s", 5, first.version)

    async def test_a_tail_stays_burned_in_another_generation(self, store: Store, opener: Opener) -> None:
        """P5: the version contains the generation, which a restored store does not reach again."""
        await store.create(new_row("s"))
        first = await grant(store, "s", 10)
        count, other, generation = first.version
        assert generation == first.generation
        assert not await store.give_back("s", 5, (count, other, generation - 1))
        found = await opener.row("s")
        assert found is not None
        assert found["last_value"] == 10

    async def test_a_tail_stays_burned_if_the_row_is_missing(self, store: Store) -> None:
        """P2: giving back to a missing row changes nothing."""
        assert not await store.give_back("missing", 5, (0, 1, 1))

    async def test_give_backs_racing_with_grants_repeat_no_used_id(self, store: Store, opener: Opener) -> None:
        """P1: no used id is granted again while four clients grant and give back at once."""
        other = await opener.open()
        await store.create(new_row("s"))
        used: list[int] = []

        async def use_half(of: Store) -> None:
            for _ in range(10):
                granted = await grant(of, "s", 10)
                ids = list(ids_of(granted))
                await of.give_back("s", 5, granted.version)
                used.extend(ids[:5])

        await asyncio.gather(*(use_half(of) for of in (store, other, store, other)))
        assert len(set(used)) == len(used) == 200
