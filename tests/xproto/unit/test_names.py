"""Names that MySQL 8.0.31 refuses; the texts are those that it sent."""

from typing import Any, cast

import pytest

from idalloc.xprotocol.v1 import crud_pb2
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.side_thread import SideThread
from tests.xproto.support.client import connected
from tests.xproto.unit.test_listener import listening

REFUSED = [
    ("x" * 65, 1059, "Identifier name '" + "x" * 65 + "' is too long"),
    ("x" * 100, 1059, "Identifier name '" + "x" * 100 + "' is too long"),
    ("x" * 150, 1059, "Identifier name '" + "x" * 100 + "' is too long"),
    ("é" * 70, 1059, "Identifier name '" + "é" * 50 + "' is too long"),
    ("a" + "é" * 70, 1059, "Identifier name 'a" + "é" * 49 + "?' is too long"),
    ("x" * 193, 0, "Incorrect {} name '" + "x" * 100 + "'"),
    ("aa" + "€" * 64, 0, "Incorrect {} name 'aa" + "€" * 32 + "??'"),
    ("abc ", 0, "Incorrect {} name 'abc '"),
]


@pytest.mark.parametrize(("name", "code", "text"), REFUSED, ids=range(len(REFUSED)))
async def test_a_refused_name_has_mysqls_error(name: str, code: int, text: str) -> None:
    """Every statement refuses an invalid name with MySQL's code and text."""
    collection = crud_pb2.Collection(name=name, schema="s")
    in_schema = crud_pb2.Collection(name="c", schema=name)
    statements = Collections(cast(Any, None), MAX_SIZE, SideThread("statements"))  # it reads no documents
    async with listening(statements=statements) as listener, connected(listener.address) as client:
        of_schema = [
            await client.sql(f"CREATE DATABASE `{name}`"),
            await client.sql(f"DROP DATABASE IF EXISTS `{name}`"),
            await client.sql(f"USE `{name}`"),
            await client.sql(f"SELECT COUNT(*) FROM `{name}`.c"),
            await client.command("create_collection", schema=name, name="c"),
            await client.command("list_objects", schema=name),
            await client.ask(crud_pb2.Find(collection=in_schema)),
        ]
        of_collection = [
            await client.sql(f"DROP TABLE IF EXISTS s.`{name}`"),
            await client.sql(f"SELECT COUNT(*) FROM s.`{name}`"),
            *[
                await client.command(f"{verb}_collection", schema="s", name=name)
                for verb in ("create", "ensure", "drop")
            ],
            *[
                await client.ask(statement(collection=collection))
                for statement in (crud_pb2.Insert, crud_pb2.Find, crud_pb2.Update, crud_pb2.Delete)
            ],
        ]
    assert {(reply.code, reply.text) for reply in of_schema} == {(code or 1102, text.format("database"))}
    assert {(reply.code, reply.text) for reply in of_collection} == {(code or 1103, text.format("table"))}
