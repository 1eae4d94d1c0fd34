"""Statements on collections: Insert, Find, Update and Delete of Mysqlx.Crud."""

import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from google.protobuf.message import Message

from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc.xprotocol.v1 import statement_pb2
from idalloc_server.notices.generated_ids import doc_ids_frame
from idalloc_xproto import frames
from idalloc_xproto.caller import Caller
from idalloc_xproto.documents import cost, errors
from idalloc_xproto.documents.changes import Change, Kind, apply_changes
from idalloc_xproto.documents.cost import Budget
from idalloc_xproto.documents.criteria import Field, Node, Null, Value
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.evaluation import Context, Run, compile_node
from idalloc_xproto.documents.json_text import Json, dump, key_of, load, parse
from idalloc_xproto.documents.protocol import PAGE_TEXT, Documents, Inserted
from idalloc_xproto.documents.selection import Chooser, Selection
from idalloc_xproto.documents.side_thread import LEAST_STEPS, SideThread
from idalloc_xproto.expressions import Expressions, check_content_type, document_path
from idalloc_xproto.mysql_errors import XError, as_xerrors, no_schema, not_supported, text_of
from idalloc_xproto.names import check_names
from idalloc_xproto.operations import ADD, FIND, MODIFY, REMOVE, REPLACE

_MAX_UNSIGNED = 2**64 - 1
_LONGEST_DOCUMENT = 2**32 - 1  # MySQL's length of a JSON column
# Content types of octets.
_TEXT = 0
_JSON = 2
# What a document without an ``_id`` has until its id is generated. It is longer than an ``_id``,
# and no client knows it.
_MARK = secrets.token_hex()

_KINDS = {
    crud.UPDATE_TYPE_ITEM_SET: Kind.SET,
    crud.UPDATE_TYPE_ITEM_REPLACE: Kind.REPLACE,
    crud.UPDATE_TYPE_ITEM_REMOVE: Kind.REMOVE,
    crud.UPDATE_TYPE_MERGE_PATCH: Kind.PATCH,
}
_REFUSED_KINDS = {
    crud.UPDATE_TYPE_ARRAY_INSERT: "array_insert",
    crud.UPDATE_TYPE_ARRAY_APPEND: "array_append",
    crud.UPDATE_TYPE_ITEM_MERGE: "item_merge",
}


