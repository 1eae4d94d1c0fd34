"""The selection of a statement: its criteria, order and limit."""

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.documents.selection import Selection
from idalloc_server.xproto.errors import XError
from idalloc_server.xproto.expressions import Expressions

_MAX_UNSIGNED = 2**64 - 1


def selection_of(
    message: crud.Find | crud.Update | crud.Delete, expressions: Expressions, *, may_skip: bool = True
) -> Selection:
    """Return which documents a statement is about.

    Raises:
        XError: An expression or the limit is invalid.
    """
    limit, offset = _limit(message, expressions)
    if offset and not may_skip:
        raise XError(5012, "Invalid parameter: non-zero offset value is not allowed for this operation")
    criteria = expressions.node(message.criteria) if message.HasField("criteria") else None
    order = [(expressions.node(each.expr), each.direction == crud.ORDER_DIRECTION_DESC) for each in message.order]
    return Selection(criteria, order, limit, offset)


def _limit(message: crud.Find | crud.Update | crud.Delete, expressions: Expressions) -> tuple[int | None, int]:
    if message.HasField("limit_expr"):
        if message.HasField("limit"):
            text = "Invalid message, one of 'limit' and 'limit_expr' fields is allowed. Received both"
            raise XError(5000, text)
        given = message.limit_expr
        offset = _limit_number(given.offset, expressions) if given.HasField("offset") else 0
        return _limit_number(given.row_count, expressions), offset
    if message.HasField("limit"):
        return message.limit.row_count & _MAX_UNSIGNED, message.limit.offset & _MAX_UNSIGNED
    return None, 0


def _limit_number(expression: expr.Expr, expressions: Expressions) -> int:
    scalar = expressions.scalar(expression)
    if scalar.type == pb.SCALAR_TYPE_V_UINT:
        return scalar.v_unsigned_int & _MAX_UNSIGNED
    if scalar.type != pb.SCALAR_TYPE_V_SINT:
        text = f"Invalid scalar type used in limit field: {scalar.type}, expected types UINT, SINT"
        raise XError(5012, text)
    if scalar.v_signed_int < 0:
        raise XError(1690, f"BIGINT UNSIGNED value is out of range in '{scalar.v_signed_int}'", "22003")
    return scalar.v_signed_int
