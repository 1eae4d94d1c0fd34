"""SQL and commands that MySQL's clients send have MySQL's answers; all others are refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from idalloc.xprotocol.v1 import connection_pb2, notice_pb2, statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.admin import Admin
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.sql import MAX_STATEMENT, Sql
from idalloc_xproto.variables import Variables
from tests.xproto.support.caller import AllRights


class FakeDocuments:
    """Schemas and collections in memory, without documents."""

    def __init__(self) -> None:
        self.schemas: dict[str, list[str]] = {"s": ["c"]}

    async def create_schema(self, name: str) -> bool:
        return name not in self.schemas and self.schemas.setdefault(name, []) == []

    async def drop_schema(self, name: str) -> int | None:
        found = self.schemas.pop(name, None)
        return None if found is None else len(found)

    async def list_schemas(self) -> list[str]:
        return sorted(self.schemas)

    async def create_collection(self, schema: str, name: str) -> bool:
        if name in self.schemas[schema]:
            return False
        self.schemas[schema].append(name)
        return True

    async def drop_collection(self, schema: str, name: str) -> bool:
        if name not in self.schemas.get(schema, []):
            return False
        self.schemas[schema].remove(name)
        return True

    async def list_collections(self, schema: str) -> list[str]:
        return sorted(self.schemas.get(schema, []))

    async def count(self, schema: str, name: str) -> int:
        return 6


class FakeNode:
    """The settings of a node."""

    def __init__(self) -> None:
        self.settings: dict[str, int] = {
            "prefix": 0, "auto_increment_offset": 1, "auto_increment_increment": 1
        }  # fmt: skip
        self.persisted: dict[str, int] = {}

    async def change(self, given: Mapping[str, int], persist: bool) -> None:
        self.settings.update(given)
        if persist:
            self.persisted.update(given)


class FakeCaller:
    """A session with all roles."""

    schema = "s"
    connection_id = 7
    has_left = False
    rights = AllRights()

    async def send(self, frame: bytes) -> None:
        raise NotImplementedError

    async def generate_ids(self, count: int, given: int) -> list[str]:
        raise NotImplementedError

    def burn_ids(self, count: int) -> None:
        raise NotImplementedError


class Server:
    """The SQL and the commands of one session."""

    def __init__(self) -> None:
        self.documents, self.node, self.caller = FakeDocuments(), FakeNode(), FakeCaller()
        node: Any = self.node
        self.variables = Variables(node, self.node.change, 2**24)
        documents: Any = self.documents
        self.sql = Sql(documents, self.variables, self.caller)
        self.admin = Admin(documents)

    async def run(self, statement: str, *args: notice_pb2.Any) -> list[tuple[int, bytes]]:
        reply = await self.sql.execute(statement, args)
        assert reply[-1] == frames.DONE_EXECUTING
        return [(each[4], each[5:]) for each in reply]

    async def rows(self, statement: str) -> list[list[bytes]]:
        return [
            list(statement_pb2.Row.FromString(payload).field)
            for kind, payload in await self.run(statement)
            if kind == frames.ROW
        ]


def text(value: str) -> notice_pb2.Any:
    scalar = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_STRING, v_string=notice_pb2.Text(value=value.encode()))
    return notice_pb2.Any(type=notice_pb2.ANY_TYPE_SCALAR, scalar=scalar)


def argument(**values: str) -> list[notice_pb2.Any]:
    fields = [notice_pb2.AnyObjectField(key=key, value=text(value)) for key, value in values.items()]
    return [notice_pb2.Any(type=notice_pb2.ANY_TYPE_OBJECT, obj=notice_pb2.AnyObject(fld=fields))]


async def test_schemas_are_created_listed_and_dropped() -> None:
    """CREATE, USE, SHOW and DROP of schemas change the store, and report what exists already."""
    server = Server()
    await server.run("CREATE DATABASE IF NOT EXISTS `d ``x` ;")
    assert await server.rows("SHOW DATABASES") == [[b"d `x\0"], [b"s\0"]]
    await server.run("use `d ``x`")
    assert await server.rows("SELECT DATABASE()") == [[b"d `x\0"]]
    with pytest.raises(XError) as refused:
        await server.run("CREATE SCHEMA s")
    assert refused.value.code == 1007
    await server.run("DROP SCHEMA `d ``x`")
    assert await server.rows("SHOW SCHEMAS LIKE '%'") == [[b"s\0"]]
    assert server.caller.schema == ""


async def test_counts_name_their_column_as_typed() -> None:
    """COUNT(*) has MySQL's metadata, with the column's name as the client typed it."""
    reply = await Server().run("select count(*) from s.c")
    assert reply[0][1].hex() == "0801501558101208636f756e74282a291a0022002a0032003a03646566"
    assert reply[1][1].hex() == "0a010c"
    with pytest.raises(XError, match=r"Table 's\.nope' doesn't exist"):
        await Server().run("SELECT COUNT(*) FROM `s`.`nope`")


async def test_session_variables_are_the_sessions_own() -> None:
    """SET changes this session, SET GLOBAL the node, and SET PERSIST keeps the change."""
    server = Server()
    await server.run("SET auto_increment_increment = 8, auto_increment_offset = 3")
    assert (server.variables.offset, server.variables.increment) == (3, 8)
    assert server.node.settings["auto_increment_offset"] == 1
    reply = await server.run("SET PERSIST mysqlx_document_id_unique_prefix = 70000")
    assert reply[0][0] == frames.NOTICE
    assert (server.node.settings["prefix"], server.node.persisted) == (65_535, {"prefix": 65_535})
    server.variables.reset()
    assert (server.variables.offset, server.variables.increment) == (0, 0)


async def test_set_persists_only_what_it_says() -> None:
    """SET GLOBAL a, PERSIST b keeps only b; of a variable with both, the last value wins."""
    server = Server()
    await server.run("SET GLOBAL auto_increment_increment = 8, PERSIST mysqlx_document_id_unique_prefix = 5")
    await server.run("SET PERSIST auto_increment_offset = 3, GLOBAL auto_increment_offset = 4")
    assert server.node.settings == {"prefix": 5, "auto_increment_offset": 4, "auto_increment_increment": 8}
    assert server.node.persisted == {"prefix": 5, "auto_increment_offset": 3}
    await server.run("SET GLOBAL auto_increment_offset = 5, PERSIST auto_increment_offset = 6")
    assert (server.node.settings["auto_increment_offset"], server.node.persisted["auto_increment_offset"]) == (6, 6)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SET mysqlx_document_id_unique_prefix = 7", 1229),
        ("SET GLOBAL mysqlx_document_id_unique_prefix = '7'", 1232),
        ("SET autocommit = 0", 1235),
        ("SET nothing = 1", 1193),
        ("SELECT @@nothing", 1193),
        ("SELECT nothing", 1054),
        ("START TRANSACTION", 1235),
        ("SAVEPOINT a", 1235),
        ("SELECT * FROM s.c", 1235),
        ("nonsense", 1064),
        ("SELECT 'a;b'; SELECT 2", 1064),
        ("SELECT 1; SELECT 2", 1064),
        ("SELECT '" + "''" * 2000, 1064),
        (" ; ", 1065),
        ("USE nope", 1049),
        ("SELECT 'a", 1064),
        ("USE `a", 1064),
        ("SELECT 1" + " " * 4000 + "!", 1235),
        ("SELECT '" + "x" * MAX_STATEMENT + "'", 1235),
    ],
)
async def test_other_statements_are_refused(statement: str, code: int) -> None:
    """A statement that is not served, or is wrong, fails with MySQL's code."""
    with pytest.raises(XError) as refused:
        await Server().run(statement)
    assert refused.value.code == code