@dataclass(eq=False)
class Collections:
    """Runs the statements of Mysqlx.Crud."""

    documents: Documents  # the store
    max_message_bytes: int  # of the largest message, row and changed document
    thread: SideThread  # parses large statements
    added: int = field(default=0, init=False)  # how many documents were added

    def execute(self, message: Message, caller: Caller) -> Coroutine[Any, Any, None]:
        """Run a Find, Insert, Update or Delete; send its reply's frames up to StmtExecuteOk.

        Raises:
            XError: The statement failed. Frames before it may have been sent.
            StoreFailure: The store failed.
        """
        match message:
            case crud.Insert():
                return self._insert(message, caller)
            case crud.Find():
                return self._find(message, caller)
            case crud.Update():
                return self._update(message, caller)
            case crud.Delete():
                return self._delete(message, caller)
        raise XError(1047, "Unexpected message received")

    async def _insert(self, message: crud.Insert, caller: Caller) -> None:
        schema, name = _collection(message, caller)
        caller.rights.require(ADD, schema, name)
        _check_rows(message)
        expressions = Expressions(message.args, schema, self._budget(caller))
        steps = cost.steps_of_message(message.ByteSize())
        with as_xerrors:
            try:
                documents = await self.thread.run(steps, _rows, message, expressions, collection=name)
            except (XError, errors.DocumentsError):
                await self.documents.check(schema, name)  # its error takes precedence
                raise
            wanted = sum([document.key == _MARK for document in documents])
            doc_ids = await caller.generate_ids(wanted, len(documents) - wanted)
            try:
                documents = await self.thread.run(steps, _with_ids, documents, doc_ids)
                inserted = await self._store(schema, name, documents, caller, replaces=message.upsert)
            except BaseException:
                if doc_ids:
                    caller.burn_ids(len(doc_ids))
                raise
        self.added += inserted.added
        if len(documents) > 1:
            text = f"Records: {len(documents)}  Duplicates: {inserted.replaced}  Warnings: 0"
            await caller.send(frames.produced_message(text))
        await caller.send(frames.rows_affected(inserted.added + 2 * inserted.replaced))
        if doc_ids:
            await caller.send(doc_ids_frame(doc_ids))
        await caller.send(frames.DONE_EXECUTING)

    async def _store(
        self, schema: str, name: str, documents: Sequence[Document], caller: Caller, *, replaces: bool
    ) -> Inserted:
        """Add documents. An upsert that replaces one is an administrative operation."""
        try:
            return await self.documents.insert(schema, name, documents)
        except errors.DuplicateKey:
            if not replaces:
                raise
        with caller.rights.audited(REPLACE, schema, name) as record, as_xerrors:
            inserted = await self.documents.insert(schema, name, documents, upsert=True)
            record["changed"] = inserted.replaced
            return inserted

    async def _find(self, message: crud.Find, caller: Caller) -> None:
        schema, name = _collection(message, caller)
        caller.rights.require(FIND, schema, name)
        if message.HasField("locking_options") and not message.HasField("locking"):
            raise XError(5169, 'Invalid "find" message, "locking" field is required when "locking_options" is set.')
        if message.grouping or message.HasField("grouping_criteria"):
            raise not_supported("grouping")
        expressions = Expressions(message.args, schema, self._budget(caller))
        steps = cost.steps_of_message(message.ByteSize())
        with as_xerrors:
            projection = await self.thread.run(steps, projection_of, message.projection, expressions)
            selection = await self.thread.run(steps, selection_of, message, expressions)
            await self.documents.check(schema, name)
            await caller.send(_document_column(schema, name, projected=projection is not None))
            texts = self._found(schema, name, selection, projection=projection, of_projection=expressions.parts)
            async for text in texts:
                await caller.send(frames.row([frames.text_field(text)]))
        await caller.send(frames.DONE_FETCHING)
        await caller.send(frames.DONE_EXECUTING)

    async def _found(
        self, schema: str, name: str, selection: Selection, *, projection: Run | None, of_projection: int
    ) -> AsyncIterator[str]:
        """Yield what a find returns of each chosen document.

        ``of_projection`` is the number of parts of its projection.
        """
        budget = selection.budget

        def texts(documents: Iterable[Document]) -> Iterator[str]:
            for document in documents:
                if projection is None:
                    yield document.text
                else:
                    budget.count_read(document, of_projection)
                    yield budget.row_text(projection(load(document.text)))

        chooser = Chooser(selection)
        after = None
        while not chooser.is_done and (page := await self.documents.page(schema, name, after, selection.keys)):
            budget.check()
            steps = cost.steps_of_parts(page, selection.parts + of_projection)
            async for text in self._in_turns(steps, texts(chooser.choose(page)), budget):
                yield text
            after = page[-1].key
        if selection.order:
            chosen = await self.thread.run(LEAST_STEPS, chooser.sorted)
            async for text in self._in_turns(LEAST_STEPS, texts(chosen), budget):
                yield text

    async def _in_turns(self, steps: int, texts: Iterator[str], budget: Budget) -> AsyncIterator[str]:
        """Yield texts, which are made a few at a time: they neither fill memory nor block tasks."""
        while turn := await self.thread.run(steps, _turn, texts):
            with budget.paused():  # the client may read slowly
                for text in turn:
                    yield text

    async def _update(self, message: crud.Update, caller: Caller) -> None:
        schema, name = _collection(message, caller)
        budget = self._budget(caller)
        expressions = Expressions(message.args, schema, budget)
        steps = cost.steps_of_message(message.ByteSize())
        with caller.rights.audited(MODIFY, schema, name) as record, as_xerrors:
            values = Expressions(message.args, schema, budget, in_update=True)
            changes = await self.thread.run(steps, _changes, message, values)
            selection = await self.thread.run(steps, selection_of, message, expressions, may_skip=False)
            change = partial(apply_changes, changes=changes, budget=budget)
            done = await self.documents.rewrite(schema, name, selection, change)
            record["changed"] = done.changed
        text = f"Rows matched: {done.matched}  Changed: {done.changed}  Warnings: 0"
        await caller.send(frames.produced_message(text))
        await caller.send(frames.rows_affected(done.changed))
        await caller.send(frames.DONE_EXECUTING)

    async def _delete(self, message: crud.Delete, caller: Caller) -> None:
        schema, name = _collection(message, caller)
        expressions = Expressions(message.args, schema, self._budget(caller))
        steps = cost.steps_of_message(message.ByteSize())
        with caller.rights.audited(REMOVE, schema, name) as record, as_xerrors:
            selection = await self.thread.run(steps, selection_of, message, expressions, may_skip=False)
            done = await self.documents.rewrite(schema, name, selection, lambda _: None)
            record["changed"] = done.changed
        await caller.send(frames.rows_affected(done.changed))
        await caller.send(frames.DONE_EXECUTING)

    def _budget(self, caller: Caller) -> Budget:
        return Budget(self.max_message_bytes, lambda: caller.has_left)


