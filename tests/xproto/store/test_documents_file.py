"""The file of documents in SQLite is never the witness's, and the other way round."""

from pathlib import Path

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.sqlite.witness import SqliteWitness
from idalloc_xproto.port import XProtocolPort
from idalloc_xproto.settings import XProtocolSettings
from idalloc_xproto.stores.sqlite import SqliteDocuments


def check_named(store: Path, witness: Path) -> None:
    """Check the setting witness of a server with the port."""
    settings = XProtocolSettings(store=f"sqlite://{store}", witness=f"sqlite://{witness}", xproto_listen="127.0.0.1:0")
    XProtocolPort.check_settings(settings, requires_authentication=False)


async def test_documents_and_witness_share_no_file(tmp_path: Path) -> None:
    """P3: the documents' file is no witness, even if missing, and not changed; nor vice versa."""
    (tmp_path / "link").symlink_to(tmp_path)
    path, store = tmp_path / "ids-documents.db", tmp_path / "ids.db"
    check_named(store, tmp_path / "marks.db")
    with pytest.raises(StartRefused, match=r"^witness: .* is the file of the store's documents"):
        check_named(store, tmp_path / "link" / path.name)
    documents = SqliteDocuments(path)
    await documents.open()
    await documents.close()
    before = path.read_bytes()
    with pytest.raises(StartRefused, match=r"^witness: .* is the file of the store's documents"):
        check_named(store, tmp_path / "link" / path.name)
    with pytest.raises(StartRefused, match=r"^witness: .*is a file of documents of idalloc; name another file") as why:
        await SqliteWitness(path).open()
    assert why.value.setting == "witness"
    assert path.read_bytes() == before

    witness = SqliteWitness(tmp_path / "marks.db")
    await witness.open()
    await witness.close()
    with pytest.raises(StartRefused, match=r"^store: "):
        await SqliteDocuments(tmp_path / "marks.db").open()
