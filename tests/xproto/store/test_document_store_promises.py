"""The requirements on stored documents of MySQL's WL#10955, by its names, on every store."""

import asyncio

import pytest

from idalloc.xprotocol.v1 import connection_pb2
from idalloc.xprotocol.v1 import crud_pb2 as crud
from idalloc.xprotocol.v1 import expression_pb2 as expr
from idalloc.xprotocol.v1 import notice_pb2 as pb
from idalloc_server.notices.generated_ids import doc_ids_frame
from idalloc_xproto import frames
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.protocol import Documents
from tests.support.store_backends import WITH_DOCUMENTS
from tests.xproto.store.test_contract_documents import documents
from tests.xproto.support.caller import FakeCaller, numbered, reply_to

__all__ = ["documents"]

pytestmark = pytest.mark.parametrize("opener", WITH_DOCUMENTS, indirect=True)

_FIRST, _SECOND, _THIRD = (doc_id for doc_id, _ in zip(numbered(), range(3), strict=False))


def text(content: str) -> expr.Expr:
    value = pb.Scalar(type=pb.SCALAR_TYPE_V_STRING, v_string=pb.Text(value=content.encode()))
    return expr.Expr(type=expr.EXPR_TYPE_LITERAL, literal=value)


def insert(*texts: str, upsert: bool = False) -> crud.Insert:
    rows = [crud.InsertRow(field=[text(each)]) for each in texts]
    return crud.Insert(collection=crud.Collection(name="c", schema="s"), row=rows, upsert=upsert)


def update(kind: crud.UpdateType.ValueType, path: str, value: str) -> crud.Update:
    items = [expr.DocumentPathItem(type=expr.DOCUMENT_PATH_ITEM_TYPE_MEMBER, value=path)] if path else []
    source = expr.ColumnIdentifier(document_path=items)
    operation = crud.UpdateOperation(source=source, operation=kind, value=text(value))
    return crud.Update(collection=crud.Collection(name="c", schema="s"), operation=[operation])


def code_of(reply: list[bytes]) -> int:
    assert reply[-1][4] == frames.ERROR
    return connection_pb2.Error.FromString(reply[-1][5:]).code


async def stored(documents: Documents) -> list[Document]:
    return await documents.page("s", "c", None)


class TestRequirements:
    async def test_f1_an_id_is_a_field_that_never_changes(self, documents: Documents) -> None:
        """F1: _id is a field; setting it is 5053, and a patch with another keeps the old one."""
        await reply_to(documents, insert('{"_id": "a", "n": 1}'))
        for kind in (crud.UPDATE_TYPE_ITEM_SET, crud.UPDATE_TYPE_ITEM_REPLACE, crud.UPDATE_TYPE_ITEM_REMOVE):
            assert code_of(await reply_to(documents, update(kind, "_id", "b"))) == 5053
        for patch in ('{"_id": "b", "n": 2}', '{"_id": null, "n": 3}'):
            await reply_to(documents, update(crud.UPDATE_TYPE_MERGE_PATCH, "", patch))
        assert await stored(documents) == [Document("a", '{"n": 3, "_id": "a"}')]

    async def test_f2_the_id_is_the_key(self, documents: Documents) -> None:
        """F2: a document is found by its _id, of any type, and numbers compare as their text."""
        await reply_to(documents, insert('{"_id": 42}', '{"_id": null}', '{"_id": {"b": 1, "a": 2}}'))
        assert [each.key for each in await stored(documents)] == ["42", "null", '{"a": 2, "b": 1}']
        assert code_of(await reply_to(documents, insert('{"_id": "42"}'))) == 5116

    async def test_f3_the_client_may_give_the_id(self, documents: Documents) -> None:
        """F3: an _id of the client stays, also an escaped one; without a made id, no notice."""
        reply = await reply_to(documents, insert('{"_id": "own"}', '{"\\u005fid": "escaped"}'))
        assert [each.key for each in await stored(documents)] == ["escaped", "own"]
        assert reply[1:] == [frames.rows_affected(2), frames.DONE_EXECUTING]
        assert code_of(await reply_to(documents, insert(f'{{"_id": "{"é" * 17}"}}'))) == 1406

    async def test_f4_the_server_makes_missing_ids(self, documents: Documents) -> None:
        """F4: a document without _id gets one, stored in it; a nested _id does not count."""
        await reply_to(documents, insert('{"o": {"_id": 1}}'))
        assert await stored(documents) == [Document(_FIRST, f'{{"o": {{"_id": 1}}, "_id": "{_FIRST}"}}')]

    async def test_f5_the_reply_has_the_made_ids_in_order(self, documents: Documents) -> None:
        """F5: one notice has the generated ids alone, in the order of the documents."""
        reply = await reply_to(documents, insert('{"n": 1}', '{"_id": "own"}', '{"n": 2}', '{"n": 3}'))
        assert reply == [
            frames.produced_message("Records: 4  Duplicates: 0  Warnings: 0"),
            frames.rows_affected(4),
            doc_ids_frame([_FIRST, _SECOND, _THIRD]),
            frames.DONE_EXECUTING,
        ]

    async def test_f7_a_second_use_is_an_error(self, documents: Documents) -> None:
        """F7: an _id in use is 5116; nothing is stored, and the generated ids are burned."""
        caller = FakeCaller()
        await reply_to(documents, insert('{"_id": "a", "n": 1}'), caller)
        assert code_of(await reply_to(documents, insert('{"n": 2}', '{"_id": "a"}', '{"n": 3}'), caller)) == 5116
        assert await stored(documents) == [Document("a", '{"n": 1, "_id": "a"}')]
        assert caller.burned == 2

    async def test_nf2_ids_are_compared_as_bytes(self, documents: Documents) -> None:
        """NF2: ids that differ in case, a trailing space or their Unicode form are different."""
        ids = ["x", "X", "x ", "\u00e9", "e\u0301"]
        reply = await reply_to(documents, insert(*(f'{{"_id": "{each}"}}' for each in ids)))
        assert reply[-1] == frames.DONE_EXECUTING
        assert {each.key for each in await stored(documents)} == set(ids)

    async def test_an_invalid_message_makes_no_ids(self, documents: Documents) -> None:
        """An insert that is refused before the store is used takes no ids."""
        caller = FakeCaller()
        for refused in (insert("{}", "{"), insert("{}", "[1]"), insert("{}", f'{{"_id": "{"x" * 33}"}}'), insert()):
            assert (await reply_to(documents, refused, caller))[-1][4] == frames.ERROR
        assert await caller.generate_ids(1, 0) == [_FIRST]
        assert await stored(documents) == []

    async def test_an_unknown_collection_goes_before_an_invalid_document(self, documents: Documents) -> None:
        """An insert into an unknown collection is 1146 for any documents, and counts its ids."""
        caller = FakeCaller()
        await documents.drop_collection("s", "c")
        assert code_of(await reply_to(documents, insert("{}", "{"), caller)) == 1146
        assert code_of(await reply_to(documents, insert("{}", "{}"), caller)) == 1146
        assert caller.burned == 2

    async def test_a_large_insert_lets_others_run(self, documents: Documents) -> None:
        """The event loop serves others while the documents of an insert are read and written."""
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        content = await reply_to(documents, insert(*['{"text": "a text"}'] * 2000))
        counting.cancel()
        assert content[-1] == frames.DONE_EXECUTING
        assert turns >= 40
