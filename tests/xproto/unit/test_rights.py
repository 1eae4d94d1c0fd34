"""What an identity may do and see over the X Protocol, and the audit of its changes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.domain.errors import StoreOutcomeUnknown, StoreRefused
from idalloc_xproto.documents.document import Document
from tests.xproto.support.attacks import member, operator
from tests.xproto.support.client import Reply, XClient, insert, literal
from tests.xproto.support.served import Served, identity, served

_OF_ALL = expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value="n")

Statement = Callable[[XClient, str, str], Awaitable[Reply]]


def upsert(*documents: str, schema: str = "shop") -> crud.Insert:
    message = insert(*documents, schema=schema)
    message.upsert = True
    return message


def number(value: int) -> expr.Expr:
    scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_SINT, v_signed_int=value)
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=scalar)


def update(schema: str, name: str, value: str = "new", criteria: expr.Expr | None = None) -> crud.Update:
    source = expr.ColumnIdentifier(document_path=[_OF_ALL])
    change = crud.UpdateOperation(source=source, operation=crud.UPDATE_TYPE_ITEM_SET, value=literal(value))
    message = crud.Update(collection=crud.Collection(schema=schema, name=name), operation=[change])
    if criteria is not None:
        message.criteria.CopyFrom(criteria)
    return message


def delete(schema: str, name: str) -> crud.Delete:
    return crud.Delete(collection=crud.Collection(schema=schema, name=name))


def add(client: XClient, schema: str, name: str) -> Awaitable[Reply]:
    row = crud.InsertRow(field=[literal("{}")])
    return client.ask(crud.Insert(collection=crud.Collection(schema=schema, name=name), row=[row]))


# Each operation on a collection, by the role that the guide's table names.
STATEMENTS: Mapping[str, tuple[Statement, ...]] = {
    "read": (
        lambda client, schema, name: client.ask(crud.Find(collection=crud.Collection(schema=schema, name=name))),
        lambda client, schema, name: client.sql(f"SELECT COUNT(*) FROM `{schema}`.`{name}`"),
    ),
    "allocate": (add,),
    "admin": (
        lambda client, schema, name: client.ask(update(schema, name)),
        lambda client, schema, name: client.ask(delete(schema, name)),
        lambda client, schema, name: client.command("create_collection", schema=schema, name=name),
        lambda client, schema, name: client.command("ensure_collection", schema=schema, name=name),
        lambda client, schema, name: client.command("drop_collection", schema=schema, name=name),
        lambda client, schema, name: client.sql(f"DROP TABLE IF EXISTS `{schema}`.`{name}`"),
    ),
}


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Served]:
    """A port with the documents a, b and c in ``shop.c``, and identities of all kinds."""
    identities = (
        identity("reader", read=["shop.*"]),
        identity("adder", allocate=["shop.*"]),
        identity("changer", admin=["shop.*"]),
        identity("owner", admin=["shop"]),
        identity("upserter", allocate=["shop.c"], admin=["shop.c"]),
        identity("elsewhere", allocate=["other.*"], read=["other.*"], admin=["other", "other.*"]),
    )
    async with served(tmp_path, *identities) as port:
        for schema in ("shop", "hidden"):
            await port.documents.create_schema(schema)
            await port.documents.create_collection(schema, "c")
        documents = [Document(key, f'{{"_id": "{key}", "n": "secret"}}') for key in "abc"]
        await port.documents.insert("shop", "c", documents)
        yield port


async def audited(statements: Awaitable[object]) -> list[dict[str, Any]]:
    """Return the audit's lines of statements, without level and peer, which are checked."""
    with structlog.testing.capture_logs() as logs:
        await statements
    lines = [dict(line) for line in logs if line["event"] == "audit"]
    for line in lines:
        assert line.pop("peer").startswith("ipv4:127.0.0.1:")
        del line["event"], line["log_level"]
    return lines


