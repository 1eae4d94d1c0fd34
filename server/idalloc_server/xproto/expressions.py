"""Expressions of Mysqlx.Expr as criteria of the domain. They are checked whole before a document is read."""

import math
from collections.abc import Sequence

from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.documents.criteria import (
    NULL,
    OPERATORS,
    ArrayOf,
    Call,
    Field,
    Node,
    Null,
    ObjectOf,
    Path,
    Value,
)
from idalloc_server.documents.errors import InvalidJson
from idalloc_server.documents.json_text import Json, parse
from idalloc_server.xproto.errors import XError, not_supported

_MAX_UNSIGNED = 2**64 - 1
_MAX_INDEX = 2**32 - 1
_MAX_PATH_LENGTH = 100

# How many operands the operators other than binary ones have.
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
_BINARY = (2, 2, "Binary operations require exactly two operands in expression.")

# MySQL's operators that idalloc does not serve.
_REFUSED_NAMES = "xor cont_in not_cont_in overlaps not_overlaps regexp not_regexp cast div default date_add date_sub"
_REFUSED_SIGNS = "sign_plus sign_minus + - * / % & | ^ << >> ~"
_REFUSED = frozenset(f"{_REFUSED_NAMES} {_REFUSED_SIGNS}".split())

_AGGREGATES = frozenset({"avg", "count", "max", "min", "sum"})

_TEXT, _JSON = 0, 2
_MAX_CONTENT_TYPE = 3


class Expressions:
    """Translates the expressions of one message.

    Args:
        args: The values of its placeholders.
        schema: The schema of functions without one, for the error.
        in_update: Whether an unknown column is an error of an update's value.
    """

    def __init__(self, args: Sequence[pb.Scalar], schema: str, *, in_update: bool = False) -> None:
        self._args = args
        self._schema = schema
        self._in_update = in_update

    def node(self, expression: expr.Expr) -> Node:
        """Return an expression in the domain's form.

        Raises:
            XError: It is invalid, or not supported.
        """
        if expression.type in (expr.EXPR_TYPE_LITERAL, expr.EXPR_TYPE_PLACEHOLDER):
            return Value(scalar_value(self.scalar(expression)))
        if expression.type == expr.EXPR_TYPE_IDENT:
            return self._field(expression.identifier)
        if expression.type == expr.EXPR_TYPE_OPERATOR:
            return self._call(expression.operator)
        if expression.type == expr.EXPR_TYPE_OBJECT:
            return self._object(expression.object)
        if expression.type == expr.EXPR_TYPE_ARRAY:
            items = tuple(map(self.node, expression.array.value))
            values = [_json(item) for item in items if isinstance(item, Value)]
            return Value(values) if len(values) == len(items) else ArrayOf(items)
        if expression.type == expr.EXPR_TYPE_FUNC_CALL:
            name = expression.function_call.name
            if name.name.lower() in _AGGREGATES and not name.schema_name:
                raise not_supported(f"{name.name}({_star(expression.function_call.param)})")
            schema = name.schema_name or self._schema
            raise XError(1305, f"FUNCTION {schema}.{name.name} does not exist", "42000")
        raise XError(5153, "Mysqlx::Expr::Expr::VARIABLE is not supported yet")

    def scalar(self, expression: expr.Expr) -> pb.Scalar:
        """Return a literal, or the value of a placeholder.

        Raises:
            XError: There is no such placeholder.
        """
        if expression.type == expr.EXPR_TYPE_LITERAL:
            return expression.literal
        if not 0 <= expression.position < len(self._args):
            raise XError(5154, "Invalid value of placeholder")
        return self._args[expression.position]

    def _field(self, identifier: expr.ColumnIdentifier) -> Field:
        if identifier.name == "_id" and not identifier.document_path:
            return Field(("_id",))
        if identifier.name not in ("", "doc"):
            if self._in_update:
                raise XError(1054, f"Unknown column '{identifier.name}' in 'field list'", "42S22")
            raise XError(5117, f"Unknown column '{identifier.name}' in selection criteria")
        return Field(document_path(identifier.document_path))

    def _call(self, operator: expr.Operator) -> Node:
        name = operator.name
        if name in ("sign_minus", "sign_plus") and len(operator.param) == 1:
            number = self.node(operator.param[0])  # a client may send a negative literal so
            if isinstance(number, Value) and type(number.value) in (int, float):
                assert isinstance(number.value, int | float)  # noqa: S101 - for mypy
                return Value(-number.value if name == "sign_minus" else number.value)
        if name in _REFUSED:
            raise not_supported(f"operator {name}")
        if name not in OPERATORS:
            raise XError(5150, f"Invalid operator {name}")
        least, most, text = _OPERANDS.get(name, _BINARY)
        if not least <= len(operator.param) <= (most or len(operator.param)):
            raise XError(5151, text)
        return Call(name, tuple(map(self.node, operator.param)))

    def _object(self, expression: expr.ObjectExpr) -> Node:
        members = []
        for field in expression.fld:
            if not field.key:
                raise XError(5154, "Invalid key for Mysqlx::Expr::Object")
            members.append((field.key, self.node(field.value)))
        if all(isinstance(member, Value) for _, member in members):
            return Value({name: _json(member) for name, member in members if isinstance(member, Value)})
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


def scalar_value(scalar: pb.Scalar) -> Json | Null:
    """Return the value of a literal.

    Raises:
        XError: It is a text that is not UTF-8, a JSON text that is not JSON, or a number that JSON does not have.
    """
    kind = scalar.type
    if kind == pb.SCALAR_TYPE_V_SINT:
        return scalar.v_signed_int
    if kind == pb.SCALAR_TYPE_V_UINT:
        return scalar.v_unsigned_int & _MAX_UNSIGNED
    if kind == pb.SCALAR_TYPE_V_STRING:
        return text_of(scalar.v_string.value)
    if kind == pb.SCALAR_TYPE_V_OCTETS:
        return _octets(scalar.v_octets)
    if kind == pb.SCALAR_TYPE_V_BOOL:
        return scalar.v_bool
    if kind in (pb.SCALAR_TYPE_V_DOUBLE, pb.SCALAR_TYPE_V_FLOAT):
        number = scalar.v_double if kind == pb.SCALAR_TYPE_V_DOUBLE else scalar.v_float
        if not math.isfinite(number):
            raise XError(5154, "Invalid value: JSON has no such number")
        return number
    return NULL


def text_of(content: bytes) -> str:
    """Return a text.

    Raises:
        XError: It is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise XError(1300, f"Invalid utf8mb4 character string: '{content[error.start :][:6].hex().upper()}'") from None


def check_content_type(octets: pb.Octets) -> None:
    """Refuse a content type that MySQL does not know.

    Raises:
        XError: It is unknown.
    """
    content_type = octets.content_type & _MAX_INDEX
    if content_type > _MAX_CONTENT_TYPE:
        raise XError(5153, f"Invalid content type for Mysqlx::Datatypes::Scalar::Octets {content_type}")


def _octets(octets: pb.Octets) -> Json:
    check_content_type(octets)
    text = text_of(octets.value)
    if octets.content_type != _JSON:
        return text
    try:
        return parse(text)
    except InvalidJson as error:
        raise XError(
            3141,
            f'Invalid JSON text in argument 1 to function cast_as_json: "{error.reason}" at position {error.position}.',
            "22032",
        ) from None


def _star(params: Sequence[expr.Expr]) -> str:
    """Return the star of a call such as ``count(*)``, or an empty text."""
    return "*" if [param.operator.name for param in params] == ["*"] else ""


def _json(value: Value) -> Json:
    return None if isinstance(value.value, Null) else value.value
