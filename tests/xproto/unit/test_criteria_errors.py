"""Criteria fail with MySQL's errors, or are refused by name, and then nothing is changed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc.xprotocol.v1 import connection_pb2, crud_pb2
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto import frames
from idalloc_xproto.documents.document import Document
from idalloc_xproto.stores.sqlite import SqliteDocuments
from tests.xproto.support.caller import reply_to
from tests.xproto.support.client import literal

_COLLECTION = crud_pb2.Collection(schema="s", name="c")
_DOCUMENTS = [Document("1", '{"a": 1, "_id": "1"}'), Document("2", '{"a": "x", "_id": "2"}')]


@pytest.fixture
async def documents(tmp_path: Path) -> AsyncIterator[SqliteDocuments]:
    documents = SqliteDocuments(tmp_path / "documents.db")
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    await documents.insert("s", "c", _DOCUMENTS)
    yield documents
    await documents.close()


def number(value: int) -> expr.Expr:
    scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_SINT, v_signed_int=value)
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=scalar)


def json(text: str) -> expr.Expr:
    octets = pb.Octets(value=text.encode(), content_type=2)
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=pb.Scalar(type=pb.SCALAR_TYPE_V_OCTETS, v_octets=octets))


def array(*items: expr.Expr) -> expr.Expr:
    return expr.Expr(type=expr.EXPR_TYPE_ARRAY, array=expr.ArrayExpr(value=items))


def call(name: str, *operands: expr.Expr) -> expr.Expr:
    return expr.Expr(type=expr.EXPR_TYPE_OPERATOR, operator=expr.Operator(name=name, param=operands))


A = expr.Expr(
    type=expr.EXPR_TYPE_IDENT,
    identifier=expr.ColumnIdentifier(
        document_path=[expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value="a")]
    ),
)
KEY = expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier(name="_id"))
DOC = expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier(name="doc"))
X = literal("x")
UNSIGNED = expr.Expr(
    type=expr.EXPR_TYPE_LITERAL, literal=pb.Scalar(type=pb.SCALAR_TYPE_V_UINT, v_unsigned_int=-(2**63))
)


# What is refused, with the code of the error and a part of its text.
_ERRORS = {
    "between number": (call("between", A, number(1), number(2)), 1292, "Truncated incorrect DOUBLE value: 'x'"),
    "in numbers": (call("in", A, number(2), number(3)), 1292, "Truncated incorrect DOUBLE value: 'x'"),
    "between array": (call("between", A, number(1), array()), 3156, "Invalid JSON value for CAST to DOUBLE"),
    "json text": (call("==", A, json("[1")), 3141, "at position 2"),
    "escape": (call("like", A, X, literal("ab")), 1210, "Incorrect arguments to ESCAPE"),
    "is number": (call("is", A, number(1)), 1064, "is needs TRUE, FALSE or NULL"),
    "two texts": (call("==", X, X), 1235, "comparison of two texts of the statement"),
    "like two texts": (call("like", X, X), 1235, "comparison of two texts of the statement"),
    "condition": (
        call("==", A, call("==", number(1), number(1))),
        1235,
        "comparison with a condition that has no field",
    ),
    "in list array": (call("in", A, number(1), array()), 1235, "in with several values, one of which is an array"),
    "in array condition": (
        call("in", call("==", A, A), array()),
        1235,
        "in with an array and a value that is bound or computed",
    ),
    "nested is": (call("not", call("is", call("not_in", A, array()), number(1))), 1064, "TRUE, FALSE or NULL"),
    "not in array": (call("!", call("not_in", A, array())), 1235, "not in with an array inside of !"),
    "equal bounds": (call("between", A, array(), array()), 1235, "between of equal bounds"),
    "signs": (call("in", number(-1), number(2), UNSIGNED), 1235, "in with negative numbers beside numbers from 2^63"),
    "key alone": (call("!", KEY), 1235, "the column _id as a condition"),
    "key column": (call("between", KEY, X, number(1)), 1235, "between of the column _id and a number"),
}


@pytest.mark.parametrize(("criteria", "code", "part"), _ERRORS.values(), ids=_ERRORS)
async def test_a_delete_fails_whole(documents: SqliteDocuments, criteria: expr.Expr, code: int, part: str) -> None:
    """A delete whose criteria fail has the error's code and text, and deletes nothing."""
    kind, reply = frame_of((await reply_to(documents, crud_pb2.Delete(collection=_COLLECTION, criteria=criteria)))[-1])
    assert kind == frames.ERROR
    error = connection_pb2.Error.FromString(reply)
    assert (error.code, part in error.msg) == (code, True), error.msg
    assert await documents.page("s", "c", None) == _DOCUMENTS


async def test_a_find_takes_a_text_that_is_no_number_as_0(documents: SqliteDocuments) -> None:
    """A text that is not a number fails a delete; a find compares it as the number 0."""
    criteria = call("between", A, number(0), number(1))
    replies = await reply_to(documents, crud_pb2.Find(collection=_COLLECTION, criteria=criteria))
    assert [frame_of(reply)[0] for reply in replies].count(frames.ROW) == len(_DOCUMENTS)


@pytest.mark.parametrize(
    ("find", "code", "part"),
    [
        (crud_pb2.Find(order=[crud_pb2.Order(expr=number(1))]), 1235, "sort by a number"),
        (crud_pb2.Find(order=[crud_pb2.Order(expr=number(2))]), 1054, "Unknown column '2' in 'order clause'"),
        (
            crud_pb2.Find(
                projection=[crud_pb2.Projection(alias="a", source=A)],
                order=[crud_pb2.Order(expr=DOC)],
            ),
            1235,
            "sort by doc with fields",
        ),
    ],
    ids=["place", "no place", "doc"],
)
async def test_a_sort_by_the_result_is_refused(
    documents: SqliteDocuments, find: crud_pb2.Find, code: int, part: str
) -> None:
    """A find that sorts by a column of its result is refused."""
    find.collection.CopyFrom(_COLLECTION)
    _, reply = frame_of((await reply_to(documents, find))[-1])
    error = connection_pb2.Error.FromString(reply)
    assert (error.code, part in error.msg) == (code, True), error.msg


def frame_of(frame: bytes) -> tuple[int, bytes]:
    return frame[4], frame[5:]