def _collection(message: crud.Insert | crud.Find | crud.Update | crud.Delete, caller: Caller) -> tuple[str, str]:
    """Return the schema and the name of a statement's collection."""
    if message.data_model == crud.DATA_MODEL_TABLE:
        raise not_supported("tables")
    schema = message.collection.schema or caller.schema
    name = message.collection.name
    if not name:
        raise XError(5113, "Invalid name of table/collection")
    if not schema:
        raise no_schema()
    check_names(schema, name)
    return schema, name


def _check_rows(message: crud.Insert) -> None:
    """Check that each row of an insert is one document, in MySQL's order of errors."""
    if message.projection:
        raise XError(5114, "Invalid projection for document operation")
    if not message.row:
        raise XError(5013, "Missing row data for Insert")
    if len(message.row) > cost.MAX_INSERTED_DOCUMENTS:
        raise XError(1105, f"an insert has at most {cost.MAX_INSERTED_DOCUMENTS} documents")
    if {len(row.field) for row in message.row} != {1}:
        raise XError(5014, "Wrong number of fields in row being inserted")


def _turn(texts: Iterator[str]) -> list[str]:
    """Return texts of an iterator, up to ``PAGE_TEXT`` characters; none at its end."""
    turn: list[str] = []
    length = 0
    for text in texts:
        turn.append(text)
        length += len(text)
        if length >= PAGE_TEXT:
            break
    return turn


def _rows(message: crud.Insert, expressions: Expressions, collection: str) -> list[Document]:
    """Return the documents of the rows of an insert, with ``_MARK`` in place of a missing ``_id``.

    With the mark each document is a text before the next one is parsed: its values take many times
    the memory.
    """
    of_json = partial(_json_of, collection=collection)
    documents = []
    for number, row in enumerate(message.row, 1):
        content = _row(row.field[0], expressions, of_json)
        try:
            key = key_of(content["_id"]) if "_id" in content else _MARK
        except errors.KeyTooLong:
            raise XError(1406, f"Data too long for column '_id' at row {number}", "22001") from None
        documents.append(Document(key, dump({"_id": _MARK} | content)))
    return documents


def _with_ids(documents: Sequence[Document], doc_ids: Sequence[str]) -> list[Document]:
    """Return documents with ids in place of the mark."""
    new = iter(doc_ids)
    return [
        Document(doc_id := next(new), document.text.replace(_MARK, doc_id, 1)) if document.key == _MARK else document
        for document in documents
    ]


def _row(expression: expr.Expr, expressions: Expressions, of_json: Callable[[pb.Scalar], Json]) -> dict[str, Json]:
    """Return the document of a row: an object's expression, or a text that ``of_json`` parses.

    Raises:
        NotADocument: The row is not a JSON object.
        XError: It is invalid, or depends on a document.
    """
    if expression.type == expr.EXPR_TYPE_OBJECT:
        value = compile_node(expressions.node(expression), Context(is_strict=True))
        if not value.is_constant:
            raise XError(1054, "Unknown column 'doc' in 'field list'", "42S22")
        content = value.run(None)
    elif expression.type in (expr.EXPR_TYPE_LITERAL, expr.EXPR_TYPE_PLACEHOLDER):
        content = expressions.read(expression, of_json)
    else:
        content = None
    if not isinstance(content, dict):
        raise errors.NotADocument
    return content


def _json_of(scalar: pb.Scalar, collection: str) -> Json:
    """Return the value of a JSON text; None if the scalar cannot be a document."""
    if scalar.type == pb.SCALAR_TYPE_V_STRING:
        text = text_of(scalar.v_string.value)
    elif scalar.type == pb.SCALAR_TYPE_V_OCTETS:
        check_content_type(scalar.v_octets)
        if scalar.v_octets.content_type not in (_TEXT, _JSON):
            return None
        text = text_of(scalar.v_octets.value)
    elif scalar.type == pb.SCALAR_TYPE_V_NULL:
        return None
    else:
        raise _invalid_text("not a JSON text, may need CAST", 0, collection)
    try:
        return parse(text)
    except errors.InvalidJson as error:
        raise _invalid_text(error.reason, error.position, collection) from None


