"""What a crash within an add leaves on CrateDB, and the query of the guide that finds it."""

import asyncio
from collections import Counter

import pytest

from idalloc.xprotocol.v1 import crud_pb2
from idalloc_xproto import frames
from idalloc_xproto.documents.document import Document
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.stores import cratedb as crate_documents
from idalloc_xproto.stores.urls import open_documents
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.documents import blocks
from tests.support.paths import ROOT
from tests.support.waiting import until
from tests.xproto.support.caller import reply_to

ROWS_A_STATEMENT = 1000
WRITE = "UNNEST"


def queries() -> list[str]:
    """Return the guide's statements: for table names, to refresh a table, and for its batches."""
    page = (ROOT / "docs/guides/mysql-xdevapi.md").read_text()
    [block] = [each for each in blocks(page) if each.language == "sql"]
    return block.text.replace("\n", "").rstrip(";").split(";")


async def test_the_guide_s_query_finds_what_a_crash_left() -> None:
    """A server that dies within an add leaves a part, which readers and the guide's query find."""
    names, refresh, batches = queries()
    added = [Document(f"0007{number:024x}", "{}") for number in range(ROWS_A_STATEMENT + 1)]
    async with CrateEmulator() as crate:
        documents = open_documents(f"crate://{crate.host}/?schema=idalloc")
        await documents.open()
        await documents.create_schema("shop")
        await documents.create_collection("shop", "orders")
        await documents.insert("shop", "orders", [Document("own", "{}")])
        assert await documents.list_collections("shop") == ["orders"]
        # The first statement of the add is applied, the second one never arrives.
        crate.inject(Fault("delay", match=WRITE), Fault("hang", match=WRITE, applied=False))
        before = len(crate.requests)
        adding = asyncio.create_task(documents.insert("shop", "orders", added))
        await until(
            lambda: sum(WRITE in statement for _, statement in crate.requests[before:]) == 2, "the second statement"
        )
        adding.cancel()  # as a process that ends: nothing is undone
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert await documents.count("shop", "orders") == ROWS_A_STATEMENT + 1
        await documents.insert("shop", "orders", [Document(added[0].key, '{"n": 1}')], upsert=True)
        await documents.close()

        def run(statement: str) -> list[list[str]]:
            rows: list[list[str]] = crate.statements.execute(statement, [])["rows"]
            return rows

        [[key, schema, collection]] = run(names)
        assert (schema, collection) == ("shop", "orders")
        table = f"documents_{key}"
        crate.statements.execute(refresh.replace("documents_0123456789abcdef", table), [])
        of_table = batches.replace("documents_0123456789abcdef", table)
        found = Counter(batch for _, batch in run(of_table))
        assert found.pop(None) == 1  # type: ignore[call-overload]  # the changed document
        assert sorted(found.values()) == [1, ROWS_A_STATEMENT - 1]
        last = added[ROWS_A_STATEMENT - 3].key
        after = run(of_table.replace("ORDER BY", f"WHERE doc_id > '{last}' ORDER BY"))
        assert [doc_id for doc_id, _ in after] == [added[-3].key, added[-2].key, "own"]
        assert crate.unknown == []


async def test_a_statement_that_changes_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of more documents than a statement may change is error 1105, and changes nothing."""
    monkeypatch.setattr(crate_documents, "MAX_CHANGED_DOCUMENTS", 10)
    async with CrateEmulator() as crate:
        documents = open_documents(f"crate://{crate.host}/?schema=idalloc")
        await documents.open()
        await documents.create_schema("shop")
        await documents.create_collection("shop", "orders")
        await documents.insert("shop", "orders", [Document(f"{number:02}", "{}") for number in range(11)])
        delete = crud_pb2.Delete(collection=crud_pb2.Collection(schema="shop", name="orders"))
        reply = await reply_to(documents, delete)
        text = "a statement changes at most 10 documents; choose fewer, by criteria or a limit"
        assert reply == [frames.error(XError(1105, text))]
        assert await documents.count("shop", "orders") == 11
        delete.limit.row_count = 10
        assert (await reply_to(documents, delete))[-1] == frames.DONE_EXECUTING
        assert await documents.count("shop", "orders") == 1
        await documents.close()
