"""Random X DevAPI messages are answered or refused with an error; none is a server fault."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from idalloc.xprotocol.v1 import crud_pb2, notice_pb2, statement_pb2
from idalloc_server.domain.errors import Refusal
from idalloc_xproto import frames
from idalloc_xproto.admin import Admin
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import DocumentsError
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.session import Execute, LogIn, Session
from idalloc_xproto.sql import Sql
from idalloc_xproto.stores.sqlite import SqliteDocuments
from idalloc_xproto.variables import Variables
from tests.fuzz.inputs import TEXTS, TRIED, messages, mutated, tries
from tests.xproto.support.caller import FakeCaller, reply_to
from tests.xproto.support.mysql import recordings, x_frames
from tests.xproto.unit.test_sql import FakeNode

_CRUD = [crud_pb2.DESCRIPTOR.message_types_by_name[name] for name in ("Find", "Insert", "Update", "Delete")]
RECORDED = [
    frames.frame(each.kind, each.payload)
    for case in x_frames.cases()
    for each in case.exchanges
    if len(each.payload) < 2000
]
SENT = [frame for conversation in recordings.conversations() for frame in conversation.sent if len(frame) < 500]


class World:
    """Documents in SQLite, and an event loop for many examples."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.documents = SqliteDocuments(folder / "documents.db")
        self.runner.run(self._fill())

    async def _fill(self) -> None:
        await self.documents.open()
        await self.documents.create_schema("raw")
        await self.documents.create_collection("raw", "c")
        await self.documents.insert("raw", "c", [Document(str(n), f'{{"_id": "{n}", "n": {n}}}') for n in range(3)])

    def close(self) -> None:
        self.runner.run(self.documents.close())
        self.runner.close()

    def answer(self, message: Message) -> None:
        """Answer a statement, and assert the form of the reply."""
        try:
            reply = self.runner.run(reply_to(self.documents, message, FakeCaller(schema="raw")))
        except (DocumentsError, Refusal):
            return
        assert reply[-1][4] in (frames.ERROR, frames.STMT_EXECUTE_OK)
        assert all(int.from_bytes(frame[:4], "little") == len(frame) - 4 for frame in reply)


@pytest.fixture
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        yield world
        world.close()


def parsed(frame: bytes) -> Message | None:
    """Return the message of a frame; None if it is refused."""
    try:
        return frames.parse(frame[4], frame[5:])
    except XError:
        return None


def test_random_statements_are_answered(world: World, tried: str) -> None:
    """A statement with any values in its fields gets rows, or an error."""
    any_message = st.sampled_from(_CRUD).flatmap(messages)
    numbers = {cls: kind for kind, cls in frames.CLIENT_MESSAGES.items()}

    @tries(150)
    @given(any_message, st.booleans())
    def check(message: Message, exists: bool) -> None:
        TRIED[tried] += 1
        if exists:
            message.collection.name, message.collection.schema = "c", "raw"  # type: ignore[attr-defined]
        found = parsed(frames.frame(numbers[type(message)], message))
        if found is not None:
            world.answer(found)

    check()


def test_damaged_statements_are_answered(world: World, tried: str) -> None:
    """A recorded statement of which bytes were changed gets rows, or an error."""

    @tries(150)
    @given(mutated(st.sampled_from(RECORDED)))
    def check(frame: bytes) -> None:
        TRIED[tried] += 1
        found = parsed(frame) if len(frame) > frames.HEAD else None
        if found is not None and found.DESCRIPTOR in _CRUD:
            world.answer(found)

    check()


def test_random_sql_is_answered(world: World, tried: str) -> None:
    """A statement of SQL, or a command with any arguments, gets rows, or an error."""
    forms = ["SELECT {}", "SET {} = {}", "USE {}", "CREATE SCHEMA {}", "DROP TABLE {}.c", "SHOW DATABASES LIKE '{}'"]
    statements = st.tuples(st.sampled_from([*forms, "{}"]), TEXTS, TEXTS).map(lambda each: each[0].format(*each[1:]))
    commands = st.sampled_from(["create_collection", "list_objects", "drop_collection", "ping", "ensure_collection"])

    @tries(150)
    @given(statements | commands, st.lists(messages(notice_pb2.Any.DESCRIPTOR), max_size=3), st.booleans())
    def check(text: str, args: list[Message], is_sql: bool) -> None:
        TRIED[tried] += 1
        caller = FakeCaller(schema="raw")
        node: Any = FakeNode()
        sql = Sql(world.documents, Variables(node, node.change, 2**24), caller)
        message = statement_pb2.StmtExecute(stmt=text.encode("utf-8", "replace"), args=args)  # type: ignore[arg-type]
        if parsed(frames.frame(12, message)) is None:
            return
        statement = message.stmt.decode()
        try:
            if is_sql:
                reply = world.runner.run(sql.execute(statement, message.args))
            else:
                reply = world.runner.run(Admin(world.documents).execute(statement, message.args, caller))
        except (XError, DocumentsError, Refusal):
            return
        assert list(reply)[-1] == frames.DONE_EXECUTING

    check()


def test_damaged_conversations_are_bounded(tried: str) -> None:
    """Recorded conversations with changed bytes raise nothing; a session keeps at most a frame."""

    @tries(150)
    @given(st.lists(mutated(st.sampled_from(SENT)) | st.sampled_from(SENT), max_size=8))
    def check(sent: list[bytes]) -> None:
        TRIED[tried] += 1
        session = Session(1, "h", 4096, has_tls=True)
        for content in sent:
            session.receive(content)
            while request := session.next_request():
                if isinstance(request, LogIn):
                    session.accept_login()
                elif isinstance(request, Execute):
                    session.reply(frames.DONE_EXECUTING)
            output = session.take_output()
            while output:
                assert output[4] in (*range(5), frames.NOTICE, frames.STMT_EXECUTE_OK)
                output = output[4 + int.from_bytes(output[:4], "little") :]
            assert session.is_closed or len(session._reader) <= 4096 + 4

    check()
