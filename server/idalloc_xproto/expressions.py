"""Translates expressions of Mysqlx.Expr to criteria of ``documents``.

An expression is checked as a whole before a document is read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from typing import Any, TypeVar, cast

from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto.documents import cost
from idalloc_xproto.documents.cost import Budget
from idalloc_xproto.documents.criteria import NULL, ArrayOf, Call, Field, Key, Node, NotJson, ObjectOf, Path, Value
from idalloc_xproto.documents.errors import InvalidJson
from idalloc_xproto.documents.evaluation import OPERATORS, Context, Run, is_constant, json_of
from idalloc_xproto.documents.json_text import number_text, parse
from idalloc_xproto.mysql_errors import XError, as_xerrors, not_supported, text_of

_T = TypeVar("_T")

_MAX_UNSIGNED = 2**64 - 1
_SIGNED = 2**63
_MAX_INDEX = 2**32 - 1
_MAX_PATH_LENGTH = 100
_FLOAT_DIGITS = 6

# How many operands an operator has, at least and at most, and MySQL's error otherwise.
_OPERANDS = {
    "not": (1, 1, "Unary operations require exactly one operand in expression."),
    "!": (1, 1, "Unary operations require exactly one operand in expression."),
    "in": (2, None, "IN expression requires at least two parameters."),
    "not_in": (2, None, "IN expression requires at least two parameters."),
    "between": (3, 3, "BETWEEN expression requires exactly three parameters."),
    "not_between": (3, 3, "BETWEEN expression requires exactly three parameters."),
    "like": (2, 3, "LIKE expression requires exactly two or three parameters."),
    "not_like": (2, 3, "LIKE expression requires exactly two or three parameters."),
}
_LIST = 3  # with this many operands or more, `in` has a list of values
_BINARY = (2, 2, "Binary operations require exactly two operands in expression.")

# MySQL's operators that idalloc does not serve.
_REFUSED_NAMES = "xor cont_in not_cont_in overlaps not_overlaps regexp not_regexp cast div default date_add date_sub"
_REFUSED_SIGNS = "sign_plus sign_minus + - * / % & | ^ << >> ~"
_REFUSED = frozenset(f"{_REFUSED_NAMES} {_REFUSED_SIGNS}".split())

_AGGREGATES = frozenset({"avg", "count", "max", "min", "sum"})

_GEOMETRY = 1
_JSON = 2
_MAX_CONTENT_TYPE = 3


@dataclass(eq=False)
class Expressions:
    """Translates the expressions of one message."""

    args: Sequence[pb.Scalar]  # the values of placeholders
    schema: str  # of functions without one, for the error
    budget: Budget  # what the statement may still spend
    _: KW_ONLY
    # Whether they are the values of an update: an unknown column there is another error.
    in_update: bool = False
    # How many parts the expressions of ``value`` have for each document.
    parts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._read: dict[tuple[int, Callable[[pb.Scalar], Any]], tuple[Any, int]] = {}

    def node(self, expression: expr.Expr) -> Node:
        """Return the criteria of an expression.

        Raises:
            XError: It is invalid, or not supported.
        """
        if expression.type in (expr.EXPR_TYPE_LITERAL, expr.EXPR_TYPE_PLACEHOLDER):
            return self.read(expression, literal)
        if expression.type == expr.EXPR_TYPE_IDENT:
            return self._field(expression.identifier)
        if expression.type == expr.EXPR_TYPE_OPERATOR:
            return self._call(expression.operator)
        if expression.type == expr.EXPR_TYPE_OBJECT:
            return self._object(expression.object)
        if expression.type == expr.EXPR_TYPE_ARRAY:
            return ArrayOf(tuple(map(self.node, expression.array.value)))
        if expression.type == expr.EXPR_TYPE_FUNC_CALL:
            name = expression.function_call.name
            if name.name.lower() in _AGGREGATES and not name.schema_name:
                params = [param.operator.name for param in expression.function_call.param]
                raise not_supported(f"{name.name}({'*' if params == ['*'] else ''})")
            schema = name.schema_name or self.schema
            raise XError(1305, f"FUNCTION {schema}.{name.name} does not exist", "42000")
        raise XError(5153, "Mysqlx::Expr::Expr::VARIABLE is not supported yet")

    def value(self, node: Node) -> Run:
        """Return the function that evaluates an expression to JSON for a document.

        Raises:
            XError: It is not supported, or the expressions have too many parts.
        """
        with as_xerrors:
            if not (self.in_update and is_constant(node)):  # a constant is only written
                self.parts = cost.count_parts(node, before=self.parts)
            return json_of(node, Context(is_strict=self.in_update, check=self.budget.check))

    def read(self, expression: expr.Expr, function: Callable[[pb.Scalar], _T]) -> _T:
        """Apply a function to a literal or an argument; to an argument once for all its uses.

        Raises:
            XError: There is no such placeholder, or the function raises it.
            ArgumentsTooLarge: All uses of arguments together exceed the budget.
        """
        if expression.type == expr.EXPR_TYPE_LITERAL:
            return function(expression.literal)
        position = expression.position
        if not 0 <= position < len(self.args):
            raise XError(5154, "Invalid value of placeholder")
        known = self._read.get((position, function))
        if known is None:
            argument = self.args[position]
            known = self._read[position, function] = (function(argument), argument.ByteSize())
        value, size = known
        self.budget.count_argument(size)
        return cast(_T, value)

    def _field(self, identifier: expr.ColumnIdentifier) -> Node:
        if identifier.name == "_id" and not identifier.document_path:
            return Key()
        if identifier.name not in ("", "doc"):
            if self.in_update:
                raise XError(1054, f"Unknown column '{identifier.name}' in 'field list'", "42S22")
            raise XError(5117, f"Unknown column '{identifier.name}' in selection criteria")
        return Field(document_path(identifier.document_path))

    def _call(self, operator: expr.Operator) -> Node:
        name = operator.name
        if name in ("sign_minus", "sign_plus") and (number := self._signed(operator)) is not None:
            return number
        if name in _REFUSED:
            raise not_supported(f"operator {name}")
        if name not in OPERATORS:
            raise XError(5150, f"Invalid operator {name}")
        least, most, text = _OPERANDS.get(name, _BINARY)
        if not least <= len(operator.param) <= (most or len(operator.param)):
            raise XError(5151, text)
        call = Call(name, tuple(map(self.node, operator.param)))
        # MySQL would write these as invalid SQL, or with another meaning.
        if name in ("is", "is_not") and not _is_word(call.operands[1]):
            raise XError(1064, f"You have an error in your SQL syntax; {name} needs TRUE, FALSE or NULL", "42000")
        if name not in ("&&", "||", "not") and any(map(_is_not_in_array, call.operands)):
            raise not_supported(f"not in with an array inside of {name}")
        is_value = len(operator.param) > 0 and operator.param[0].type in (
            expr.EXPR_TYPE_PLACEHOLDER,
            expr.EXPR_TYPE_OPERATOR,
        )
        if is_value and _is_in_array(call):
            raise not_supported(f"{name} with an array and a value that is bound or computed")
        return call

    def _signed(self, operator: expr.Operator) -> Value | None:
        """Return a number with its sign, since a client may send a literal so; None otherwise."""
        node = self.node(operator.param[0]) if len(operator.param) == 1 else None
        if not isinstance(node, Value) or node.is_json or not isinstance(node.value, int | float | Decimal):
            return None
        if operator.name == "sign_plus" or isinstance(node.value, bool):
            return None if isinstance(node.value, bool) else node
        negative = -node.value
        return Value(Decimal(negative) if isinstance(negative, int) and abs(negative) >= _SIGNED else negative)

    def _object(self, expression: expr.ObjectExpr) -> Node:
        members = []
        for member in expression.fld:
            if not member.key:
                raise XError(5154, "Invalid key for Mysqlx::Expr::Object")
            members.append((member.key, self.node(member.value)))
        return ObjectOf(tuple(members))


def document_path(items: Sequence[expr.DocumentPathItem]) -> Path:
    """Return the members and indexes of a path.

    Raises:
        XError: It has a wildcard, or is too long.
    """
    if len(items) > _MAX_PATH_LENGTH:
        raise XError(3143, f"Invalid JSON path expression. It has more than {_MAX_PATH_LENGTH} items.", "42000")
    path: list[str | int] = []
    for item in items:
        if item.type == expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER:
            path.append(item.value)
        elif item.type == expr.DOCUMENT_PATH_ITEM_TYPE_ARRAY_INDEX:
            path.append(item.index & _MAX_INDEX)
        else:
            raise not_supported("wildcard in a document path")
    return tuple(path)


def literal(scalar: pb.Scalar) -> Value | NotJson:
    """Return a literal, with the type that its text has in MySQL's SQL.

    Raises:
        XError: A text is not UTF-8, or JSON does not have the number.
    """
    kind = scalar.type
    if kind == pb.SCALAR_TYPE_V_SINT:
        return Value(scalar.v_signed_int)
    if kind == pb.SCALAR_TYPE_V_UINT:
        return Value(scalar.v_unsigned_int & _MAX_UNSIGNED)
    if kind == pb.SCALAR_TYPE_V_STRING:
        return Value(text_of(scalar.v_string.value))
    if kind == pb.SCALAR_TYPE_V_OCTETS:
        return _octets(scalar.v_octets)
    if kind == pb.SCALAR_TYPE_V_BOOL:
        return Value(scalar.v_bool)
    if kind == pb.SCALAR_TYPE_V_DOUBLE:
        return Value(_number(scalar.v_double))
    if kind == pb.SCALAR_TYPE_V_FLOAT:
        return Value(_number(float(f"{scalar.v_float:.{_FLOAT_DIGITS}g}")))
    return Value(NULL)


def _number(number: float) -> int | Decimal | float:
    """Return a double as the number that its text is in SQL: a double only with an exponent."""
    if not math.isfinite(number):
        raise XError(5154, "Invalid value: JSON has no such number")
    text = number_text(number)
    return number if "e" in text else Decimal(text) if "." in text else int(text)


def _is_not_in_array(node: Node) -> bool:
    """Return whether a node is NOT JSON_CONTAINS(...), which MySQL writes without parentheses."""
    return isinstance(node, Call) and node.operator == "not_in" and _is_in_array(node)


def _is_in_array(call: Call) -> bool:
    operands = call.operands
    return call.operator in ("in", "not_in") and len(operands) < _LIST and isinstance(operands[1], ArrayOf)


def _is_word(node: Node) -> bool:
    return isinstance(node, Value) and not node.is_json and (node.value is NULL or isinstance(node.value, bool))


def check_content_type(octets: pb.Octets) -> None:
    """Check that MySQL knows a content type.

    Raises:
        XError: It is unknown.
    """
    content_type = octets.content_type & _MAX_INDEX
    if content_type > _MAX_CONTENT_TYPE:
        raise XError(5153, f"Invalid content type for Mysqlx::Datatypes::Scalar::Octets {content_type}")


def _octets(octets: pb.Octets) -> Value | NotJson:
    check_content_type(octets)
    if octets.content_type == _GEOMETRY:
        raise not_supported("content type GEOMETRY")
    text = text_of(octets.value)
    if octets.content_type != _JSON:
        return Value(text)
    try:
        return Value(parse(text), is_json=True)
    except InvalidJson as error:
        return NotJson(error)
