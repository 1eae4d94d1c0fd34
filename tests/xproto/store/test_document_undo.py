"""An add that undoes itself on CrateDB deletes its rows, and none that others changed since."""

from collections.abc import Awaitable, Callable

import pytest

from idalloc_server.domain.errors import StoreAnsweredError
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey
from idalloc_xproto.documents.protocol import Documents, Inserted, Rewritten
from idalloc_xproto.stores import cratedb as crate_documents
from tests.support.cratedb.emulator import CrateEmulator
from tests.xproto.store.test_contract_documents import with_key
from tests.xproto.store.test_partly_applied import crate, documents, passes, refused

__all__ = ["crate", "documents"]

WRITE, UNDO = "UNNEST", "DELETE"  # in the statements of an add
MANY = [Document(f"{number:04}", f'{{"_id": "{number:04}"}}') for number in range(1001)]  # two statements
FEW = MANY[:3]
FIRST = MANY[0]
OTHER = Document(FIRST.key, '{"_id": "0000", "n": 1}')

Meanwhile = Callable[[CrateEmulator, Documents], Awaitable[object]]


async def first(documents: Documents) -> list[Document]:
    return await documents.page("shop", "orders", None, [FIRST.key])


async def modify(_: CrateEmulator, documents: Documents) -> None:
    done = await documents.rewrite("shop", "orders", with_key(FIRST.key), lambda _: OTHER.text)
    assert done == Rewritten(1, 1)


async def modify_to_the_same(_: CrateEmulator, documents: Documents) -> None:
    assert await documents.rewrite("shop", "orders", with_key(FIRST.key), lambda text: text) == Rewritten(1, 0)


async def upsert(_: CrateEmulator, documents: Documents) -> None:
    assert await documents.insert("shop", "orders", [OTHER], upsert=True) == Inserted(0, 1)


async def upsert_the_same(_: CrateEmulator, documents: Documents) -> None:
    assert await documents.insert("shop", "orders", [FIRST], upsert=True) == Inserted(0, 0)


async def replace_by_sql(crate: CrateEmulator, _: Documents) -> None:
    """As earlier servers replace a document, which leave the batch."""
    [table] = [key for key, name in collections(crate) if name == "orders"]
    update = f"UPDATE idalloc.documents_{table} SET doc = ? WHERE doc_id = ?"
    assert crate.statements.execute(update, [OTHER.text, OTHER.key])["rowcount"] == 1


async def remove(_: CrateEmulator, documents: Documents) -> None:
    assert await documents.rewrite("shop", "orders", with_key(FIRST.key), lambda _: None) == Rewritten(1, 1)


async def remove_and_add(crate: CrateEmulator, documents: Documents) -> None:
    await remove(crate, documents)
    await documents.insert("shop", "orders", [FIRST])


async def add_in_vain(_: CrateEmulator, documents: Documents) -> None:
    """Give the row a new version, as each refused insert of its key does."""
    with pytest.raises(DuplicateKey):
        await documents.insert("shop", "orders", [FIRST])


def collections(crate: CrateEmulator) -> list[list[str]]:
    crate.statements.execute("REFRESH TABLE idalloc.document_collections", [])
    names = "SELECT collection_key, collection_name FROM idalloc.document_collections"
    rows: list[list[str]] = crate.statements.execute(names, [])["rows"]
    return rows


async def lose(crate: CrateEmulator, documents: Documents, batch: list[Document], *undoing: Meanwhile) -> None:
    """Add a batch whose last document another client adds after the look-up; others change it while
    it is undone.
    """
    for _ in range(0, len(batch) - 1000, 1000):
        crate.meanwhile.append((WRITE, lambda: documents.check("shop", "orders")))
    crate.meanwhile.append((WRITE, lambda: documents.insert("shop", "orders", batch[-1:])))
    crate.meanwhile += [(UNDO, lambda each=each: each(crate, documents)) for each in undoing]  # type: ignore[misc]
    with pytest.raises(DuplicateKey):
        await documents.insert("shop", "orders", batch)
    assert crate.meanwhile == []
    assert await documents.count("shop", "orders") == 1 + len(await first(documents))


CHANGES = pytest.mark.parametrize(
    ("change", "acknowledged"),
    [(modify, OTHER), (modify_to_the_same, FIRST), (upsert, OTHER), (upsert_the_same, FIRST)],
)


@CHANGES
@pytest.mark.parametrize("batch", [FEW, MANY], ids=["few", "many"])
async def test_a_lost_race_keeps_what_others_changed(
    crate: CrateEmulator, documents: Documents, batch: list[Document], change: Meanwhile, acknowledged: Document
) -> None:
    """A document with an acknowledged change, even to equal text, stays if the add loses a race."""
    await lose(crate, documents, batch, change)
    assert await first(documents) == [acknowledged]


@CHANGES
async def test_a_failure_keeps_what_others_changed(
    crate: CrateEmulator,
    documents: Documents,
    change: Meanwhile,
    acknowledged: Document,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A document whose change was acknowledged stays if the add fails after a part."""
    monkeypatch.setattr(crate_documents, "_ROWS_AN_INSERT", 2)
    crate.inject(passes(WRITE), refused(WRITE))
    crate.meanwhile.append((UNDO, lambda: change(crate, documents)))
    with pytest.raises(StoreAnsweredError):
        await documents.insert("shop", "orders", FEW)
    assert crate.meanwhile == []
    assert await first(documents) == [acknowledged]
    assert await documents.count("shop", "orders") == 1


@pytest.mark.parametrize(
    ("undoing", "left"),
    [
        ([add_in_vain], []),
        ([add_in_vain, add_in_vain], []),
        ([add_in_vain, modify_to_the_same], [FIRST]),
        ([add_in_vain, upsert], [OTHER]),
        ([remove], []),
        ([remove_and_add], [FIRST]),
        ([replace_by_sql], [OTHER]),
    ],
)
async def test_an_undo_deletes_its_own_unchanged_rows(
    crate: CrateEmulator, documents: Documents, undoing: list[Meanwhile], left: list[Document]
) -> None:
    """A refused insert of a key does not keep its row; a change during the undo does."""
    await lose(crate, documents, FEW, *undoing)
    assert await first(documents) == left
