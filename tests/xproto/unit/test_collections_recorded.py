"""Statements on documents answer with MySQL's bytes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from idalloc.xprotocol.v1 import connection_pb2
from idalloc_xproto import frames
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.json_text import dump
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.stores.sqlite import SqliteDocuments
from tests.xproto.support.caller import FakeCaller, reply_to
from tests.xproto.support.mysql.x_frames import DOCUMENTS, Case, cases

# What idalloc does not serve, by the code of its error.
_NOT_SUPPORTED = {
    1235: [
        "find/model_table",
        "find/model_table_id_column",
        "update/model_table",
        "delete/model_table",
        "find/having_without_group",
        "find/group_without_projection",
        "find/cast",
        "find/date",
        "find/not_regexp",
        "find/xor",
        "find/unary_minus",
        "find/double_asterisk",
        "find/double_asterisk_end",
        "find/member_asterisk",
        "find/order_expr",
        "update/item_merge_root",
        "update/patch_expr",
        "update/mixed_ops",
        "update/array_insert_not_index",
        "update/array_append_scalar",
        "cmp/arith_string",
        "upd/set_expr_path",
        "find/count_func",
    ],
    1305: ["find/concat", "find/function_schema"],
}
_CODES = {name: code for code, names in _NOT_SUPPORTED.items() for name in names}


@pytest.fixture
async def documents(tmp_path: Path) -> AsyncIterator[SqliteDocuments]:
    documents = SqliteDocuments(tmp_path / "documents.db")
    await documents.open()
    await documents.create_schema("raw")
    await documents.create_collection("raw", "c")
    await documents.insert("raw", "c", [Document(str(each["_id"]), dump(each)) for each in DOCUMENTS])
    yield documents
    await documents.close()


class TestRecorded:
    @pytest.mark.parametrize("case", [case for case in cases() if case.name not in _CODES], ids=lambda case: case.name)
    async def test_the_reply_is_mysqls(self, documents: SqliteDocuments, case: Case) -> None:
        """Each statement gets MySQL 8.0.31's frames, byte for byte, except its warnings."""
        for kind, payload, expected, doc_ids in case.exchanges:
            try:
                message = frames.parse(kind, payload)
            except XError as error:
                reply = [frames.error(error)]
            else:
                assert message is not None
                reply = await reply_to(documents, message, FakeCaller(doc_ids=iter(doc_ids)))
            assert reply == expected

    @pytest.mark.parametrize("case", [case for case in cases() if case.name in _CODES], ids=lambda case: case.name)
    async def test_what_is_not_served_is_refused(self, documents: SqliteDocuments, case: Case) -> None:
        """What idalloc does not serve has MySQL's code for that, and is never answered wrongly."""
        codes = []
        for kind, payload, _, _ in case.exchanges:
            message = frames.parse(kind, payload)
            assert message is not None
            last = (await reply_to(documents, message))[-1]
            codes += [connection_pb2.Error.FromString(last[5:]).code] if last[4] == frames.ERROR else []
        assert codes == [_CODES[case.name]]
