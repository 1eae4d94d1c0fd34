"""Documents in one SQLite file beside the counters.

A statement is one transaction, so all of it is applied or none.
"""

import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from idalloc_server.domain.errors import StoreAnsweredError
from idalloc_server.store.sqlite.database import Database
from idalloc_server.store.sqlite.schema import DOCUMENTS_ID, create_own_tables
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import Busy, DuplicateKey, UnknownCollection, UnknownSchema
from idalloc_xproto.documents.protocol import PAGE, PAGE_TEXT, Change, Inserted, Rewritten
from idalloc_xproto.documents.selection import Chooser, Selection, chosen_keys
from idalloc_xproto.documents.side_thread import SideThread

_T = TypeVar("_T")

BUSY_TIMEOUT = 5.0  # seconds
MAX_CHANGED_DOCUMENTS = 1_000_000  # a statement keeps their keys in memory
_KEYS_A_READ = 1_000

_TABLES = (
    "schemas (name TEXT PRIMARY KEY)",
    "collections (id INTEGER PRIMARY KEY, schema TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (schema, name))",
    # Keys are BLOBs: SQLite compares them by bytes, as MySQL compares its VARBINARY(32).
    "documents (collection INTEGER, key BLOB, text TEXT NOT NULL, PRIMARY KEY (collection, key)) WITHOUT ROWID",
)


def documents_path(store: Path) -> Path:
    """Return the documents' file, beside the counters', such as ``idalloc-documents.db``."""
    return store.with_stem(f"{store.stem}-documents")


