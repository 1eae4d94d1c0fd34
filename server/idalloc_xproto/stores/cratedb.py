"""Documents in a CrateDB cluster, each collection in its own table, whose name is a digest.

CrateDB has no transactions. An insert marks its rows with an id of its batch. If a key was there
first, it deletes the rows of its batch; a process that ends before leaves them. Each acknowledged
change of a document clears the mark, also one that leaves the text, so that the row is not deleted.
While a request of a collection is under way, adds of one document wait, and share the next one.
A change of many documents is tried on all of them first, and then goes document by document.
"""

import asyncio

# ruff: noqa: S608 - the names of the tables are digests, and the schema is checked
import hashlib
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from itertools import accumulate, count
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreConnectionLost,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from idalloc_server.domain.store.store_calls import Batches
from idalloc_server.store.cratedb.http import CrateHttp, Row, may_answer_soon
from idalloc_server.store.cratedb.schema import KEY_COLUMNS, set_up_all
from idalloc_server.store.cratedb.tables import Table
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DuplicateKey, UnknownCollection, UnknownSchema, WriteConflict
from idalloc_xproto.documents.protocol import PAGE, PAGE_TEXT, Change, Inserted, Rewritten
from idalloc_xproto.documents.selection import Selection, chosen_keys
from idalloc_xproto.documents.side_thread import LEAST_STEPS, SideThread

_T = TypeVar("_T")
_P = ParamSpec("_P")

# Each collection has a table of its own besides, which ``CrateDocuments`` creates.
DOCUMENT_COLLECTIONS = Table(
    "document_collections", {"collection_key": "TEXT", "schema_name": "TEXT", "collection_name": "TEXT"}
)
DOCUMENT_SCHEMAS = Table("document_schemas", {"name": "TEXT"})
DOCUMENT_TABLES = (DOCUMENT_COLLECTIONS, DOCUMENT_SCHEMAS)

_ROWS_AN_INSERT = 1000
# The most adds of one document that share a request, and the most characters of such a document.
# A larger one gains nothing, and would keep the others waiting.
MAX_JOINED_ADDS = 64
MAX_JOINED_TEXT = 64 * 1024
MAX_CHANGED_DOCUMENTS = 100_000  # a statement keeps their keys in memory
_ATTEMPTS = 5
# How long an insert may be sent again. A row that is inserted again within 60 s of its deletion
# (index.gc_deletes) has a later _version.
_REPEAT_SECONDS = 30.0

_UNINDEXED = "TEXT INDEX OFF STORAGE WITH (columnstore = false)"  # indexed, a text has at most 32,766 bytes
_WITH = (
    "CLUSTERED INTO 1 SHARDS WITH (number_of_replicas = '0-2', \"translog.durability\" = 'REQUEST',"
    " column_policy = 'strict')"
)
# Before the next attempt. An election, or the promotion of a copy, takes about a second.
PAUSE_SECONDS = 0.2

# When the calls of this task must have ended, by the loop's clock.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@dataclass(eq=False)
class _DocumentHttp:
    """Sends statements by ``CrateHttp``, again while a live host answers that it applied none."""

    http: CrateHttp
    timeout: float  # of a call with its attempts, in seconds

    def late(self, kind: type[StoreFailure]) -> StoreFailure:
        """Return the failure of a call that had no answer within the timeout."""
        return kind(f"CrateDB did not answer within {self.timeout:g} s; repair the cluster")

    async def read(self, statement: str, *arguments: object) -> list[Row]:
        return await self._send(partial(self.http.read, statement, *arguments), StoreUnreachable)

    async def write(self, statement: str, *arguments: object) -> list[Row]:
        return await self._send(partial(self.http.write, statement, *arguments), StoreOutcomeUnknown)

    async def write_each(self, statement: str, arguments: Sequence[Sequence[object]]) -> int:
        return await self._send(partial(self.http.write_each, statement, arguments), StoreOutcomeUnknown)

    async def _send(self, call: Callable[[], Awaitable[_T]], late: type[StoreFailure]) -> _T:
        """Call until a host answers; raise ``late`` if none has at the deadline."""
        loop = asyncio.get_running_loop()
        deadline = _deadline.get() or loop.time() + self.timeout
        if loop.time() >= deadline:
            raise self.late(StoreUnreachable)
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await call()
            except TimeoutError:
                raise self.late(late) from None
            except StoreAnsweredError as error:
                if not may_answer_soon(error) or loop.time() + PAUSE_SECONDS >= deadline:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)


