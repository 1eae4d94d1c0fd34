"""Statements of the X Protocol that are small, and would take a server much work or memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import Message

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto import frames
from tests.xproto.support.client import XClient, insert, literal

# The largest message of a server with the defaults, less what a frame needs besides its rows or
# arguments.
ROOM = 4 * 2**20 - 100
MEGABYTE = 10**6
DOCUMENTS = 20_000


class Attack(NamedTuple):
    """A statement, and how it must end."""

    message: Callable[[], bytes]  # returns its frame
    code: int  # the error's code; 0 for none
    is_slow: bool = False  # whether it takes more than a quarter of a second


def member(*names: str) -> expr.Expr:
    """Return a field of the document, or the whole document."""
    path = [expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value=name) for name in names]
    return expr.Expr(type=expr.EXPR_TYPE_IDENT, identifier=expr.ColumnIdentifier(document_path=path))


def operator(name: str, *operands: expr.Expr) -> expr.Expr:
    """Return an operator."""
    return expr.Expr(type=expr.EXPR_TYPE_OPERATOR, operator=expr.Operator(name=name, param=operands))


def placeholder(position: int) -> expr.Expr:
    """Return a placeholder."""
    return expr.Expr(type=expr.EXPR_TYPE_PLACEHOLDER, position=position)


def any_of(conditions: Sequence[expr.Expr]) -> expr.Expr:
    """Return whether a condition holds, as a balanced tree: protobuf limits the nesting."""
    while len(conditions) > 1:
        pairs = [conditions[start : start + 2] for start in range(0, len(conditions), 2)]
        conditions = [operator("||", *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return conditions[0]


def find(
    schema: str = "large",
    *,
    criteria: expr.Expr | None = None,
    order: Iterable[expr.Expr] = (),
    projection: Iterable[expr.Expr] = (),
    args: Iterable[pb.Scalar] = (),
) -> crud.Find:
    """Return a find in the collection ``c``."""
    message = crud.Find(
        collection=crud.Collection(schema=schema, name="c"),
        order=[crud.Order(expr=each) for each in order],
        projection=[crud.Projection(source=each, alias=f"m{number}") for number, each in enumerate(projection)],
        args=args,
    )
    if criteria is not None:
        message.criteria.CopyFrom(criteria)
    return message


def _framed(make: Callable[[], Message]) -> Callable[[], bytes]:
    kinds = {cls: kind for kind, cls in frames.CLIENT_MESSAGES.items()}

    def frame() -> bytes:
        message = make()
        return frames.frame(kinds[type(message)], message)

    return frame


def _like_many() -> Message:
    """20,000 ``_`` before a character that the text does not have."""
    return find(criteria=operator("like", member("text"), literal(f"%{'_' * 20_000}y%")))


def _like_alternating() -> Message:
    return find(criteria=operator("like", member("text"), literal(f"%{'x_' * 20_000}y%")))


def _one_argument_in_many_rows() -> Message:
    text = f'{{"text": "{"x" * MEGABYTE}"}}'
    message = insert(schema="large")
    message.row.extend([crud.InsertRow(field=[placeholder(0)])] * 100)
    message.args.append(literal(text).literal)
    return message


def _one_argument_in_many_places() -> Message:
    uses = [operator("==", member("text"), placeholder(0)) for _ in range(1_000)]
    return find(criteria=any_of(uses), args=[literal("x" * MEGABYTE).literal])


def _document_400_times() -> Message:
    return find(projection=[member()] * 400)


def _document_set_200_times() -> Message:
    operations = []
    for number in range(200):
        path = [expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value=f"m{number}")]
        source = expr.ColumnIdentifier(document_path=path)
        operations.append(crud.UpdateOperation(source=source, operation=crud.UPDATE_TYPE_ITEM_SET, value=member()))
    return crud.Update(collection=crud.Collection(schema="large", name="c"), operation=operations)


def _400_order_items() -> Message:
    return find("many", order=[member("text")] * 400)


def _large_order_keys() -> Message:
    return find("many", order=[member("text")] * 300)


def _many_parts() -> Message:
    return find("many", criteria=any_of([operator("==", member("n"), member("text"))] * 4_096))


def _empty_values() -> Message:
    return insert(f'{{"n": [{"[]," * 1_300_000}1]}}', schema="large")


def _objects() -> Message:
    return insert(f'{{"n": [{"{}," * 1_300_000}1]}}', schema="large")


def _values_in_many_documents() -> Message:
    texts = [f'{{"_id": 1, "n": [{"[]," * 49_000}1]}}' for _ in range(27)]
    return insert(*texts, schema="large")


def _removals() -> Message:
    path = [expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value="a")]
    removal = crud.UpdateOperation(
        source=expr.ColumnIdentifier(document_path=path), operation=crud.UPDATE_TYPE_ITEM_REMOVE
    )
    return crud.Update(collection=crud.Collection(schema="many", name="c"), operation=[removal] * 100_000)


def _repeated(item: bytes) -> Callable[[], bytes]:
    """Return an insert that repeats an item, up to the largest message."""

    def frame() -> bytes:
        head = crud.Insert(collection=crud.Collection(schema="large", name="c")).SerializeToString()
        return frames.frame(18, head + item * (ROOM // len(item)))

    return frame


def _nested_rows() -> bytes:
    """Return an insert of one row with as many empty fields as fit."""
    head = crud.Insert(collection=crud.Collection(schema="large", name="c")).SerializeToString()
    fields = b"\x0a\x02\x08\x02" * ((ROOM - 10) // 4)
    return frames.frame(18, head + b"\x22" + frames.unsigned_field(len(fields)) + fields)


ATTACKS = {
    "like with many _": Attack(_framed(_like_many), 0),
    "like with many texts between _": Attack(_framed(_like_alternating), 1235),
    "one argument in 100 rows": Attack(_framed(_one_argument_in_many_rows), 1153),
    "one argument in 1,000 places": Attack(_framed(_one_argument_in_many_places), 1153),
    "the document 400 times in a row": Attack(_framed(_document_400_times), 1301),
    "the document set 200 times in itself": Attack(_framed(_document_set_200_times), 3150),
    "400 order items": Attack(_framed(_400_order_items), 1038, is_slow=True),
    "texts as 300 order items": Attack(_framed(_large_order_keys), 1038, is_slow=True),
    "12,287 parts of criteria": Attack(_framed(_many_parts), 1104, is_slow=True),
    "1,300,000 arrays in a document": Attack(_framed(_empty_values), 3150, is_slow=True),
    "1,300,000 objects in a document": Attack(_framed(_objects), 3150),
    "1,300,000 arrays in 27 documents": Attack(_framed(_values_in_many_documents), 5116, is_slow=True),
    "100,000 changes": Attack(_framed(_removals), 1104, is_slow=True),
    "empty rows": Attack(_repeated(b"\x22\x00"), 1105),
    "arguments that are NULL": Attack(_repeated(b"\x2a\x02\x08\x03"), 1390, is_slow=True),
    "unknown fields": Attack(_repeated(b"\xa0\x06\x00"), 1153, is_slow=True),
    "many fields in a row": Attack(_nested_rows, 1153, is_slow=True),
}


async def prepare(client: XClient, many: int = DOCUMENTS) -> None:
    """Create the schemas ``large``, with a large document, and ``many``, with ``many`` of them."""
    for schema in ("large", "many"):
        await client.create_collection(schema)
    assert (await client.add(f'{{"text": "{"x" * MEGABYTE}"}}', schema="large")).code == 0
    for start in range(0, many, 10_000):
        texts = [f'{{"n": {number}, "text": "{number:0100}"}}' for number in range(start, min(start + 10_000, many))]
        assert (await client.add(*texts, schema="many")).code == 0
