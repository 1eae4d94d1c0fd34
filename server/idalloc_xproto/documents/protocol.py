"""The protocol of a store of documents."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.selection import Selection

# The most documents of a page. Other statements wait while the store reads one.
PAGE = 200
# The length in characters at which a page ends, so that memory does not grow with the size of
# documents.
PAGE_TEXT = 256 * 1024


class Inserted(NamedTuple):
    """How many documents an insert added, and how many it replaced with a different text."""

    added: int
    replaced: int


class Rewritten(NamedTuple):
    """How many documents a statement matched, and how many of them it changed."""

    matched: int
    changed: int


# Returns the new text of a document for its old one; None deletes the document. A store may call it
# more than once for a document.
Change: TypeAlias = Callable[[str], str | None]


class Documents(Protocol):
    """Documents in collections, and collections in schemas. Names are any texts.

    A method with a schema and a collection raises ``UnknownSchema`` or ``UnknownCollection``. Every
    method raises ``StoreFailure`` if the store fails; then nothing was applied, unless the error is
    ``StoreOutcomeUnknown``.
    """

    async def open(self) -> None:
        """Connect, and create what is missing.

        Raises:
            StartRefused: The database cannot be used.
        """

    async def close(self) -> None:
        """Release the database."""

    async def create_schema(self, name: str) -> bool:
        """Create a schema; return whether it did not exist."""

    async def drop_schema(self, name: str) -> int | None:
        """Drop a schema; return the number of its collections, or None if it does not exist."""

    async def list_schemas(self) -> list[str]:
        """Return the names of the schemas, sorted."""

    async def create_collection(self, schema: str, name: str) -> bool:
        """Create a collection; return whether it did not exist."""

    async def drop_collection(self, schema: str, name: str) -> bool:
        """Drop a collection; return whether it existed."""

    async def list_collections(self, schema: str) -> list[str]:
        """Return the names of a schema's collections, sorted; none if the schema does not exist."""

    async def check(self, schema: str, name: str) -> None:
        """Check that a collection exists."""

    async def count(self, schema: str, name: str) -> int:
        """Return the number of documents."""

    async def insert(self, schema: str, name: str, documents: Sequence[Document], *, upsert: bool = False) -> Inserted:
        """Add all documents or none.

        With ``upsert`` a document replaces another with its key; of equal keys in the batch the
        last one stays.

        Raises:
            DuplicateKey: Without ``upsert``: a key exists, or is twice in the batch.
        """

    async def page(
        self, schema: str, name: str, after: str | None, keys: Sequence[str] | None = None
    ) -> list[Document]:
        """Return a page of documents, sorted by key; an empty one only at the end.

        The page begins after the key ``after``; with None it is the first one. If ``keys`` are
        given, which are sorted, it has only documents with one of them.
        """

    async def rewrite(self, schema: str, name: str, selection: Selection, change: Change) -> Rewritten:
        """Change or delete the selected documents. If the change of one fails, none is changed.

        The store selects them page by page, while others write; then it changes those that still
        meet the condition.

        Raises:
            TooManyToSort: The selection has an order and too many documents.
            TooManyToChange: The selection has more documents than the store changes at once.
            WriteConflict: Others changed a document during each attempt; earlier ones of this call
                may be changed.
        """