@pytest.mark.parametrize("role", STATEMENTS)
async def test_each_operation_needs_its_role(port: Served, role: str) -> None:
    """An operation needs its role on the collection; its refusal does not reveal what exists."""
    names = {"read": "reader", "allocate": "adder", "admin": "changer"}
    for name in ("reader", "adder", "changer", "owner", "elsewhere"):
        client = await port.client(name)
        for statement in STATEMENTS[role]:
            replies = [await statement(client, *at) for at in (("shop", "c"), ("shop", "no"), ("no", "c"))]
            if name == names[role]:
                assert replies[0].code not in (1142, 1045)
                assert replies[2].code == 1142
            else:
                assert {reply.code for reply in replies} == {1142}
        client.close()


async def test_a_schema_needs_the_role_on_its_name(port: Served) -> None:
    """Only admin on a schema's own name creates and drops it; admin on its collections does not."""
    for name, code in (("changer", 1142), ("reader", 1142), ("elsewhere", 1142), ("owner", 0)):
        client = await port.client(name)
        codes = [(await client.sql(f"{verb} DATABASE shop")).code for verb in ("DROP", "CREATE")]
        assert codes == [code, code], name
        client.close()


async def test_changes_are_audited(port: Served) -> None:
    """P: create, drop, modify and remove are audited: who, what, where, outcome and count."""
    client = await port.client("root")

    async def change() -> None:
        await client.sql("CREATE DATABASE d")
        await client.sql("CREATE DATABASE IF NOT EXISTS d")
        await client.command("create_collection", schema="d", name="c")
        await client.command("ensure_collection", schema="d", name="c")
        await client.ask(update("shop", "c", "other"))
        await client.ask(delete("shop", "c"))
        await client.sql("DROP TABLE shop.c")
        await client.command("create_collection", schema="shop", name="c")
        await client.command("drop_collection", schema="shop", name="c")
        await client.sql("DROP DATABASE d")

    lines = await audited(change())
    client.close()
    assert {(line.pop("identity"), line.pop("code")) for line in lines} == {("root", "OK")}
    of_shop = {"schema": "shop", "collection": "c"}
    assert lines == [
        {"method": "xproto/create_schema", "schema": "d", "changed": 1},
        {"method": "xproto/create_schema", "schema": "d", "changed": 0},
        {"method": "xproto/create_collection", "schema": "d", "collection": "c", "changed": 1},
        {"method": "xproto/create_collection", "schema": "d", "collection": "c", "changed": 0},
        {"method": "xproto/modify", **of_shop, "changed": 3},
        {"method": "xproto/remove", **of_shop, "changed": 3},
        {"method": "xproto/drop_collection", **of_shop, "changed": 1},
        {"method": "xproto/create_collection", **of_shop, "changed": 1},
        {"method": "xproto/drop_collection", **of_shop, "changed": 1},
        {"method": "xproto/drop_schema", "schema": "d", "changed": 1, "collections": 1},
    ]


async def test_failed_changes_are_audited(port: Served) -> None:
    """A failed change has a line with MySQL's code; no line shows documents or statements."""
    client = await port.client("root")
    # The text of MySQL's error has the value of the document.
    not_a_number = operator("in", member("n"), number(1), number(2))

    async def fail() -> None:
        await client.sql("CREATE DATABASE shop")
        await client.sql("DROP DATABASE no")
        await client.command("create_collection", schema="shop", name="c")
        await client.command("create_collection", schema="no", name="c")
        await client.command("drop_collection", schema="shop", name="no")
        await client.sql("DROP TABLE shop.no")
        await client.ask(update("shop", "no", "secret"))
        await client.ask(update("shop", "c", "secret", not_a_number))
        await client.ask(delete("no", "c"))

    lines = await audited(fail())
    client.close()
    assert [(line["method"].partition("/")[2], line["code"]) for line in lines] == [
        ("create_schema", "1007"),
        ("drop_schema", "1008"),
        ("create_collection", "1050"),
        ("create_collection", "1049"),
        ("drop_collection", "1051"),
        ("drop_collection", "1051"),
        ("modify", "1146"),
        ("modify", "1292"),
        ("remove", "1049"),
    ]
    assert "secret" not in str(lines)


