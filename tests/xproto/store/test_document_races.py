"""Adds that lose a race for a key on CrateDB, while other clients change documents of theirs."""

import asyncio

import pytest

from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.stores import cratedb as crate_documents
from idalloc_xproto.stores.urls import open_documents
from tests.store.conftest import CRATEDB
from tests.support.store_backends import Opener
from tests.xproto.store.test_contract_documents import documents, with_key

__all__ = ["documents"]

pytestmark = pytest.mark.parametrize("opener", CRATEDB, indirect=True)

ROUNDS = 50
CHANGED = 4
STATEMENTS = 12  # of an add, so that others have time to change the documents of the first ones
ROWS_A_STATEMENT = 2


async def change(store: Documents, batch: list[Document]) -> list[Document]:
    """Change the first documents of an add, each in another way, and insert its last one before it
    does.

    Returns:
        The acknowledged documents.
    """

    def other(document: Document) -> Document:
        return Document(document.key, document.text.replace("0}", "1}"))

    kept, repeated = batch[1], batch[3]
    modified, replaced, inserted = other(batch[0]), other(batch[2]), other(batch[-1])
    [won], of_modified, of_kept, *_ = await asyncio.gather(
        asyncio.gather(store.insert("s", "c", [inserted]), return_exceptions=True),
        store.rewrite("s", "c", with_key(modified.key), lambda _: modified.text),
        store.rewrite("s", "c", with_key(kept.key), lambda text: text),
        store.insert("s", "c", [replaced], upsert=True),
        store.insert("s", "c", [repeated], upsert=True),
    )
    acknowledged = [replaced, repeated]
    acknowledged += [modified] * of_modified.matched + [kept] * of_kept.matched
    return acknowledged + ([] if isinstance(won, DuplicateKey) else [inserted])


async def test_a_lost_add_deletes_no_changed_document(
    documents: Documents, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 50 adds that lose, none deletes a document that others changed, or leaves its own."""
    monkeypatch.setattr(crate_documents, "_ROWS_AN_INSERT", ROWS_A_STATEMENT)
    other = open_documents(opener.backend.url)
    await other.open()
    lost = number = 0
    missing: list[Document] = []
    left: list[Document] = []
    try:
        while lost < ROUNDS:
            number += 1
            assert number < 10 * ROUNDS, f"only {lost} adds lost"
            keys = [f"{number:03}-{each:02}" for each in range(STATEMENTS * ROWS_A_STATEMENT)]
            batch = [Document(key, f'{{"_id": "{key}", "n": 0}}') for key in keys]
            adding = asyncio.create_task(documents.insert("s", "c", batch))
            while not adding.done() and not await other.page("s", "c", None, keys[CHANGED - 1 : CHANGED]):
                pass
            acknowledged = await change(other, batch)
            [added] = await asyncio.gather(adding, return_exceptions=True)
            stored = await other.page("s", "c", None, keys)
            missing += set(acknowledged) - set(stored)
            if isinstance(added, DuplicateKey):
                lost += 1
                left += set(stored) - set(acknowledged)
            else:
                assert len(stored) == len(batch)
    finally:
        await other.close()
    assert (missing, left) == ([], []), f"{len(missing)} acknowledged documents are missing in {number} adds"
