"""What MySQL 8.0.31 and idalloc answer to the cases of ``criteria``.

``python -m tests.xproto.support.mysql.criteria_answers`` starts a MySQL, and records its answers in
``data/criteria.json.xz``.
"""

import asyncio
import hashlib
import json
import lzma
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypeAlias

from google.protobuf.text_format import MessageToString

from idalloc.xprotocol.v1 import connection_pb2, statement_pb2
from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_xproto.collections import projection_of, selection_of
from idalloc_xproto.documents.cost import Budget
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.json_text import Json, dump, key_of
from idalloc_xproto.documents.selection import Chooser
from idalloc_xproto.expressions import Expressions
from idalloc_xproto.mysql_errors import XError, as_xerrors
from tests.xproto.support.client import Reply, XClient, insert
from tests.xproto.support.mysql import server
from tests.xproto.support.mysql.criteria import OPERATORS, SCHEMA, Case, cases, collections

RECORD = Path(__file__).parent / "data" / "criteria.json.xz"
SEEDS = range(4)
_COUNT = 5_500  # of a seed
_NOT_SERVED = 1235
_AT_ONCE = 200

# The code of an error, the indexes of the found documents, the rows that were made of them, or how
# many were deleted.
Answer: TypeAlias = int | str | list[str]


class Record(NamedTuple):
    """MySQL's answers to the cases of a seed, and the digest of these cases."""

    seed: int
    digest: str
    answers: list[Answer]


class Comparison(NamedTuple):
    """A digest of the cases, the differences, and the number of refused cases by text."""

    digest: str
    differences: list[str]
    refused: Counter[str]


def recorded(seed: int) -> Record:
    """Return the record of a seed."""
    with lzma.open(RECORD) as file:
        return next(Record(*each) for each in json.load(file) if each[0] == seed)


def compare(seed: int, answers: Sequence[Answer]) -> Comparison:
    """Compare idalloc's answers with MySQL's."""
    documents = collections(seed)
    made = hashlib.sha256(json.dumps(documents).encode())
    evaluators = [_Evaluator(contents) for contents in documents]
    differences, refused = [], Counter[str]()
    for number, (case, theirs) in enumerate(zip(cases(seed, len(answers)), answers, strict=True)):
        made.update(case.message.SerializeToString(deterministic=True))
        try:
            ours = evaluators[case.collection].answer(case.message)
        except XError as error:
            if error.code == _NOT_SERVED:
                refused[error.message] += 1
                continue
            ours = error.code
        if ours != theirs:
            text = MessageToString(case.message, as_one_line=True)
            differences.append(f"case {number}, collection {case.collection}: MySQL {theirs}, idalloc {ours}: {text}")
    return Comparison(made.hexdigest(), differences, refused)


class _Evaluator:
    """Answers statements about the documents of a collection."""

    def __init__(self, contents: Sequence[dict[str, Json]]) -> None:
        self._contents = contents
        self._documents = [Document(key_of(content["_id"]), dump(content)) for content in contents]

    def answer(self, message: crud.Find | crud.Delete) -> Answer:
        """Return the answer.

        Raises:
            XError: The statement fails.
        """
        expressions = Expressions(message.args, SCHEMA, Budget())
        projection = projection_of(message.projection, expressions) if isinstance(message, crud.Find) else None
        selection = selection_of(message, expressions)
        with as_xerrors:
            if selection.order:
                chooser = Chooser(selection)
                assert not list(chooser.choose(self._documents))
                found = [self._documents.index(each) for each in chooser.sorted()]
            else:
                meets, keys = selection.predicate, selection.keys
                found = [
                    index
                    for index, content in enumerate(self._contents)
                    if (keys is None or self._documents[index].key in keys) and (meets is None or meets(content))
                ]
            if isinstance(message, crud.Delete):
                return f"{len(found)} deleted"
            if projection is not None:
                return [dump(projection(self._contents[index])) for index in found]
            return "".join(map(str, found))


async def ask(port: int, seed: int, count: int) -> list[Answer]:
    """Ask a MySQL, whose user root has no password, all cases of a seed."""
    client = await XClient.connect(f"127.0.0.1:{port}")
    try:
        await client.read()
        await client.ask(connection_pb2.AuthenticateStart(mech_name="MYSQL41"))
        assert not (await client.ask(connection_pb2.AuthenticateContinue(auth_data=b"\0root\0"))).code
        await client.sql(f"DROP SCHEMA IF EXISTS {SCHEMA}")
        texts = [[dump(content) for content in contents] for contents in collections(seed)]
        for number, documents in enumerate(texts):
            await client.create_collection(SCHEMA, f"c{number}")
            message = insert(*documents)
            message.collection.CopyFrom(crud.Collection(schema=SCHEMA, name=f"c{number}"))
            reply = await client.ask(message)
            assert not reply.code, reply.text
        return await _answers(client, list(cases(seed, count)), texts)
    finally:
        client.close()


