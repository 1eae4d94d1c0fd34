"""Large documents and conditions neither fill memory nor block others."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest
from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2
from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto import collections, frames
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents import cost, json_text, selection
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.criteria import Call, Field, Value
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.json_text import Json
from idalloc_xproto.documents.protocol import PAGE, Documents, Rewritten
from idalloc_xproto.documents.selection import Selection
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.stores import sqlite as sqlite_documents
from idalloc_xproto.stores.sqlite import SqliteDocuments
from tests.xproto.support import attacks as attacks
from tests.xproto.support.caller import FakeCaller, reply_to
from tests.xproto.support.client import insert, literal

SIZE = 2**20
NUMBER = 48


@dataclass
class Counting(FakeCaller):
    """Counts rows, and keeps none."""

    leaves: bool = False  # whether it has left after the first frame
    rows: int = 0

    async def send(self, frame: bytes) -> None:
        self.rows += frame[4] == frames.ROW
        self.has_left = self.leaves


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
    caller = Counting()
    tracemalloc.start()
    try:
        await statements(documents).execute(find(keys), caller)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caller.rows == NUMBER
    assert peak < 10 * SIZE


N = attacks.member("n")
NUMBERS = f'{{"n": [{", ".join(["1"] * 200_000)}]}}'
CONDITIONS = attacks.find("s", criteria=attacks.any_of([attacks.operator("==", N, literal("1"))] * 300))
VALUES = [str(number) for number in range(50_000)]


@pytest.mark.parametrize(
    ("message", "module", "function"),
    [
        (lambda: insert(NUMBERS), collections, "parse"),
        (lambda: insert(NUMBERS), collections, "dump"),
        (lambda: find(VALUES, "n"), collections, "selection_of"),
        (lambda: CONDITIONS, selection, "load"),
    ],
    ids=["parse a document", "write a document", "read a condition", "apply a condition"],
)
async def test_a_large_statement_lets_others_run(
    documents: Documents,
    monkeypatch: pytest.MonkeyPatch,
    message: Callable[[], Message],
    module: ModuleType,
    function: str,
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
    reply = await reply_to(documents, message())
    assert reply[-1] == frames.DONE_EXECUTING
    assert waited
    assert all(waited)


async def write_beside(documents: Documents, statement: Awaitable[object]) -> bool:
    """Start a statement, and then an insert; return whether the insert ended first."""
    running = asyncio.ensure_future(statement)
    await asyncio.sleep(0)
    await documents.insert("s", "c", [Document("new", '{"_id": "new"}')])
    was_first = not running.done()
    await running
    return was_first


@pytest.mark.parametrize("matching", [False, True])
async def test_others_write_while_documents_are_chosen(
    documents: Documents, monkeypatch: pytest.MonkeyPatch, matching: bool
) -> None:
    """An insert does not wait while a modify chooses its documents, also if it finds none."""
    await documents.insert("s", "c", [Document(key, f'{{"_id": "{key}", "n": 1}}') for key in VALUES[:300]])
    loop, chooses, may_go_on, inner = asyncio.get_running_loop(), asyncio.Event(), Event(), json_text.load

    def wait_for_the_insert(text: str) -> dict[str, Json]:
        loop.call_soon_threadsafe(chooses.set)
        assert may_go_on.wait(10), "the insert waits for the modify"
        return inner(text)

    monkeypatch.setattr(selection, "load", wait_for_the_insert)
    update = crud.Update(collection=crud.Collection(schema="s", name="c"), criteria=CONDITIONS.criteria)
    update.criteria.CopyFrom(attacks.any_of([attacks.operator("==", N, number(1 if matching else 2))] * 100))
    path = [expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value="m")]
    source = expr.ColumnIdentifier(document_path=path)
    update.operation.add(source=source, operation=crud.UPDATE_TYPE_ITEM_SET, value=number(2))
    modify = asyncio.create_task(reply_to(documents, update))
    await chooses.wait()
    await documents.insert("s", "c", [Document("new", '{"_id": "new"}')])
    may_go_on.set()
    assert (await modify)[-2] == frames.rows_affected(300 if matching else 0)


async def test_others_write_while_many_keys_are_looked_up(documents: Documents) -> None:
    """An insert does not wait until all keys of a long `in` are looked up."""
    keys = [f"{number:06}" for number in range(30_000)]
    assert await write_beside(documents, documents.page("s", "c", None, keys))


def change_after_the_choice(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another session change document ``a`` after a modify has chosen its documents."""

    async def choose(*args: Any) -> list[str]:
        keys = await selection.chosen_keys(*args)
        await documents.insert("s", "c", [Document("a", '{"_id": "a", "n": 2}')], upsert=True)
        return keys

    monkeypatch.setattr(sqlite_documents, "chosen_keys", choose)