async def test_a_quoted_semicolon_ends_no_statement() -> None:
    """A semicolon in quotes is text, and one at the end of a statement is ignored."""
    reply = await Server().run("SELECT 'a;b', \"c;d\";")
    assert [payload for kind, payload in reply if kind == frames.ROW] == [b"\x0a\x04a;b\0\x0a\x04c;d\0"]


async def test_arguments_take_the_places_of_question_marks() -> None:
    """Arguments replace the question marks outside of quotes, as texts."""
    server = Server()
    reply = await server.run("SELECT '?', ?", text("it's \\"))
    assert [payload for kind, payload in reply if kind == frames.ROW] == [b"\x0a\x02?\0\x0a\x07it's \\\0"]
    with pytest.raises(XError, match="Too many arguments"):
        await server.run("SELECT 1", text("x"))


async def test_collections_are_created_listed_and_dropped() -> None:
    """The commands of mysqlx create, list and drop collections, with MySQL's errors."""
    server = Server()
    await server.admin.execute("create_collection", argument(schema="s", name="new"), server.caller)
    await server.admin.execute("ensure_collection", argument(schema="s", name="new"), server.caller)
    listed = await server.admin.execute("list_objects", argument(schema="s", pattern="n%"), server.caller)
    assert b"new\0" in b"".join(listed)
    assert b"\x01c\0" not in b"".join(listed)
    for command, values, code in (
        ("create_collection", {"schema": "s", "name": "c"}, 1050),
        ("create_collection", {"schema": "nope", "name": "c"}, 1049),
        ("create_collection", {"schema": "s", "name": ""}, 5113),
        ("create_collection", {"schema": "s", "name": "x" * 65}, 1059),
        ("create_collection", {"schema": "s"}, 5015),
        ("create_collection", {"schema": "s", "name": "x", "nope": "y"}, 5021),
        ("drop_collection", {"schema": "s", "name": "nope"}, 1051),
        ("list_clients", {}, 1235),
        ("nope", {}, 5157),
    ):
        with pytest.raises(XError) as refused:
            await server.admin.execute(command, argument(**values) if values else [], server.caller)
        assert refused.value.code == code, command
    await server.admin.execute("drop_collection", argument(schema="s", name="new"), server.caller)
    assert server.documents.schemas == {"s": ["c"]}


def test_an_error_has_mysqls_bytes() -> None:
    """The frame of 5116 has the recorded head, and its severity though it is 0."""
    error = frames.error(XError(5116, "Document contains a field value that is not unique but required to be"))
    assert error[:12].hex() == "5400000001080010fc271a45"
    assert connection_pb2.Error.FromString(error[5:]).HasField("severity")
