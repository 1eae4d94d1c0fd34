"""Expressions that the guide lists as not supported are refused by name."""

import pytest

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.mysql_errors import XError
from tests.xproto.support.caller import FakeCaller
from tests.xproto.support.client import literal
from tests.xproto.unit.test_sql import Server

FIELD = expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier())


def operator(name: str, *operands: expr.Expr) -> expr.Expr:
    return expr.Expr(type=expr.EXPR_TYPE_OPERATOR, operator=expr.Operator(name=name, param=operands))


def call(name: str, *params: expr.Expr) -> expr.Expr:
    function = expr.FunctionCall(name=expr.Identifier(name=name), param=params)
    return expr.Expr(type=expr.EXPR_TYPE_FUNC_CALL, function_call=function)


def selected(source: expr.Expr) -> crud.Find:
    return crud.Find(collection=COLLECTION, projection=[crud.Projection(source=source, alias="n")])


COLLECTION = crud.Collection(name="c", schema="s")


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (selected(call("count", operator("*"))), "count(*)"),
        (selected(call("SUM", FIELD)), "SUM()"),
        (selected(operator("*", FIELD, literal("2"))), "operator *"),
        (crud.Find(collection=COLLECTION, criteria=operator("overlaps", FIELD, literal("[]"))), "operator overlaps"),
        (crud.Find(collection=COLLECTION, criteria=operator("&", FIELD, literal("1"))), "operator &"),
    ],
)
async def test_a_refused_expression_is_named(message: crud.Find, named: str) -> None:
    """Aggregates, expressions in field lists, overlaps and & are 1235 with their name."""
    statements = Collections(None, MAX_SIZE, SideThread("statements"))  # type: ignore[arg-type] # it reads no documents
    with pytest.raises(XError) as refused:
        await statements.execute(message, FakeCaller())
    assert (refused.value.code, refused.value.message) == (
        1235,
        f"This version of idalloc doesn't yet support '{named}'",
    )


@pytest.mark.parametrize("value", ["0", "OFF", "'off'"])
async def test_autocommit_cannot_be_turned_off(value: str) -> None:
    """SET autocommit = 0, in each form, is refused by name, since there are no transactions."""
    with pytest.raises(XError, match=r"doesn't yet support 'autocommit = 0'"):
        await Server().run(f"SET autocommit = {value}")
