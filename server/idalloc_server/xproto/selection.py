"""Which documents a statement is about: its criteria, order and limit."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.domain.documents import errors
from idalloc_server.domain.documents.criteria import Node, SortKey, evaluate, keys_of
from idalloc_server.domain.documents.criteria import matches as meets
from idalloc_server.domain.documents.json_text import Json, load
from idalloc_server.domain.documents.protocol import Document
from idalloc_server.xproto.errors import XError
from idalloc_server.xproto.expressions import Expressions

# The most documents that a statement sorts, in memory.
MAX_SORTED_DOCUMENTS = 100_000

_MAX_UNSIGNED = 2**64 - 1


class Selection(NamedTuple):
    """Which documents a statement is about, and in which order.

    Attributes:
        criteria: The condition; None for all.
        order: The expressions to sort by, and whether descending.
        limit: The most documents; None for all.
        offset: How many to skip first.
    """

    criteria: Node | None
    order: Sequence[tuple[Node, bool]]
    limit: int | None
    offset: int

    @property
    def keys(self) -> frozenset[str] | None:
        """The only keys that can meet the condition; None if it does not name them."""
        return None if self.criteria is None else keys_of(self.criteria)

    def chosen(self, documents: Iterable[Document]) -> Iterator[tuple[Document, dict[str, Json]]]:
        """Yield the documents with their contents."""
        matched = self.matched(documents)
        if self.order:
            matched = iter(self.sorted(list(_bounded(matched))))
        end = None if self.limit is None else self.offset + self.limit
        for index, document in enumerate(matched):
            if end is not None and index >= end:
                return
            if index >= self.offset:
                yield document

    def matched(self, documents: Iterable[Document]) -> Iterator[tuple[Document, dict[str, Json]]]:
        """Yield the documents that meet the condition."""
        for document in documents:
            content = load(document.text)
            if self.criteria is None or meets(self.criteria, content):
                yield document, content

    def sorted(self, matched: list[tuple[Document, dict[str, Json]]]) -> Sequence[tuple[Document, dict[str, Json]]]:
        """Return documents in their order."""
        for node, descending in reversed(self.order):

            def key(each: tuple[Document, dict[str, Json]], node: Node = node) -> SortKey:
                return SortKey(evaluate(node, each[1]))

            matched.sort(key=key, reverse=descending)
        return matched


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


def _bounded(
    matched: Iterable[tuple[Document, dict[str, Json]]],
) -> Iterator[tuple[Document, dict[str, Json]]]:
    for index, each in enumerate(matched):
        if index >= MAX_SORTED_DOCUMENTS:
            raise errors.TooManyToSort
        yield each