async def _answers(client: XClient, some: Sequence[Case], texts: Sequence[Sequence[str]]) -> list[Answer]:
    """Ask all cases. Each delete is rolled back."""
    begin, undo = (statement_pb2.StmtExecute(stmt=text) for text in (b"START TRANSACTION", b"ROLLBACK"))
    answers: list[Answer] = []
    for start in range(0, len(some), _AT_ONCE):
        batch = some[start : start + _AT_ONCE]
        for case in batch:
            for message in (begin, case.message, undo) if isinstance(case.message, crud.Delete) else (case.message,):
                client.send(message)
        for case in batch:
            if isinstance(case.message, crud.Delete):
                await client.reply()
                reply = await client.reply()
                answers.append(reply.code or f"{reply.affected} deleted")
                await client.reply()
            else:
                answers.append(_answer(await client.reply(), case, texts))
    return answers


def _answer(reply: Reply, case: Case, texts: Sequence[Sequence[str]]) -> Answer:
    assert isinstance(case.message, crud.Find)
    if reply.code:
        return reply.code
    rows = [row.decode() for row in reply.rows]
    return rows if case.message.projection else "".join(str(texts[case.collection].index(row)) for row in rows)


def coverage(seed: int, count: int) -> dict[str, Counter[tuple[str, str]]]:
    """Return how often an operator has each pair of types of its first and another operand."""
    found = {name: Counter[tuple[str, str]]() for name in OPERATORS}
    documents = collections(seed)
    for case in cases(seed, count):
        if not case.message.HasField("criteria"):
            continue
        for operator in _operators(case.message.criteria):
            kinds = [_kinds(each, documents[case.collection], case.message.args) for each in operator.param]
            for other in kinds[1:] or [{"-"}]:
                found[operator.name].update(product(kinds[0], other))
    return found


def _operators(expression: expr.Expr) -> Iterator[expr.Operator]:
    if expression.type == expr.EXPR_TYPE_OPERATOR and expression.operator.name in OPERATORS:
        yield expression.operator
        for operand in expression.operator.param:
            yield from _operators(operand)


_JSON_KINDS: dict[type, str] = {
    dict: "object", list: "array", str: "text", bool: "boolean", type(None): "null", int: "integer", float: "double",
}  # fmt: skip


def _kinds(expression: expr.Expr, documents: Sequence[dict[str, Json]], args: Sequence[pb.Scalar]) -> set[str]:
    """Return the types of an operand; those of a field are the types of its values."""
    if expression.type == expr.EXPR_TYPE_IDENT:
        path, name = expression.identifier.document_path, expression.identifier.name
        if name or not path:
            return {f"column {name}" if name else "document"}
        if [step.value for step in path] == ["_id"]:
            return {"_id"}
        values = [document.get(path[0].value) if path[0].value in document else _MISSING for document in documents]
        found = {"missing" if each is _MISSING else f"field {_JSON_KINDS[type(each)]}" for each in values}
        return found if len(path) == 1 else {"item"}
    if expression.type in (expr.EXPR_TYPE_LITERAL, expr.EXPR_TYPE_PLACEHOLDER):
        scalar = expression.literal if expression.type == expr.EXPR_TYPE_LITERAL else args[expression.position]
        name = pb.ScalarType.Name(scalar.type).removeprefix("SCALAR_TYPE_V_").lower()
        return {"json" if name == "octets" and scalar.v_octets.content_type == 2 else name}
    if expression.type == expr.EXPR_TYPE_OPERATOR:
        return {"condition" if expression.operator.name in OPERATORS else "negative"}
    return {"new array" if expression.type == expr.EXPR_TYPE_ARRAY else "new object"}


_MISSING = object()


def _main() -> None:
    with server.running() as port:
        answers = {seed: asyncio.run(ask(port, seed, _COUNT)) for seed in SEEDS}
    comparisons = {seed: compare(seed, some) for seed, some in answers.items()}
    records = [Record(seed, comparisons[seed].digest, answers[seed]) for seed in SEEDS]
    with lzma.open(RECORD, "wt", preset=9) as file:
        json.dump(records, file, ensure_ascii=False, separators=(",", ":"))
    table: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in OPERATORS}
    for seed in SEEDS:
        for name, pairs in coverage(seed, _COUNT).items():
            table[name] += pairs
    kinds = sorted({pair for pairs in table.values() for pair in pairs})
    sys.stdout.write(f"{'operands':<32}{' '.join(f'{name:>11}' for name in table)}\n")
    for pair in kinds:
        counts = " ".join(f"{pairs[pair]:>11}" for pairs in table.values())
        sys.stdout.write(f"{', '.join(pair):<32}{counts}\n")
    codes = Counter(answer if isinstance(answer, int) else 0 for some in answers.values() for answer in some)
    sys.stdout.write(f"{codes.total()} answers, errors {dict(codes)}, {RECORD.stat().st_size} bytes\n")
    for comparison in comparisons.values():
        sys.stdout.write(f"refused {dict(comparison.refused)}, {len(comparison.differences)} differences\n")


if __name__ == "__main__":
    _main()
