"""A large message is parsed piece by piece to the same message as in one."""

from collections.abc import Callable

import pytest

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto import frames
from idalloc_xproto import pieces as module
from idalloc_xproto.mysql_errors import XError, parse_error
from idalloc_xproto.pieces import _PIECE, pieces
from tests.xproto.support.attacks import any_of, find, member, operator
from tests.xproto.support.client import insert, literal


def large() -> crud.Insert:
    """Return an insert of several pieces: rows, arguments, and a document larger than a piece."""
    message = insert(*(f'{{"n": {number}}}' for number in range(5_000)), "x" * 2 * _PIECE)
    message.args.extend(pb.Scalar(type=pb.SCALAR_TYPE_V_SINT, v_signed_int=number) for number in range(20_000))
    message.upsert = True
    return message


def test_pieces_are_the_whole() -> None:
    """The message of the pieces is the message; no piece is much longer than it has to be."""
    message = large()
    payload = message.SerializeToString()
    parts = list(pieces(crud.Insert.DESCRIPTOR, payload))
    assert b"".join(parts) == payload
    assert sorted(map(len, parts))[-2] < 2 * _PIECE
    assert frames.parse(18, payload) == message
    condition = find(criteria=any_of([operator("==", member("n"), literal("x" * 100))] * 2_000))
    assert frames.parse(17, condition.SerializeToString()) == condition


def without_collection() -> bytes:
    message = large()
    message.ClearField("collection")
    return message.SerializeToString()


def without_a_type() -> bytes:
    message = large()
    message.row[4_000].field[0].ClearField("type")
    return message.SerializeToString()


def with_an_unknown_type() -> bytes:
    return large().SerializeToString() + crud.Insert(args=[pb.Scalar()]).SerializeToString() + b"\x2a\x02\x08\x63"


@pytest.mark.parametrize(
    "broken",
    [
        without_collection,
        without_a_type,
        with_an_unknown_type,
        lambda: large().SerializeToString()[:-3],
        lambda: large().SerializeToString() + b"\x0b",
        lambda: large().SerializeToString() + b"\xff" * 20,
    ],
    ids=["no collection", "no type in a row", "unknown enum", "cut", "group", "endless number"],
)
def test_a_large_message_that_is_broken_is_refused(broken: Callable[[], bytes]) -> None:
    """A piece without a required field or with invalid bytes is refused as in a small message."""
    payload = broken()
    with pytest.raises(XError) as caught:
        frames.parse(18, payload)
    assert caught.value == parse_error()


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\x22\x00" * 40_000, 1105),
        (b"\x2a\x02\x08\x03" * 70_000, 1390),
        (b"\xa0\x06\x00" * 30_000, 1153),
        (b"\x22\xc0\xa9\x07" + b"\x0a\x02\x08\x02" * 30_000, 1153),
    ],
    ids=["rows", "arguments", "unknown fields", "fields of a row"],
)
def test_too_many_fields_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch, payload: bytes, code: int) -> None:
    """Fields beyond a limit are counted, and not parsed."""
    monkeypatch.setattr(module, "MAX_ITEMS", 20_000)
    with pytest.raises(XError) as caught:
        frames.parse(18, payload)
    assert caught.value.code == code
    assert not caught.value.fatal


def test_a_piece_has_the_fields_of_protobuf() -> None:
    """Fields of each wire type are cut where protobuf ends them."""
    row = crud.InsertRow(field=[expr.Expr(type=expr.EXPR_TYPE_LITERAL)]).SerializeToString()
    fixed = b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa0\x06\x80\x01"
    payload = b"".join(b"\x22" + frames.unsigned_field(len(row)) + row + fixed for _ in range(5_000))
    parts = list(pieces(crud.Insert.DESCRIPTOR, payload))
    assert len(parts) > 1
    assert sum(len(crud.Insert.FromString(part).row) for part in parts) == 5_000