def _within_timeout(
    method: Callable[Concatenate["CrateDocuments", _P], Awaitable[_T]],
) -> Callable[Concatenate["CrateDocuments", _P], Coroutine[Any, Any, _T]]:
    """Give all calls of a method together the timeout of one."""

    @wraps(method)
    async def run(self: "CrateDocuments", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        token = _deadline.set(asyncio.get_running_loop().time() + self.timeout)
        try:
            return await method(self, *args, **kwargs)
        finally:
            _deadline.reset(token)

    return run


class _Row(NamedTuple):
    """A stored document, its version, and the insert that wrote it; None once it was changed."""

    document: Document
    seq_no: int
    term: int
    batch: str | None


class _Stored(NamedTuple):
    """The outcome of an insert; the keys that are in neither field were there first."""

    rows: list[tuple[str, int, int]]  # the keys and versions of its own rows
    unknown: dict[str, StoreOutcomeUnknown]  # the errors of rows that may be stored, by key


@dataclass(eq=False, slots=True)
class _Add:
    """An add of one document, which shares a request with those that wait beside it."""

    document: Document
    is_sent: bool = False
    has_ended: bool = False  # for its caller


@dataclass(eq=False)
class CrateDocuments:
    """Documents in a CrateDB cluster; see ``Documents``."""

    transport: CrateHttp
    schema: str  # of the tables; letters, digits, ``_`` and ``-``
    timeout: float  # of a statement, and of each document that a statement changes, in seconds

    def __post_init__(self) -> None:
        self._http = _DocumentHttp(self.transport, self.timeout)
        self._thread = SideThread("documents")  # chooses
        # The adds that wait, by schema and collection; an entry ends with its last add.
        self._adds = WeakValueDictionary[tuple[str, str], Batches[_Add, Inserted]]()
        self._schemas = DOCUMENT_SCHEMAS.reference(self.schema)
        self._collections = DOCUMENT_COLLECTIONS.reference(self.schema)

    async def open(self) -> None:
        await set_up_all(self.transport, self.schema, DOCUMENT_TABLES)

    async def close(self) -> None:
        self._thread.close()
        await self.transport.close()

    async def create_schema(self, name: str) -> bool:
        insert = f"INSERT INTO {self._schemas} (name) VALUES (?) ON CONFLICT (name) DO NOTHING RETURNING name"
        return bool(await self._http.write(insert, name))

    async def drop_schema(self, name: str) -> int | None:
        if not await self._has_schema(name):
            return None
        collections = await self.list_collections(name)
        dropped: list[str] = []
        with _unknown_after(lambda: dropped):
            for collection in collections:
                await self.drop_collection(name, collection)
                dropped.append(collection)
            await self._http.write(f"DELETE FROM {self._schemas} WHERE name = ?", name)
        return len(dropped)

    @_within_timeout
    async def list_schemas(self) -> list[str]:
        await self._http.write(f"REFRESH TABLE {self._schemas}")
        return sorted(str(name) for (name,) in await self._http.read(f"SELECT name FROM {self._schemas}"))

    @_within_timeout
    async def create_collection(self, schema: str, name: str) -> bool:
        if not await self._has_schema(schema):
            raise UnknownSchema(schema)
        key = _key(schema, name)
        # The row is first: a table without a row would never be found again. A repeated call
        # creates a missing table, and a user without DDL may repeat it.
        insert = (
            f"INSERT INTO {self._collections} (collection_key, schema_name, collection_name) VALUES (?, ?, ?)"
            " ON CONFLICT (collection_key) DO NOTHING RETURNING collection_key"
        )
        created = applied = bool(await self._http.write(insert, key, schema, name))
        columns = f"doc_id TEXT PRIMARY KEY, doc {_UNINDEXED}, batch {_UNINDEXED}"
        with _unknown_after(lambda: applied):
            if not await self._http.read(KEY_COLUMNS, self.schema, f"documents_{key}"):
                try:
                    await self._http.write(f"CREATE TABLE IF NOT EXISTS {self._table(key)} ({columns}) {_WITH}")
                except StoreRefused:
                    if created:
                        await self._http.write(f"DELETE FROM {self._collections} WHERE collection_key = ?", key)
                        applied = False
                    raise
        return created

    @_within_timeout
    async def drop_collection(self, schema: str, name: str) -> bool:
        key = _key(schema, name)
        if not await self._has_collection(key):
            return False
        await self._http.write(f"DROP TABLE IF EXISTS {self._table(key)}")
        with _unknown_after(lambda: True):
            await self._http.write(f"DELETE FROM {self._collections} WHERE collection_key = ?", key)
        return True

    @_within_timeout
    async def list_collections(self, schema: str) -> list[str]:
        await self._http.write(f"REFRESH TABLE {self._collections}")
        rows = await self._http.read(f"SELECT schema_name, collection_name FROM {self._collections}")
        return sorted(str(name) for of_schema, name in rows if of_schema == schema)

    @_within_timeout
    async def check(self, schema: str, name: str) -> None:
        await self._find(schema, name)

    @_within_timeout
    async def count(self, schema: str, name: str) -> int:
        table = await self._find(schema, name)
        await self._http.write(f"REFRESH TABLE {table}")
        ((number,),) = await self._http.read(f"SELECT COUNT(*) FROM {table}")
        return int(str(number))

    async def insert(self, schema: str, name: str, documents: Sequence[Document], *, upsert: bool = False) -> Inserted:
        if upsert:
            table = await self._find(schema, name)
            replaced: list[bool | None] = []
            with _unknown_after(lambda: len(replaced) - replaced.count(False)):
                for document in documents:
                    replaced.append(await self._upsert(table, document))  # noqa: PERF401 - those before a failure count
            return Inserted(replaced.count(None), replaced.count(True))
        if len(documents) == 1 and len(documents[0].text) <= MAX_JOINED_TEXT:
            return await self._join(schema, name, documents[0])
        return await self._insert_all(schema, name, documents)

    async def _join(self, schema: str, name: str, document: Document) -> Inserted:
        """Add one document, in one request with others that wait for their collection."""
        adds = self._adds.get((schema, name))
        if adds is None:
            send = partial(self._insert_joined, schema, name)
            adds = self._adds[schema, name] = Batches("add documents", send, MAX_JOINED_ADDS)
        add = _Add(document)
        try:
            async with asyncio.timeout(self.timeout):
                return await adds.add(add)
        except TimeoutError:
            raise self._http.late(StoreOutcomeUnknown if add.is_sent else StoreUnreachable) from None
        finally:
            add.has_ended = True

    @_within_timeout
    async def _insert_joined(self, schema: str, name: str, adds: Sequence[_Add]) -> list[Inserted | Exception]:
        """Insert the document of each add whose caller still waits, and return their outcomes.

        Of equal keys the first one is inserted.
        """
        table = await self._find(schema, name)
        first: dict[str, _Add] = {}
        for add in adds:
            if not add.has_ended:
                add.is_sent = True
                first.setdefault(add.document.key, add)
        stored = _Stored([], {})
        if first:
            documents = [add.document for add in first.values()]
            stored = await self._insert(table, documents, [str(uuid.uuid4()) for _ in documents])
        added = {first[key] for key, _, _ in stored.rows}

        def outcome(add: _Add) -> Inserted | Exception:
            key = add.document.key
            if key in stored.unknown:
                return stored.unknown[key]
            return Inserted(1, 0) if add in added else DuplicateKey(key)

        return [outcome(add) for add in adds]

    @_within_timeout
    async def _insert_all(self, schema: str, name: str, documents: Sequence[Document]) -> Inserted:
        table = await self._find(schema, name)
        keys = [document.key for document in documents]
        if len(numbers := Counter(keys)) < len(keys):
            raise DuplicateKey(next(key for key, number in numbers.items() if number > 1))
        # A batch that would be refused is rarely written, and seen.
        if len(keys) > 1 and (there := await self._lengths(table, None, keys)):
            raise DuplicateKey(there[0][0])
        batch = str(uuid.uuid4())
        written: list[tuple[str, int, int]] = []
        try:
            for part in _parts(documents, _ROWS_AN_INSERT):
                ours = await self._insert_batch(table, part, batch)
                written += ours
                if missing := {document.key for document in part} - {key for key, _, _ in ours}:
                    raise DuplicateKey(min(missing))
        except (DuplicateKey, StoreFailure):
            with _unknown_after(lambda: written):
                await self._undo(table, documents, written, batch)
            raise
        return Inserted(len(documents), 0)

    @_within_timeout
    async def page(
        self, schema: str, name: str, after: str | None, keys: Sequence[str] | None = None
    ) -> list[Document]:
        return await self._documents(await self._find(schema, name), after, keys)

    async def rewrite(self, schema: str, name: str, selection: Selection, change: Change) -> Rewritten:
        table = await self._find(schema, name)
        read = partial(self._documents, table)
        keys = await chosen_keys(selection, read, self._thread, MAX_CHANGED_DOCUMENTS, tried=change)
        done: list[bool | None] = []
        with _unknown_after(lambda: done.count(True)):
            for start in range(0, len(keys), PAGE):
                part = sorted(keys[start : start + PAGE])
                after = None
                while rows := await self._page(table, after, part):
                    for row in rows:
                        done.append(await self._rewrite(table, row, selection, change))  # noqa: PERF401 - as above
                    after = rows[-1].document.key
        return Rewritten(len(done) - done.count(None), done.count(True))

    async def _documents(self, table: str, after: str | None, keys: Sequence[str] | None) -> list[Document]:
        if after is None and keys is None:
            await self._http.write(f"REFRESH TABLE {table}")
        return [row.document for row in await self._page(table, after, keys)]

    async def _insert_batch(self, table: str, documents: Sequence[Document], batch: str) -> list[tuple[str, int, int]]:
        """Insert rows of one batch whose keys are free; return their keys and versions."""
        stored = await self._insert(table, documents, [batch] * len(documents))
        for error in stored.unknown.values():
            raise error
        return stored.rows

    async def _insert(self, table: str, documents: Sequence[Document], batches: Sequence[str]) -> _Stored:
        """Insert rows whose keys are free, each with a batch.

        A statement whose connection was lost is sent again: it finds the rows of the first one by
        their batch.
        """
        insert = (
            f"INSERT INTO {table} (doc_id, doc, batch) SELECT * FROM UNNEST(?, ?, ?)"
            " ON CONFLICT (doc_id) DO UPDATE SET batch = batch RETURNING doc_id, batch, _seq_no, _primary_term"
        )
        keys, texts = zip(*documents, strict=True)
        own = dict(zip(keys, batches, strict=True))
        loop = asyncio.get_running_loop()
        begun = loop.time()
        rows = None
        sent = 0
        with _unknown_after(lambda: sent > 1):
            while rows is None:
                sent += 1
                try:
                    rows = await self._http.write(insert, list(keys), list(texts), list(batches))
                except StoreConnectionLost:
                    if sent == _ATTEMPTS or loop.time() - begun > _REPEAT_SECONDS:
                        raise
            written = [row for row in rows if row[1] == own.get(row[0], "")]
            ours = [(str(key), int(str(seq_no)), int(str(term))) for key, _, seq_no, term in written]
            unknown = await self._changed(table, [key for key, *_ in ours], sent) if sent > 1 else {}
        for key in own.keys() - {row[0] for row in rows}:
            unknown[key] = StoreOutcomeUnknown(
                "CrateDB returned fewer rows than were inserted, and not why; "
                "look in its log, and whether its disk is nearly full"
            )
        return _Stored([row for row in ours if row[0] not in unknown], unknown)

    async def _changed(self, table: str, keys: Sequence[str], sent: int) -> dict[str, StoreOutcomeUnknown]:
        """Return the errors of rows of a repeated insert that others changed.

        One that they removed must not come back.
        """
        found = {}
        for part in _parts(keys, PAGE):
            versions = await self._http.read(f"SELECT doc_id, _version FROM {table} WHERE {_any_key(part)}", *part)
            found.update({str(key): int(str(version)) for key, version in versions})
        return {
            key: StoreOutcomeUnknown("the connection was lost, and others changed a document of the same _id")
            for key, version in found.items()
            if version > sent
        }

    async def _undo(
        self, table: str, documents: Sequence[Document], rows: Sequence[tuple[str, int, int]], batch: str
    ) -> None:
        """Delete rows of a refused batch, unless others changed them."""
        delete = f"DELETE FROM {table} WHERE doc_id = ? AND _seq_no = ? AND _primary_term = ?"
        ours = set(documents)
        left = list(rows)
        for _ in range(_ATTEMPTS):
            if not left or await self._http.write_each(delete, left) == len(left):
                return
            # Another insert of the same key gave the row a new version, and left its batch. So does
            # a replacement by an earlier idalloc or by hand, which is seen by its text.
            found = [row for part in _parts(left, PAGE) for row in await self._read(table, [key for key, *_ in part])]
            left = [
                (row.document.key, row.seq_no, row.term) for row in found if row.batch == batch and row.document in ours
            ]
        if left:
            raise StoreOutcomeUnknown("documents of a refused insert could not be removed: others wrote them")

    @_within_timeout
    async def _upsert(self, table: str, document: Document) -> bool | None:
        """Write a document; return None if it is new, else whether the old one had another text."""
        for _ in range(_ATTEMPTS):
            if await self._insert_batch(table, [document], str(uuid.uuid4())):
                return None
            for row in await self._page(table, None, [document.key]):
                if await self._replace(table, row, document.text):
                    return document.text != row.document.text
        raise WriteConflict(document.key)

    @_within_timeout
    async def _rewrite(self, table: str, row: _Row, selection: Selection, change: Change) -> bool | None:
        """Change a document; return whether its text changed, or None if it no longer matches."""
        for attempt in count(1):
            if not await self._thread.run(LEAST_STEPS, selection.matches, row.document):
                return None
            text = await self._thread.run(LEAST_STEPS, change, row.document.text)
            if await self._replace(table, row, text):
                return text != row.document.text
            if attempt == _ATTEMPTS:
                break
            rows = await self._page(table, None, [row.document.key])
            if not rows:
                return None
            (row,) = rows
        raise WriteConflict(row.document.key)

    async def _replace(self, table: str, row: _Row, text: str | None) -> bool:
        """Replace or delete a row that is unchanged since it was read, and keep it from an undo."""
        if text == row.document.text and row.batch is None:
            return True
        where = "WHERE doc_id = ? AND _seq_no = ? AND _primary_term = ?"
        version = (row.document.key, row.seq_no, row.term)
        if text is None:
            return await self._http.write_each(f"DELETE FROM {table} {where}", [version]) == 1
        update = f"UPDATE {table} SET doc = ?, batch = NULL {where} RETURNING doc_id"
        return bool(await self._http.write(update, text, *version))

    async def _page(self, table: str, after: str | None, keys: Sequence[str] | None = None) -> list[_Row]:
        """Read the newest versions of a page's rows, by their keys; see ``Documents.page``."""
        if keys is not None and len(keys) == 1:
            return await self._read(table, keys) if after is None else []
        while found := await self._lengths(table, after, keys):
            ends = accumulate(length for _, length in found)
            fitting = [key for (key, length), end in zip(found, ends, strict=True) if end - length < PAGE_TEXT]
            if rows := await self._read(table, fitting):
                return rows
            after = fitting[-1]  # all of them were deleted meanwhile
        return []

    async def _lengths(self, table: str, after: str | None, keys: Sequence[str] | None) -> list[tuple[str, int]]:
        """Return the next existing keys, sorted, at most ``PAGE``, and their documents' lengths."""
        read = f"SELECT doc_id, LENGTH(doc) FROM {table}"
        if keys is None:
            where, arguments = ("", []) if after is None else (" WHERE doc_id > ?", [after])
            rows = await self._http.read(f"{read}{where} ORDER BY doc_id LIMIT ?", *arguments, PAGE)
            return [(str(key), int(str(length))) for key, length in rows]
        for part in _parts(keys[0 if after is None else bisect_right(keys, after) :], PAGE):
            if rows := await self._http.read(f"{read} WHERE {_any_key(part)}", *part):
                return sorted((str(key), int(str(length))) for key, length in rows)
        return []

    async def _read(self, table: str, keys: Sequence[str]) -> list[_Row]:
        read = f"SELECT doc_id, doc, _seq_no, _primary_term, batch FROM {table} WHERE {_any_key(keys)}"
        rows = await self._http.read(read, *keys)
        return sorted(
            _Row(Document(str(key), str(text)), int(str(seq_no)), int(str(term)), batch)
            for key, text, seq_no, term, batch in rows
        )

    def _table(self, key: str) -> str:
        return f'"{self.schema}"."documents_{key}"'

    async def _find(self, schema: str, name: str) -> str:
        """Return the table of a collection."""
        key = _key(schema, name)
        if not await self._has_collection(key):
            raise UnknownCollection(schema, name) if await self._has_schema(schema) else UnknownSchema(schema)
        return self._table(key)

    async def _has_schema(self, name: str) -> bool:
        return bool(await self._http.read(f"SELECT name FROM {self._schemas} WHERE name = ?", name))

    async def _has_collection(self, key: str) -> bool:
        read = f"SELECT collection_key FROM {self._collections} WHERE collection_key = ?"
        return bool(await self._http.read(read, key))


@contextmanager
def _unknown_after(applied: Callable[[], object]) -> Iterator[None]:
    """Raise a failure as one with an unknown outcome if a part was applied before."""
    try:
        yield
    except StoreFailure as error:
        if not applied() or isinstance(error, StoreOutcomeUnknown):
            raise
        raise StoreOutcomeUnknown(f"a part was applied, then: {error}") from error


def _key(schema: str, name: str) -> str:
    """Return the key of a collection, which a table's name can hold."""
    return hashlib.sha256(f"{len(schema)}:{schema}{name}".encode()).hexdigest()[:16]


def _parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _any_key(keys: Sequence[str]) -> str:
    return " OR ".join(["doc_id = ?"] * len(keys))  # IN would be a scan, which lags
