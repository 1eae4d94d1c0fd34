"""Documents in CrateDB of a user whose privileges change; also on a real CrateDB."""

from collections.abc import AsyncIterator

import pytest

from idalloc_server.domain.errors import StartRefused, StoreOutcomeUnknown, StoreRefused
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.protocol import Documents, Inserted, Rewritten
from idalloc_xproto.documents.selection import Selection
from idalloc_xproto.stores.urls import open_documents
from tests.store.cratedb.test_refusals import Cluster


@pytest.fixture
async def documents(cluster: Cluster) -> AsyncIterator[Documents]:
    documents = open_documents(cluster.url)
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    yield documents
    await cluster.grant("DDL", "DML", "DQL")
    await documents.drop_schema("s")
    await documents.close()
    for table in ("document_schemas", "document_collections"):
        await cluster.sql(f"DROP TABLE {{}}{table}")


async def test_without_ddl_prepared_tables_serve(cluster: Cluster, documents: Documents) -> None:
    """With prepared tables DQL and DML suffice for a start and all statements on documents."""
    await cluster.revoke("DDL")
    started = open_documents(cluster.url)
    await started.open()
    assert not await started.create_collection("s", "c")
    assert await started.insert("s", "c", [Document("a", '{"_id": "a"}')]) == Inserted(1, 0)
    assert [found.key for found in await started.page("s", "c", None)] == ["a"]
    assert await started.rewrite("s", "c", Selection(), lambda _: None) == Rewritten(1, 1)
    assert await started.count("s", "c") == 0
    assert await started.create_schema("other")
    assert await started.drop_schema("other") == 0
    await started.close()


async def test_without_ddl_no_collection_is_half_created(cluster: Cluster, documents: Documents) -> None:
    """Without DDL a new collection, and a drop, are refused with the GRANT; nothing is left."""
    await cluster.revoke("DDL")
    with pytest.raises(StoreRefused, match="Missing 'DDL' privilege") as caught:
        await documents.create_collection("s", "new")
    assert await documents.list_collections("s") == ["c"]
    with pytest.raises(StoreRefused, match="Missing 'DDL' privilege"):
        await documents.drop_collection("s", "c")
    assert await documents.count("s", "c") == 0
    await cluster.run(str(caught.value))
    assert await documents.create_collection("s", "new")


async def test_a_full_disk_is_named(cluster: Cluster, documents: Documents) -> None:
    """CrateDB adds no document on a nearly full disk, and does not say why; idalloc does."""
    added = [Document(key, f'{{"_id": "{key}"}}') for key in "ab"]
    await documents.list_collections("s")  # which refreshes the table
    [[key]] = await cluster.sql("SELECT collection_key FROM {}document_collections")
    await cluster.sql(f'ALTER TABLE {{}}documents_{key} SET ("blocks.read_only_allow_delete" = true)')
    for number in (1, 2):
        with pytest.raises(StoreOutcomeUnknown, match="nearly full"):
            await documents.insert("s", "c", added[:number])
    await cluster.sql(f'ALTER TABLE {{}}documents_{key} SET ("blocks.read_only_allow_delete" = false)')
    assert await documents.insert("s", "c", added) == Inserted(2, 0)


@pytest.mark.parametrize("missing", ["DDL", "DQL", "DML"])
async def test_a_missing_privilege_is_refused(cluster: Cluster, missing: str) -> None:
    """A first start without DDL, or without DQL or DML, is refused with the next step."""
    await cluster.revoke(missing)
    documents = open_documents(cluster.url)
    with pytest.raises(StartRefused, match=f"Missing '{missing}' privilege"):
        await documents.open()
    await documents.close()
    await cluster.grant("DDL", "DML", "DQL")
    for table in ("document_schemas", "document_collections"):
        await cluster.sql(f"DROP TABLE IF EXISTS {{}}{table}")