async def test_a_modify_changes_what_meets_its_condition_at_the_end(
    documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chosen document that another session changed is changed if it still meets the condition."""
    await documents.insert("s", "c", [Document(key, f'{{"_id": "{key}", "n": 1}}') for key in ("a", "b", "c")])
    wanted = Selection(Call("==", (Field(("n",)), Value(1))))

    change_after_the_choice(documents, monkeypatch)
    assert await documents.rewrite("s", "c", wanted, lambda _: None) == Rewritten(2, 2)
    assert [each.key for each in await documents.page("s", "c", None)] == ["a"]


@pytest.mark.parametrize("order", [(), ((Field(("_id",)), False),)], ids=["by key", "sorted"])
async def test_a_limited_modify_takes_others_in_place_of_those_gone(
    documents: Documents, monkeypatch: pytest.MonkeyPatch, order: Any
) -> None:
    """A modify changes as many documents as its limit while enough meet its condition."""
    await documents.insert("s", "c", [Document(key, f'{{"_id": "{key}", "n": 1}}') for key in "abcd"])
    wanted = Selection(Call("==", (Field(("n",)), Value(1))), order, limit=2)

    change_after_the_choice(documents, monkeypatch)
    assert await documents.rewrite("s", "c", wanted, lambda _: None) == Rewritten(2, 2)
    assert [each.key for each in await documents.page("s", "c", None)] == ["a", "d"]


async def test_an_argument_is_decoded_once(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument for many rows is parsed once, and each row is a document of its own."""
    parsed: list[str] = []

    def parse(text: str) -> Json:
        parsed.append(text)
        return json_text.parse(text)

    monkeypatch.setattr(collections, "parse", parse)
    message = insert()
    message.row.extend([crud.InsertRow(field=[attacks.placeholder(0)])] * 10)
    message.args.append(literal('{"n": 1}').literal)
    reply = await reply_to(documents, message)
    assert reply[-1] == frames.DONE_EXECUTING
    assert parsed == ['{"n": 1}']
    assert len({each.key for each in await documents.page("s", "c", None)}) == 10


@pytest.mark.parametrize(
    ("limit", "value", "code"), [("MAX_SECONDS", -1.0, 3024), ("MAX_STEPS", 100, 1104)], ids=["time", "steps"]
)
async def test_a_statement_beyond_its_limit_ends(
    documents: Documents, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, code: int
) -> None:
    """A find or a modify that takes too long ends with MySQL's error, and changes nothing."""
    await documents.insert("s", "c", [Document(key, f'{{"_id": "{key}", "n": 1}}') for key in VALUES[:10]])
    monkeypatch.setattr(cost, limit, value)
    condition = attacks.operator("==", N, number(1))
    collection = crud.Collection(schema="s", name="c")
    for message in (attacks.find("s", criteria=condition), crud.Delete(collection=collection, criteria=condition)):
        assert code_of(await reply_to(documents, message)) == code
    assert await documents.count("s", "c") == 10


async def test_a_find_ends_when_its_client_has_left(documents: Documents) -> None:
    """A find reads no further page for a client that has left."""
    await documents.insert("s", "c", [Document(key, f'{{"_id": "{key}"}}') for key in VALUES[:1000]])
    caller = Counting(leaves=True)
    with pytest.raises(XError) as ended:
        await statements(documents).execute(find(), caller)
    assert ended.value.code == 1317
    assert caller.rows <= PAGE


def statements(documents: Documents) -> Collections:
    return Collections(documents, MAX_SIZE, SideThread("statements"))


def code_of(reply: list[bytes]) -> int:
    return connection_pb2.Error.FromString(reply[-1][5:]).code


def number(value: int) -> expr.Expr:
    scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_SINT, v_signed_int=value)
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=scalar)
