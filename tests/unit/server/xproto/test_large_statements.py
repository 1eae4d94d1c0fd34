"""Large documents and conditions neither fill the memory nor stop others."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from threading import Event
from types import ModuleType

import pytest
from google.protobuf.message import Message

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc_server.documents import selection
from idalloc_server.documents.cost import MAX_SIZE
from idalloc_server.documents.document import Document
from idalloc_server.documents.protocol import Documents
from idalloc_server.documents.side_thread import SideThread
from idalloc_server.store.sqlite.documents import SqliteDocuments
from idalloc_server.xproto import collections, frames
from idalloc_server.xproto.collections import Collections
from tests.support import xproto_attacks as attacks
from tests.support.xproto_caller import FakeCaller, reply_to
from tests.support.xproto_client import insert, literal

SIZE = 2**20
NUMBER = 48


@pytest.fixture
async def documents(tmp_path: Path) -> AsyncIterator[Documents]:
    documents = SqliteDocuments(tmp_path / "documents.db")
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    yield documents
    await documents.close()


def find(keys: Iterable[str] = (), member: str = "_id") -> crud.Find:
    """Return a find of all documents, or of those with one of the keys."""
    message = crud.Find(collection=crud.Collection(schema="s", name="c"))
    if literals := [literal(key) for key in keys]:
        path = [expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value=member)]
        field = expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier(document_path=path))
        operator = expr.Operator(name="in", param=[field, *literals])
        message.criteria.CopyFrom(expr.Expr(type=expr.EXPR_TYPE_OPERATOR, operator=operator))
    return message


@pytest.mark.parametrize("keys", [[], [f"{number:02}" for number in range(NUMBER)]], ids=["all", "by key"])
async def test_large_documents_are_read_one_by_one(documents: Documents, keys: list[str]) -> None:
    """A find of many large documents holds a few of them in memory at once."""
    for number in range(NUMBER):
        text = f'{{"n": "{"x" * SIZE}", "_id": "{number:02}"}}'
        await documents.insert("s", "c", [Document(f"{number:02}", text)])
    rows = 0
    tracemalloc.start()
    try:
        async for frame in Collections(documents, MAX_SIZE, SideThread("statements")).execute(find(keys), FakeCaller()):
            rows += frame[4] == frames.ROW
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == NUMBER
    assert peak < 10 * SIZE


N = attacks.member("n")
NUMBERS = f'{{"n": [{", ".join(["1"] * 200_000)}]}}'
CONDITIONS = attacks.find("s", criteria=attacks.any_of([attacks.operator("==", N, literal("1"))] * 300))
VALUES = [str(number) for number in range(50_000)]


@pytest.mark.parametrize(
    ("message", "module", "function"),
    [
        (insert(NUMBERS), collections, "parse"),
        (insert(NUMBERS), collections, "dump"),
        (find(VALUES, "n"), collections, "selection_of"),
        (CONDITIONS, selection, "load"),
    ],
    ids=["parse a document", "write a document", "read a condition", "apply a condition"],
)
async def test_a_large_statement_lets_others_run(
    documents: Documents, monkeypatch: pytest.MonkeyPatch, message: Message, module: ModuleType, function: str
) -> None:
    """The event loop serves others while a large document or condition is handled."""
    await documents.insert("s", "c", [Document(key, f'{{"n": "n", "_id": "{key}"}}') for key in VALUES[:10]])
    loop, inner, waited = asyncio.get_running_loop(), getattr(module, function), []

    def wait_for_the_loop(*args: object, **kwargs: object) -> object:
        turn = Event()
        loop.call_soon_threadsafe(turn.set)
        waited.append(turn.wait(30))
        return inner(*args, **kwargs)

    monkeypatch.setattr(module, function, wait_for_the_loop)
    reply = await reply_to(documents, message)
    assert reply[-1] == frames.DONE_EXECUTING
    assert waited
    assert all(waited)
