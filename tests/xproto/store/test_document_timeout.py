"""Documents in SQLite while another process holds the lock of the file."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import Busy
from idalloc_xproto.stores.urls import open_documents


async def test_a_locked_file_is_busy_after_store_timeout(tmp_path: Path) -> None:
    """An add waits for the lock no longer than store_timeout, also if that is less than 5 s."""
    documents = open_documents(f"sqlite://{tmp_path}/ids.db", timeout=0.2)
    await documents.open()
    await documents.create_schema("s")
    await documents.create_collection("s", "c")
    with closing(sqlite3.connect(tmp_path / "ids-documents.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Busy):
            await documents.insert("s", "c", [Document("a", "{}")])
        assert 0.2 <= asyncio.get_running_loop().time() - begun < 3.0
    assert (await documents.insert("s", "c", [Document("a", "{}")])).added == 1
    await documents.close()
