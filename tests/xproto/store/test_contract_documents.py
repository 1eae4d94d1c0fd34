"""The contract of ``Documents``, on every store."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from idalloc_xproto.documents.criteria import ID, Call, Field, Value
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey, NotADocument, UnknownCollection, UnknownSchema
from idalloc_xproto.documents.json_text import dump, load
from idalloc_xproto.documents.protocol import PAGE_TEXT, Documents, Inserted, Rewritten
from idalloc_xproto.documents.selection import Selection
from idalloc_xproto.stores.urls import open_documents
from tests.support.store_backends import WITH_DOCUMENTS, Opener, SqlBackend

pytestmark = pytest.mark.parametrize("opener", WITH_DOCUMENTS, indirect=True)

A, B, C = (Document(key, f'{{"_id": "{key}"}}') for key in "abc")


@pytest.fixture
async def documents(opener: Opener) -> AsyncIterator[Documents]:
    documents = open_documents(opener.backend.url)
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    yield documents
    for schema in await documents.list_schemas():
        await documents.drop_schema(schema)
    await documents.close()
    assert isinstance(opener.backend, SqlBackend)
    if opener.backend.url.startswith("crate"):
        for table in ("document_schemas", "document_collections"):
            await opener.backend.sql(f"DROP TABLE {{}}{table}")


async def all_of(documents: Documents) -> list[Document]:
    found: list[Document] = []
    while page := await documents.page("s", "c", found[-1].key if found else None):
        found += page
    return found


def with_key(*keys: str) -> Selection:
    return Selection(Call("in", (ID, *map(Value, keys))))


class TestNames:
    async def test_schemas_and_collections_live_and_end(self, documents: Documents) -> None:
        """A name may be any text; a second creation and a second drop say so."""
        odd = "Ünï `c'\"; -- ."
        assert not await documents.create_schema("s")
        assert await documents.create_collection("s", odd)
        assert not await documents.create_collection("s", odd)
        assert await documents.list_collections("s") == ["c", odd]
        await documents.insert("s", odd, [A])
        assert await documents.count("s", "c") == 0
        assert await documents.drop_collection("s", odd)
        assert not await documents.drop_collection("s", odd)
        assert await documents.drop_schema("s") == 1
        assert await documents.drop_schema("s") is None
        assert await documents.list_schemas() == []

    async def test_what_does_not_exist_is_named(self, documents: Documents) -> None:
        """An unknown schema and an unknown collection are different errors."""
        with pytest.raises(UnknownSchema):
            await documents.insert("nope", "c", [A])
        with pytest.raises(UnknownSchema):
            await documents.create_collection("nope", "c")
        with pytest.raises(UnknownCollection):
            await documents.count("s", "nope")

    async def test_a_dropped_collection_comes_back_empty(self, documents: Documents) -> None:
        """A collection that is created again has no documents of the old one."""
        await documents.insert("s", "c", [A])
        await documents.drop_collection("s", "c")
        await documents.create_collection("s", "c")
        assert await documents.count("s", "c") == 0


class TestInsert:
    async def test_all_or_nothing(self, documents: Documents) -> None:
        """F7: a batch with a key that exists, or twice, leaves nothing; the error has the key."""
        await documents.insert("s", "c", [B])
        for batch, key in (([A, B, C], B.key), ([A, C, A], A.key)):
            with pytest.raises(DuplicateKey) as caught:
                await documents.insert("s", "c", batch)
            assert caught.value.key == key
            assert await all_of(documents) == [B]

    async def test_a_key_has_one_winner(self, documents: Documents, opener: Opener) -> None:
        """Of adds of two servers at once one wins each key, and the document is its own."""
        other = open_documents(opener.backend.url)
        await other.open()
        added = [Document(f"{number % 20:02}", f'{{"n": {number}}}') for number in range(100)]
        adds = [store.insert("s", "c", [each]) for each, store in zip(added, (documents, other) * 50, strict=True)]
        found = await asyncio.gather(*adds, return_exceptions=True)
        won = [document for document, outcome in zip(added, found, strict=True) if outcome == Inserted(1, 0)]
        assert sorted(won) == await all_of(documents)
        assert [document.key for document in sorted(won)] == [f"{number:02}" for number in range(20)]
        assert sum(isinstance(outcome, DuplicateKey) for outcome in found) == len(added) - len(won)
        await other.close()

    async def test_pages_are_ordered_by_bytes(self, documents: Documents) -> None:
        """NF2: keys are compared as bytes: case, trailing spaces and Unicode forms differ."""
        keys = ["", "A", "a", "a ", "\u00e9", "e\u0301", "ÿ", "𐀀", "�"]
        await documents.insert("s", "c", [Document(key, "{}") for key in keys])
        expected = sorted(keys, key=str.encode)
        assert [document.key for document in await all_of(documents)] == expected
        rest = await documents.page("s", "c", expected[3])
        assert [document.key for document in rest] == expected[4:]
        some = ["", "a ", "zz"]
        assert [document.key for document in await documents.page("s", "c", None, some)] == ["", "a "]
        assert [document.key for document in await documents.page("s", "c", "", some)] == ["a "]
        assert not await documents.page("s", "c", "a ", some)

    async def test_a_page_ends_at_its_length(self, documents: Documents) -> None:
        """A page ends with the document that reaches its length: large ones need no memory."""
        sizes = {"a": PAGE_TEXT - 4, "b": 10, "c": 10, "d": 2 * PAGE_TEXT, "e": 10}
        await documents.insert("s", "c", [Document(key, "é" * size) for key, size in sizes.items()])
        for keys in (None, sorted(sizes)):
            pages, after = [], None
            while page := await documents.page("s", "c", after, keys):
                pages.append("".join(document.key for document in page))
                after = page[-1].key
            assert pages == ["ab", "cd", "e"]

    async def test_missing_keys_do_not_end_a_read(self, documents: Documents) -> None:
        """A page of keys has documents if there are any after it, however many keys have none."""
        await documents.insert("s", "c", [Document("k0999", "{}")])
        keys = [f"k{number:04}" for number in range(1000)]
        assert [document.key for document in await documents.page("s", "c", None, keys)] == ["k0999"]
        assert not await documents.page("s", "c", "k0999", keys)

    async def test_many_documents(self, documents: Documents) -> None:
        """More documents than a page or a statement has are inserted, counted and changed."""
        many = [Document(f"{number:05}", "{}") for number in range(2100)]
        assert await documents.insert("s", "c", many) == Inserted(2100, 0)
        assert await documents.count("s", "c") == 2100
        with pytest.raises(DuplicateKey):
            await documents.insert("s", "c", [*(Document(f"x{each.key}", "{}") for each in many[:1500]), many[7]])
        assert await documents.count("s", "c") == 2100
        done = await documents.rewrite("s", "c", Selection(limit=2099), lambda _: None)
        assert done == Rewritten(2099, 2099)
        assert [document.key for document in await all_of(documents)] == ["02099"]

    async def test_upsert_counts(self, documents: Documents) -> None:
        """New, replaced and identical documents are counted apart; the last of equal keys stays."""
        await documents.insert("s", "c", [A, B])
        other = Document("b", '{"_id": "b", "n": 1}')
        twice = [Document("d", "{}"), Document("d", '{"n": 2}')]
        assert await documents.insert("s", "c", [A, other, C, *twice], upsert=True) == Inserted(2, 2)
        assert await all_of(documents) == [A, other, C, twice[1]]

    async def test_one_of_two_writers_wins(self, documents: Documents, opener: Opener) -> None:
        """F7: of nodes that insert the same keys at once one wins; the others leave nothing."""
        other = open_documents(opener.backend.url)
        await other.open()
        try:
            for number in range(5):
                key = f"k{number}"
                batches = [[Document(f"{who}{number}", "{}"), Document(key, f'{{"by": "{who}"}}')] for who in "xy"]
                results = await asyncio.gather(
                    *(store.insert("s", "c", batch) for store, batch in zip((documents, other), batches, strict=True)),
                    return_exceptions=True,
                )
                winners = [batch for batch, result in zip(batches, results, strict=True) if result == Inserted(2, 0)]
                assert len(winners) == 1
                assert sum(isinstance(result, DuplicateKey) for result in results) == 1
                keys = [document.key for batch in batches for document in batch]
                assert await documents.page("s", "c", None, sorted(set(keys))) == sorted(winners[0])
        finally:
            await other.close()


class TestRewrite:
    async def test_changes_and_matches_are_counted(self, documents: Documents) -> None:
        """A document whose text stays is matched and not changed; one that is not planned stays."""
        await documents.insert("s", "c", [A, B, C])

        texts = {A.text: A.text, B.text: '{"_id": "b", "n": 1}'}
        assert await documents.rewrite("s", "c", with_key("a", "b"), texts.__getitem__) == Rewritten(2, 1)
        assert await documents.rewrite("s", "c", with_key("zz"), texts.__getitem__) == Rewritten(0, 0)
        assert [document.text for document in await all_of(documents)] == [A.text, '{"_id": "b", "n": 1}', C.text]

    async def test_the_order_says_which_are_changed(self, documents: Documents) -> None:
        """With an order and a limit, the first ones of that order are changed, on any page."""
        many = [
            Document(f"{number:04}", dump({"_id": f"{number:04}", "n": number * 7 % 1000})) for number in range(1000)
        ]
        await documents.insert("s", "c", many)
        last = Selection(order=[(Field(("n",)), True)], limit=3)
        assert await documents.rewrite("s", "c", last, lambda _: None) == Rewritten(3, 3)
        gone = set(many) - set(await all_of(documents))
        assert sorted(str(load(each.text)["n"]) for each in gone) == ["997", "998", "999"]

    async def test_a_change_that_fails_changes_nothing(self, documents: Documents) -> None:
        """If the change of one document is refused, those on earlier pages stay as they were."""
        many = [Document(f"{number:04}", "{}") for number in range(500)] + [Document("z", '{"n": 1}')]
        await documents.insert("s", "c", many)

        def change(text: str) -> str:
            if text != "{}":
                raise NotADocument
            return '{"n": 2}'

        with pytest.raises(NotADocument):
            await documents.rewrite("s", "c", Selection(), change)
        assert await all_of(documents) == many

    async def test_concurrent_changes_are_not_lost(self, documents: Documents, opener: Opener) -> None:
        """Each of two nodes that count up the same document sees the other's change."""
        other = open_documents(opener.backend.url)
        await other.open()
        await documents.insert("s", "c", [Document("n", '{"n": 0, "_id": "n"}')])

        def count_up(text: str) -> str:
            document = load(text)
            return dump({**document, "n": int(str(document["n"])) + 1})

        try:
            for _ in range(5):
                up = [store.rewrite("s", "c", with_key("n"), count_up) for store in (documents, other)]
                await asyncio.gather(*up)
        finally:
            await other.close()
        assert await all_of(documents) == [Document("n", '{"n": 10, "_id": "n"}')]
