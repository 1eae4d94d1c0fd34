"""Random criteria, orders and projections, and the collections that they select from.

A seed makes the same cases on each machine. ``criteria_answers`` has what MySQL answers.
"""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple, TypeVar

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto.documents.json_text import Json

_T = TypeVar("_T")

SCHEMA = "criteria"
COLLECTIONS = 60
DOCUMENTS = 9  # of a collection

_INTEGERS = [0, 1, -1, 2, 10, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
_DOUBLES = [0.0, 1.0, -1.0, 0.1, 1.5, -0.5, 2.5e15, 1e20, 9007199254740992.0, 1.8446744073709552e19, 1e300, 1e-5, 1e-20]
_TEXTS = [
    "", "a", "A", "b", "ab", "a ", "1", "1.0", "01", " 1", "1 ", "1x", "2", "10", "-1", "true", "false", "null", "0",
    "0.1", "9007199254740993", "18446744073709551615", "1e1", "1e400", ".5", "é", "e\u0301", "😀", "a%", "a_", "%",
    "\\", "[1]", "[1, 2]", '{"a": 1}', '"a"', "a\n", "x" * 40,
]  # fmt: skip
_ARRAYS: list[Json] = [[], [1], [1, 2], ["a"], [[1]], [None], [2], ["1"], [True], [1.0], [{"a": 1}], ["b", "a"], [0.1]]
_OBJECTS: list[Json] = [{}, {"a": 1}, {"b": 1}, {"a": "1"}, {"a": 1, "b": 2}, {"a": [1]}, {"a": None}, {"a": 1.0}]
_WORDS = [True, False, None]
_PLAIN_KINDS: tuple[Sequence[Json], ...] = (_INTEGERS, _INTEGERS, _DOUBLES, _TEXTS, _TEXTS, _WORDS)
_KINDS: tuple[Sequence[Json], ...] = (*_PLAIN_KINDS, _ARRAYS, _OBJECTS)
_PATTERNS = ["%", "a%", "%a", "_", "1%", "%1%", "a\\%", "A", '"a"', "[1%", "__", "%.%", "", "1", "a_", "é", "x%x"]
_ESCAPES = ["ab", "a", "\\", "|", "", "%", 1, None, True]
_PATHS = [
    ("a",), ("b",), ("c",), ("a",), ("b",), ("_id",), ("_id",), ("o", "x"), ("l",), ("l", 0), ("l", 1), ("a", 0),
    ("a", "a"), (), ("none",), ("o",), ("_id", 0),
]  # fmt: skip

_DEEPEST = 3  # how deep conditions are inside of others
OPERATORS = {
    "==": 2, "!=": 2, "<": 2, "<=": 2, ">": 2, ">=": 2, "&&": 2, "||": 2, "not": 1, "!": 1, "is": 2, "is_not": 2,
    "in": 0, "not_in": 0, "between": 3, "not_between": 3, "like": 2, "not_like": 2,
}  # fmt: skip


class Case(NamedTuple):
    """A statement, and the index of the collection that it is about."""

    collection: int
    message: crud.Find | crud.Delete


def collections(seed: int) -> list[list[dict[str, Json]]]:
    """Return the documents of each collection, in the order of their keys."""
    chance = random.Random(f"collections {seed}")
    return [_documents(chance) for _ in range(COLLECTIONS)]


def cases(seed: int, count: int) -> Iterator[Case]:
    """Yield finds, and delete."""
    chance = _Chance(seed)
    for _ in range(count):
        yield chance.case()


def _documents(chance: random.Random) -> list[dict[str, Json]]:
    documents: dict[str, dict[str, Json]] = {}
    while len(documents) < DOCUMENTS:
        document: dict[str, Json] = {"_id": _id(chance)}
        for name in "abc":
            if chance.random() > 0.12:
                document[name] = _value(chance)
        if chance.random() < 0.5:
            document["o"] = {"x": _value(chance)}
        if chance.random() < 0.6:
            document["l"] = [_value(chance) for _ in range(chance.randrange(4))]
        given = document["_id"]
        documents.setdefault(given if isinstance(given, str) else json.dumps(given), document)
    return [documents[key] for key in sorted(documents)]


def _id(chance: random.Random) -> Json:
    kinds: list[Sequence[Json]] = [_TEXTS, _TEXTS, _INTEGERS, _WORDS, [0.1, 1.5], _ARRAYS[:4], _OBJECTS[:4]]
    given = chance.choice(chance.choice(kinds))
    return given if len(json.dumps(given)) <= 32 else "long"


def _value(chance: random.Random) -> Json:
    return chance.choice(chance.choice(_KINDS))


class _Chance:
    """Makes the cases of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"cases {seed}").random
        self._all = self._operators = list(OPERATORS)
        self._args: list[pb.Scalar] = []
        self._has_key = True
        self._may_be_invalid = False  # which of two errors is first is not compared

    def case(self) -> Case:
        """Return the next case."""
        self._args = []
        collection = int(self._random() * COLLECTIONS)
        name = crud.Collection(schema=SCHEMA, name=f"c{collection}")
        if self._is(0.15):
            return Case(collection, self._delete(name))
        find = crud.Find(collection=name, data_model=crud.DATA_MODEL_DOCUMENT)
        is_ordered, is_projected = self._is(0.2), self._is(0.15)
        self._may_be_invalid = not (is_ordered or is_projected)
        if self._is(0.9):
            find.criteria.CopyFrom(self._call(0) if self._is(0.98) else self._operand(1))
        if is_ordered:
            for _ in range(1 + self._is(0.3)):
                find.order.append(crud.Order(expr=self._value(), direction=self._direction()))
            find.order.append(crud.Order(expr=_column("_id"), direction=self._direction()))
        if is_projected:
            aliases = ["p", "q", "r"][: 1 + int(self._random() * 3)]
            find.projection.extend(crud.Projection(alias=alias, source=self._value()) for alias in aliases)
        find.args.extend(self._args)
        return Case(collection, find)

    def _delete(self, name: crud.Collection) -> crud.Delete:
        """Return a delete.

        Its errors are those of the documents that MySQL reads, and depend on its optimizer. So it
        has no condition as an operand of a comparison, no constant beside other conditions, and no
        ``_id`` there.
        """
        self._has_key = self._is(0.6)
        self._operators = [name for name in OPERATORS if name not in ("&&", "||")]
        criteria = self._call(_DEEPEST)
        for operator in ("&&", "||"):
            if not self._has_key and self._is(0.5):
                params = [criteria, self._call(_DEEPEST)]
                criteria = expr.Expr(type=expr.EXPR_TYPE_OPERATOR, operator=expr.Operator(name=operator, param=params))
        self._has_key, self._operators = True, self._all
        return crud.Delete(collection=name, data_model=crud.DATA_MODEL_DOCUMENT, criteria=criteria, args=self._args)

    def _is(self, share: float) -> bool:
        return self._random() < share

    def _choice(self, items: Sequence[_T]) -> _T:
        return items[int(self._random() * len(items))]

    def _direction(self) -> crud.OrderDirection.ValueType:
        return crud.ORDER_DIRECTION_DESC if self._is(0.5) else crud.ORDER_DIRECTION_ASC

    def _value(self) -> expr.Expr:
        return self._call(1) if self._is(0.3) else self._field() if self._is(0.8) else self._operand(1)

    def _call(self, depth: int) -> expr.Expr:
        name = self._choice(self._operators)
        count = OPERATORS[name] or 2 + int(self._random() * 4)
        if OPERATORS[name] or count == 2 or self._is(0.1):
            params = [self._operand(depth) for _ in range(count)]
        else:
            params = [self._scalar(_PLAIN_KINDS) if self._is(0.6) else self._field() for _ in range(count)]
        if name in ("in", "not_in") and count == 2 and self._is(0.4):
            params = [self._field() if self._is(0.7) else self._operand(depth), self._array()]
        elif name in ("is", "is_not") and self._is(0.95):
            params[1] = _literal(self._choice(_WORDS))
        elif name in ("like", "not_like"):
            if self._is(0.8):
                params[1] = _literal(self._choice(_PATTERNS))
            if self._is(0.1):
                params.append(_literal(self._choice(_ESCAPES[depth > 0 :])))
        is_field_needed = depth == _DEEPEST or (self._is(0.6) and name not in ("is", "is_not", "like", "not_like"))
        if is_field_needed and not any(each.type == expr.EXPR_TYPE_IDENT for each in params):
            params[0] = self._field()
        return expr.Expr(type=expr.EXPR_TYPE_OPERATOR, operator=expr.Operator(name=name, param=params))

    def _array(self) -> expr.Expr:
        items = [self._operand(_DEEPEST) for _ in range(int(self._random() * 3))]
        return expr.Expr(type=expr.EXPR_TYPE_ARRAY, array=expr.ArrayExpr(value=items))

    def _operand(self, depth: int) -> expr.Expr:
        roll = self._random()
        if roll < 0.45:
            return self._field()
        if roll < 0.84 or depth >= _DEEPEST:
            return self._scalar()
        if roll < 0.845 and depth == 0 and self._may_be_invalid:
            return _octets("[1", 2)
        if roll < 0.90:
            return self._array()
        if roll < 0.94:
            fields = [
                expr.ObjectExprField(key=key, value=self._operand(_DEEPEST))
                for key in self._choice(["", "a", "b", "ab", "ba"])
            ]
            return expr.Expr(type=expr.EXPR_TYPE_OBJECT, object=expr.ObjectExpr(fld=fields))
        return self._call(depth + 1)

    def _field(self) -> expr.Expr:
        if self._has_key and self._is(0.03):
            return _column(self._choice(["_id", "doc"]))
        return self._choice(_FIELDS if self._has_key else _FIELDS_WITHOUT_KEY)

    def _scalar(self, kinds: Sequence[Sequence[Json]] = _KINDS) -> expr.Expr:
        value = self._choice(self._choice(kinds))
        if isinstance(value, list | dict) or (kinds is _KINDS and self._is(0.05)):
            literal = _octets(json.dumps(value), 2)
        elif isinstance(value, str) and self._is(0.05):
            literal = _octets(value, self._choice([0, 3]))
        else:
            literal = _literal(value, single=isinstance(value, float) and abs(value) < 1e30 and self._is(0.2))
            if isinstance(value, int | float) and not isinstance(value, bool) and self._is(0.1):
                return expr.Expr(
                    type=expr.EXPR_TYPE_OPERATOR, operator=expr.Operator(name="sign_minus", param=[literal])
                )
        if not self._is(0.1):
            return literal
        self._args.append(literal.literal)
        return expr.Expr(type=expr.EXPR_TYPE_PLACEHOLDER, position=len(self._args) - 1)


@cache
def _column(name: str) -> expr.Expr:
    return expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier(name=name))


@cache
def _field(path: tuple[str | int, ...]) -> expr.Expr:
    items = [
        expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value=step)
        if isinstance(step, str)
        else expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_ARRAY_INDEX, index=step)
        for step in path
    ]
    return expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier(document_path=items))


_FIELDS = list(map(_field, _PATHS))
_FIELDS_WITHOUT_KEY = [_field(path) for path in _PATHS if path and path[0] != "_id"]


@lru_cache(maxsize=None, typed=True)
def _literal(value: object, *, single: bool = False) -> expr.Expr:
    scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_NULL)
    if isinstance(value, bool):
        scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_BOOL, v_bool=value)
    elif isinstance(value, int) and value < 2**63:
        scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_SINT, v_signed_int=value)
    elif isinstance(value, int):
        scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_UINT, v_unsigned_int=value - 2**64)
    elif isinstance(value, float) and single:
        scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_FLOAT, v_float=value)
    elif isinstance(value, float):
        scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_DOUBLE, v_double=value)
    elif isinstance(value, str):
        scalar = pb.Scalar(type=pb.SCALAR_TYPE_V_STRING, v_string=pb.Text(value=value.encode()))
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=scalar)


@cache
def _octets(text: str, content_type: int) -> expr.Expr:
    octets = pb.Octets(value=text.encode(), content_type=content_type)
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=pb.Scalar(type=pb.SCALAR_TYPE_V_OCTETS, v_octets=octets))