async def test_an_unknown_outcome_is_audited(port: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change with an unknown outcome has a line that states this; a refused one does not."""

    async def fail(schema: str, name: str) -> bool:
        raise StoreOutcomeUnknown("secret") if name == "c" else StoreRefused("secret")

    monkeypatch.setattr(port.documents, "drop_collection", fail)
    client = await port.client("root")

    async def drop() -> None:
        assert (await client.sql("DROP TABLE shop.c")).code == 1105
        assert (await client.command("drop_collection", schema="shop", name="d")).code == 1105

    unknown, refused = await audited(drop())
    client.close()
    assert (unknown["code"], unknown["reason"], unknown["outcome"]) == ("UNAVAILABLE", "STORE_UNAVAILABLE", "unknown")
    assert (refused["code"], refused["reason"]) == ("FAILED_PRECONDITION", "STORE_REFUSED")
    assert "outcome" not in refused
    assert "secret" not in f"{unknown} {refused}"


async def test_denied_operations_are_audited(port: Served) -> None:
    """A denied statement has a line with its operation, its target and the role that is missing."""
    client = await port.client("reader")

    async def be_denied() -> None:
        await client.ask(delete("shop", "c"))
        await client.sql("DROP DATABASE shop")
        await add(client, "shop", "c")

    lines = await audited(be_denied())
    client.close()
    denied = {"identity": "reader", "code": "PERMISSION_DENIED", "reason": "PERMISSION_DENIED"}
    lacks = "identity 'reader' lacks role"
    of_shop = {"schema": "shop", "collection": "c"}
    assert lines == [
        denied | of_shop | {"method": "xproto/remove", "why": f"{lacks} 'admin' for collection 'shop.c'"},
        denied | {"schema": "shop", "method": "xproto/drop_schema", "why": f"{lacks} 'admin' for schema 'shop'"},
        denied | of_shop | {"method": "xproto/add", "why": f"{lacks} 'allocate' for collection 'shop.c'"},
    ]


async def test_an_upsert_that_overwrites_needs_admin(port: Served) -> None:
    """An upsert needs allocate to add, and admin to replace; without it nothing is stored."""
    adder, upserter, changer = [await port.client(name) for name in ("adder", "upserter", "changer")]
    assert (await adder.ask(upsert('{"_id": "d"}', '{"_id": "e"}'))).affected == 2
    for documents in (['{"_id": "a"}'], ['{"_id": "f"}', '{"_id": "a"}'], ['{"_id": "f"}', '{"_id": "f"}']):
        refused = await adder.ask(upsert(*documents))
        assert (refused.code, refused.text[:30]) == (1142, "UPDATE command denied to user ")
    assert (await changer.ask(upsert('{"_id": "f"}'))).code == 1142
    assert await port.documents.count("shop", "c") == 5
    assert (await upserter.ask(upsert('{"_id": "a"}', '{"_id": "f"}'))).affected == 3
    assert (await upserter.ask(upsert('{"_id": "g"}', '{"_id": "g", "n": 1}'))).affected == 3
    assert await port.documents.count("shop", "c") == 7
    for client in (adder, upserter, changer):
        client.close()


async def test_upserts_that_overwrite_are_audited(port: Served) -> None:
    """An upsert that replaces has a line as a modify has; one that only adds has none."""
    adder, upserter = [await port.client(name) for name in ("adder", "upserter")]

    async def replace() -> None:
        await upserter.ask(upsert('{"_id": "d"}'))
        await upserter.ask(upsert('{"_id": "a", "n": "secret of another"}', '{"_id": "e"}'))
        await adder.ask(upsert('{"_id": "a"}'))

    lines = await audited(replace())
    assert [(line["identity"], line["method"], line.get("changed"), line["code"]) for line in lines] == [
        ("upserter", "xproto/replace", 1, "OK"),
        ("adder", "xproto/replace", None, "PERMISSION_DENIED"),
    ]
    assert "secret" not in str(lines)
    for client in (adder, upserter):
        client.close()


async def schemas_seen(client: XClient) -> dict[str, list[str]]:
    """Return which of the schemas each statement shows."""
    count = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '{}'"
    select = "SELECT schema_name FROM information_schema.schemata"
    tried = ("hidden", "no", "shop")
    return {
        "show": [row.decode() for row in (await client.sql("SHOW DATABASES")).rows],
        "like": [row.decode() for row in (await client.sql("SHOW DATABASES LIKE '%'")).rows],
        "select": [row.decode() for row in (await client.sql(select)).rows],
        "named": [each for each in tried if (await client.sql(f"{select} WHERE schema_name = '{each}'")).rows],
        "count": [each for each in tried if (await client.sql(count.format(each))).rows != [b""]],
        "use": [each for each in tried if (await client.sql(f"USE {each}")).code != 1049],
    }


async def collections_seen(client: XClient) -> dict[str, list[str]]:
    """Return which of the collections each statement shows."""
    count = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{}' AND table_name = '{}'"
    tried = [("hidden", "c"), ("no", "c"), ("shop", "c"), ("shop", "d")]
    listed = {each: (await client.command("list_objects", schema=each)).rows for each in ("hidden", "no", "shop")}
    return {
        "list_objects": [f"{schema}.{row.decode()}" for schema, rows in listed.items() for row in rows],
        "count": [".".join(each) for each in tried if (await client.sql(count.format(*each))).rows != [b""]],
    }


async def test_only_names_with_a_role_are_shown(port: Served) -> None:
    """P: a schema or collection without a role for the identity is answered as unknown."""
    await port.documents.create_collection("shop", "d")
    expected: dict[str, tuple[list[str], list[str], list[int]]] = {
        "elsewhere": ([], [], [1142, 1142, 1142]),
        "upserter": (["shop"], ["shop.c"], [1142, 1142, 0]),
        "owner": (["shop"], [], [1142, 1142, 0]),
        "reader": (["shop"], ["shop.c", "shop.d"], [1142, 1142, 0]),
        "root": (["hidden", "shop"], ["hidden.c", "shop.c", "shop.d"], [0, 1049, 0]),
    }
    for name, (schemas, collections, codes) in expected.items():
        client = await port.client(name)
        assert await schemas_seen(client) == dict.fromkeys(("show", "like", "select", "named", "count", "use"), schemas)
        assert await collections_seen(client) == dict.fromkeys(("list_objects", "count"), collections)
        listed = [await client.command("list_objects", schema=schema) for schema in ("hidden", "no", "shop")]
        assert [reply.code for reply in listed] == codes
        client.close()


async def test_a_login_does_not_tell_hidden_schemas(port: Served) -> None:
    """A login with a schema that its identity may not see fails as with an unknown one."""
    codes = {}
    for schema in ("shop", "hidden", "no"):
        client = await port.stranger()
        reply = await client.log_in_plain("reader", "reader", schema=schema)
        codes[schema] = (reply.code, reply.text)
        client.close()
    assert codes == {
        "shop": (0, ""),
        "hidden": (1049, "Unknown database 'hidden'"),
        "no": (1049, "Unknown database 'no'"),
    }


async def test_a_dot_in_a_name_does_not_widen_a_role(port: Served) -> None:
    """P: a role on shop.* does not cover a schema or collection with a dot; the pattern * does."""
    names = [("shop.c", "c"), ("shop.c", "c.c"), ("shop", "c.c"), ("hidden.shop", "c")]
    for schema, name in names:
        await port.documents.create_schema(schema)
        await port.documents.create_collection(schema, name)
    for user, role in (("reader", "read"), ("adder", "allocate"), ("changer", "admin"), ("root", "read")):
        client = await port.client(user)
        for schema, name in names:
            replies = [(await statement(client, schema, name)).code for statement in STATEMENTS[role]]
            assert {code == 1142 for code in replies} == {user != "root"}, (user, replies)
            if "." in schema:
                assert ((await client.sql(f"USE `{schema}`")).code == 0) is (user == "root")
                assert ((await client.sql(f"CREATE DATABASE IF NOT EXISTS `{schema}`")).code == 0) is (user == "root")
        client.close()