def _invalid_text(reason: str, position: int, collection: str) -> XError:
    text = f"Invalid JSON text: \"{reason}\" at position {position} in value for column '{collection}.doc'."
    return XError(3140, text, "22032")


def _document_column(schema: str, name: str, *, projected: bool) -> bytes:
    return frames.column(
        statement_pb2.COLUMN_TYPE_BYTES,
        "doc",
        original=("", "", "", "") if projected else ("doc", name, name, schema),
        collation=frames.UTF8MB4_BIN if projected else frames.BINARY,
        length=_LONGEST_DOCUMENT,
        content_type=frames.JSON,
    )


def _changes(message: crud.Update, expressions: Expressions) -> list[Change]:
    """Return the changes of an update."""
    if not message.operation:
        raise XError(5050, "Invalid update expression list")
    changes = [_change(operation, expressions) for operation in message.operation]
    # Each counts as one part: a literal of any size is only written.
    cost.count_parts(before=expressions.parts + len(changes))
    return changes


_Path = Sequence[expr.DocumentPathItem]

# The invalid operations of an update with the code and text of their error, in MySQL's order.
_INVALID_OPERATIONS: tuple[tuple[Callable[[crud.UpdateOperation, _Path], bool], int, str], ...] = (
    (lambda op, _: op.operation == crud.UPDATE_TYPE_SET, 5051, "Invalid type of update operation for document"),
    (lambda op, _: bool(op.source.name), 5052, "Invalid column name to update"),
    (
        lambda _, path: bool(path) and path[0].type != expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER,
        5053,
        "Invalid document member location",
    ),
    (
        lambda _, path: len(path) == 1 and path[0].value == "_id",
        5053,
        "Forbidden update operation on '$._id' member",
    ),
    (
        lambda op, path: bool(path) and op.operation in (crud.UPDATE_TYPE_ITEM_MERGE, crud.UPDATE_TYPE_MERGE_PATCH),
        5050,
        "Unexpected source for ITEM_MERGE operation",
    ),
)


def _change(operation: crud.UpdateOperation, expressions: Expressions) -> Change:
    items = operation.source.document_path
    for is_invalid, code, text in _INVALID_OPERATIONS:
        if is_invalid(operation, items):
            raise XError(code, text)
    if operation.operation in _REFUSED_KINDS:
        raise not_supported(_REFUSED_KINDS[operation.operation])
    without_wildcards = (expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, expr.DOCUMENT_PATH_ITEM_TYPE_ARRAY_INDEX)
    if any(item.type not in without_wildcards for item in items):
        text = "In this situation, path expressions may not contain the * and ** tokens or an array range."
        raise XError(3149, text, "42000")
    kind = _KINDS[operation.operation]
    path = document_path(items)
    if kind is Kind.REMOVE:
        if not path:
            raise XError(3153, "The path expression '$' is not allowed in this context.", "42000")
        return Change(kind, path)
    # Without a value, as the Python client sends None, MySQL sets the field to the whole document.
    value = expressions.node(operation.value) if operation.HasField("value") else Field(())
    if kind is Kind.PATCH and isinstance(value, Value) and not value.is_json and type(value.value) not in (str, Null):
        raise XError(
            3146,
            "Invalid data type for JSON data in argument 2 to function json_merge_patch;"
            " a JSON string or JSON type is required.",
            "22032",
        )
    return Change(kind, path, expressions.value(value))


def selection_of(
    message: crud.Find | crud.Update | crud.Delete, expressions: Expressions, *, may_skip: bool = True
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
    is_strict = not isinstance(message, crud.Find)
    selection = Selection(criteria, order, limit, offset, budget=expressions.budget, is_strict=is_strict)
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
            raise XError(5000, "Invalid message, one of 'limit' and 'limit_expr' fields is allowed. Received both")
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
        raise XError(5012, f"Invalid scalar type used in limit field: {scalar.type}, expected types UINT, SINT")
    if scalar.v_signed_int < 0:
        raise XError(1690, f"BIGINT UNSIGNED value is out of range in '{scalar.v_signed_int}'", "22003")
    return scalar.v_signed_int
