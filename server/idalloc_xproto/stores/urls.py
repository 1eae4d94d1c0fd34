"""Opens the documents beside the counters of a store."""

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.urls import check_apart, crate_http, sqlite_path
from idalloc_xproto.documents.protocol import Documents


def check_store(url: str, witness: str) -> None:
    """Check that documents can be kept beside the counters of a store.

    Args:
        url: The setting ``store``.
        witness: The setting ``witness``; empty without one.

    Raises:
        StartRefused: The store keeps no documents, or their file is the witness's.
    """
    kind = url.partition("://")[0]
    if kind in ("opensearch", "elasticsearch"):
        raise StartRefused("xproto_listen", "documents need a store of sqlite:// or crate://: remove xproto_listen")
    if kind == "sqlite":
        from idalloc_xproto.stores.sqlite import documents_path

        check_apart(witness, documents_path(sqlite_path(url)), "the file of the store's documents")


def open_documents(url: str, timeout: float = 40.0) -> Documents:
    """Return a store's documents, not connected yet; ``Documents.open`` connects.

    Args:
        url: The setting ``store``, of SQLite or CrateDB.
        timeout: The timeout of a statement, in seconds.

    Raises:
        StartRefused: The URL is invalid.
    """
    if url.startswith("sqlite://"):
        from idalloc_xproto.stores.sqlite import BUSY_TIMEOUT, SqliteDocuments, documents_path

        return SqliteDocuments(documents_path(sqlite_path(url)), min(BUSY_TIMEOUT, timeout))
    from idalloc_xproto.stores.cratedb import CrateDocuments

    _, http, schema = crate_http(url, timeout)
    return CrateDocuments(http, schema, timeout)
