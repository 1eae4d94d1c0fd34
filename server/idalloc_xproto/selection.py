"""The selection of a statement: its criteria, order and limit."""

from collections.abc import Sequence

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto.document_errors import as_xerrors
from idalloc_xproto.documents.cost import Budget
from idalloc_xproto.documents.criteria import Node, Value
from idalloc_xproto.documents.evaluation import Run
from idalloc_xproto.documents.selection import Selection
from idalloc_xproto.errors import XError, not_supported
from idalloc_xproto.expressions import Expressions

_MAX_UNSIGNED = 2**64 - 1


def selection_of(
    message: crud.Find | crud.Update | crud.Delete, expressions: Expressions, budget: Budget, *, may_skip: bool = True
) -> Selection:
    """Return which documents a statement selects.

    Raises:
        XError: An expression or the limit is invalid, or the expressions have too many parts.
    """
    limit, offset = _limit(message, expressions)
    if offset and not may_skip:
        raise XError(5012, "Invalid parameter: non-zero offset value is not allowed for this operation")
    criteria = expressions.node(message.criteria) if message.HasField("criteria") else None
    order = [(expressions.node(each.expr), each.direction == crud.ORDER_DIRECTION_DESC) for each in message.order]
    selection = Selection(criteria, order, limit, offset, budget, is_strict=not isinstance(message, crud.Find))
    # These are compiled now, since this may run in the side thread, and so that a statement fails
    # before a document is read.
    with as_xerrors:
        _ = selection.parts, selection.keys, selection.predicate
    for (node, _), each in zip(order, message.order, strict=True):
        _check_order(node, each.expr, is_projected=isinstance(message, crud.Find) and len(message.projection) > 0)
    with as_xerrors:
        _ = selection.sort_keys
    return selection


def projection_of(given: Sequence[crud.Projection], expressions: Expressions) -> Run | None:
    """Return the function that projects a document; None if a find returns the document itself.

    Raises:
        XError: An expression is invalid, or has no name.
    """
    if not given:
        return None
    if len(given) == 1 and not given[0].HasField("alias") and given[0].source.type == expr.EXPR_TYPE_OBJECT:
        return expressions.value(expressions.node(given[0].source))
    if not all(each.HasField("alias") for each in given):
        raise XError(5120, "Invalid projection target name")
    members = [(each.alias, expressions.value(expressions.node(each.source))) for each in given]
    return lambda content: {alias: value(content) for alias, value in members}


def _check_order(node: Node, expression: expr.Expr, *, is_projected: bool) -> None:
    """Check that a statement does not sort by a column of its result.

    Raises:
        XError: It does.
    """
    if is_projected and expression.identifier.name == "doc" and not expression.identifier.document_path:
        raise not_supported("sort by doc with fields")
    if expression.type == expr.EXPR_TYPE_OPERATOR or not isinstance(node, Value) or node.is_json:
        return
    if type(node.value) is int and node.value >= 0:
        if node.value % 2**32 == 1:  # the place of the column
            raise not_supported("sort by a number")
        raise XError(1054, f"Unknown column '{node.value}' in 'order clause'", "42S22")


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
    scalar = expressions.read(expression, lambda scalar: scalar)
    if scalar.type == pb.SCALAR_TYPE_V_UINT:
        return scalar.v_unsigned_int & _MAX_UNSIGNED
    if scalar.type != pb.SCALAR_TYPE_V_SINT:
        text = f"Invalid scalar type used in limit field: {scalar.type}, expected types UINT, SINT"
        raise XError(5012, text)
    if scalar.v_signed_int < 0:
        raise XError(1690, f"BIGINT UNSIGNED value is out of range in '{scalar.v_signed_int}'", "22003")
    return scalar.v_signed_int