class SqliteDocuments:
    """Documents in one file; see ``Documents``.

    Args:
        path: The file; it and its folder are created if they are missing.
        busy_timeout: How long a transaction waits while another process writes, in seconds.
    """

    def __init__(self, path: Path, busy_timeout: float = BUSY_TIMEOUT) -> None:
        self._database = Database(path, busy_timeout, _create_tables)
        self._thread = SideThread("documents")  # chooses

    async def open(self) -> None:
        await self._database.open()

    async def close(self) -> None:
        self._thread.close()
        await self._database.close()

    async def create_schema(self, name: str) -> bool:
        return await self._write(
            lambda db: db.execute("INSERT OR IGNORE INTO schemas (name) VALUES (?)", (name,)).rowcount == 1
        )

    async def drop_schema(self, name: str) -> int | None:
        def work(db: sqlite3.Connection) -> int | None:
            if not db.execute("DELETE FROM schemas WHERE name = ?", (name,)).rowcount:
                return None
            db.execute(
                "DELETE FROM documents WHERE collection IN (SELECT id FROM collections WHERE schema = ?)", (name,)
            )
            return db.execute("DELETE FROM collections WHERE schema = ?", (name,)).rowcount

        return await self._write(work)

    async def list_schemas(self) -> list[str]:
        return await self._read(lambda db: [name for (name,) in db.execute("SELECT name FROM schemas ORDER BY name")])

    async def create_collection(self, schema: str, name: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            _check_schema(db, schema)
            insert = "INSERT OR IGNORE INTO collections (schema, name) VALUES (?, ?)"
            return db.execute(insert, (schema, name)).rowcount == 1

        return await self._write(work)

    async def drop_collection(self, schema: str, name: str) -> bool:
        def work(db: sqlite3.Connection) -> bool:
            try:
                collection = _collection(db, schema, name)
            except (UnknownSchema, UnknownCollection):
                return False
            db.execute("DELETE FROM documents WHERE collection = ?", (collection,))
            return db.execute("DELETE FROM collections WHERE id = ?", (collection,)).rowcount == 1

        return await self._write(work)

    async def list_collections(self, schema: str) -> list[str]:
        select = "SELECT name FROM collections WHERE schema = ? ORDER BY name"
        return await self._read(lambda db: [name for (name,) in db.execute(select, (schema,))])

    async def check(self, schema: str, name: str) -> None:
        await self._read(lambda db: _collection(db, schema, name))

    async def count(self, schema: str, name: str) -> int:
        def work(db: sqlite3.Connection) -> int:
            collection = _collection(db, schema, name)
            return int(db.execute("SELECT count(*) FROM documents WHERE collection = ?", (collection,)).fetchone()[0])

        return await self._read(work)

    async def insert(self, schema: str, name: str, documents: Sequence[Document], *, upsert: bool = False) -> Inserted:
        def work(db: sqlite3.Connection) -> Inserted:
            if upsert:
                return _upsert(db, _collection(db, schema, name), documents)
            if is_one:
                return _insert_one(db, schema, name, *documents)
            return _insert(db, _collection(db, schema, name), documents)

        is_one = len(documents) == 1 and not upsert
        with _busy():
            return await self._database.join(work, is_one_statement=is_one)

    async def page(
        self, schema: str, name: str, after: str | None, keys: Sequence[str] | None = None
    ) -> list[Document]:
        if keys is None:
            return await self._read(lambda db: _page(_documents_after(db, _collection(db, schema, name), after)))
        # Most keys may be missing: part by part, others have the file's thread between them.
        start = 0 if after is None else bisect_right(keys, after)
        while True:
            part = keys[start : start + _KEYS_A_READ]
            found = await self._read(partial(_page_by_key, schema, name, part))
            start += _KEYS_A_READ
            if found or start >= len(keys):
                return found

    async def rewrite(self, schema: str, name: str, selection: Selection, change: Change) -> Rewritten:
        # Chosen before the transaction, in which nobody else writes.
        keys = await chosen_keys(selection, partial(self.page, schema, name), self._thread, MAX_CHANGED_DOCUMENTS)
        if not keys:
            await self.check(schema, name)
            return Rewritten(0, 0)

        def work(db: sqlite3.Connection) -> Rewritten:
            collection = _collection(db, schema, name)
            documents = _by_key(db, collection, keys)
            if selection.limit is not None and sum(map(selection.matches, documents)) < len(keys):
                documents = _chosen(db, collection, selection)  # others may meet the condition in their place
            else:
                documents = _by_key(db, collection, keys)
            matched = changed = 0
            for document in documents:
                selection.budget.check()
                if selection.matches(document):  # another may have changed it meanwhile
                    matched += 1
                    changed += _rewrite(db, collection, document.key, change(document.text))
            return Rewritten(matched, changed)

        return await self._write(work)

    async def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        return await self._database.read(work)

    async def _write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with _busy():
            return await self._database.write(work)


@contextmanager
def _busy() -> Iterator[None]:
    """Raise ``Busy`` if another process has held the file for too long."""
    try:
        yield
    except StoreAnsweredError as error:
        if (error.code or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise Busy(str(error)) from error
        raise


def _create_tables(db: sqlite3.Connection, path: Path) -> None:
    create_own_tables(db, path, DOCUMENTS_ID, _TABLES, next_step="move it away")


def _check_schema(db: sqlite3.Connection, schema: str) -> None:
    if not db.execute("SELECT 1 FROM schemas WHERE name = ?", (schema,)).fetchone():
        raise UnknownSchema(schema)


def _collection(db: sqlite3.Connection, schema: str, name: str) -> int:
    found = db.execute("SELECT id FROM collections WHERE schema = ? AND name = ?", (schema, name)).fetchone()
    if found is None:
        _check_schema(db, schema)
        raise UnknownCollection(schema, name)
    return int(found[0])


def _page(found: Iterable[Document]) -> list[Document]:
    page: list[Document] = []
    length = 0
    for document in found:
        page.append(document)
        length += len(document.text)
        if len(page) == PAGE or length >= PAGE_TEXT:
            break
    return page


def _page_by_key(schema: str, name: str, keys: Sequence[str], db: sqlite3.Connection) -> list[Document]:
    return _page(_by_key(db, _collection(db, schema, name), keys))


def _documents_after(db: sqlite3.Connection, collection: int, after: str | None) -> Iterator[Document]:
    """Yield the documents after a key; SQLite reads a row when it is asked for."""
    select = "SELECT key, text FROM documents WHERE collection = ?"
    arguments: list[object] = [collection]
    if after is not None:
        select += " AND key > ?"
        arguments.append(after.encode(errors="surrogatepass"))
    for key, text in db.execute(f"{select} ORDER BY key", arguments):
        yield Document(key.decode(), text)


def _by_key(db: sqlite3.Connection, collection: int, keys: Sequence[str]) -> Iterator[Document]:
    """Yield the documents with these keys that exist, each as it is when it is asked for."""
    for key in keys:
        select = "SELECT text FROM documents WHERE collection = ? AND key = ?"
        found = db.execute(select, (collection, key.encode(errors="surrogatepass"))).fetchone()
        if found is not None:
            yield Document(key, found[0])


def _chosen(db: sqlite3.Connection, collection: int, selection: Selection) -> Iterator[Document]:
    """Yield the documents of a selection.

    Those of the next page are read after the yielded ones were changed.
    """
    chooser = Chooser(selection)
    keys = selection.keys
    after = None
    while not chooser.is_done:
        found = _documents_after(db, collection, after) if keys is None else _by_key(db, collection, keys)
        page = _page(found)
        if not page:
            break
        yield from chooser.choose(page)
        after = page[-1].key
        keys = None if keys is None else keys[bisect_right(keys, after) :]
    yield from chooser.sorted()


def _rewrite(db: sqlite3.Connection, collection: int, key: str, text: str | None) -> bool:
    """Change or delete a document; return whether it changed."""
    row = (collection, key.encode())
    if text is None:
        return db.execute("DELETE FROM documents WHERE collection = ? AND key = ?", row).rowcount == 1
    update = "UPDATE documents SET text = ?1 WHERE collection = ?2 AND key = ?3 AND text <> ?1"
    return db.execute(update, (text, *row)).rowcount == 1


def _insert_one(db: sqlite3.Connection, schema: str, name: str, document: Document) -> Inserted:
    """Insert a document by one statement: each lets another thread run, and waits for it."""
    insert = (
        "INSERT INTO documents (collection, key, text) SELECT id, ?, ? FROM collections WHERE schema = ? AND name = ?"
    )
    try:
        added = db.execute(insert, (document.key.encode(), document.text, schema, name)).rowcount
    except sqlite3.IntegrityError as error:
        raise DuplicateKey(document.key) from error
    if not added:
        _collection(db, schema, name)  # raises the error
    return Inserted(1, 0)


def _insert(db: sqlite3.Connection, collection: int, documents: Sequence[Document]) -> Inserted:
    before = db.total_changes
    rows = ((collection, key.encode(), text) for key, text in documents)
    try:
        db.executemany("INSERT INTO documents (collection, key, text) VALUES (?, ?, ?)", rows)
    except sqlite3.IntegrityError as error:
        raise DuplicateKey(documents[db.total_changes - before].key) from error
    return Inserted(len(documents), 0)


def _upsert(db: sqlite3.Connection, collection: int, documents: Sequence[Document]) -> Inserted:
    added = replaced = 0
    for key, text in documents:
        row = (collection, key.encode(), text)
        new = db.execute("INSERT OR IGNORE INTO documents (collection, key, text) VALUES (?, ?, ?)", row).rowcount
        added += new
        if not new:
            update = "UPDATE documents SET text = ?3 WHERE collection = ?1 AND key = ?2 AND text <> ?3"
            replaced += db.execute(update, row).rowcount
    return Inserted(added, replaced)
