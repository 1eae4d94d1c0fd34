"""What a store of documents must do."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from idalloc_server.documents.document import Document
from idalloc_server.documents.selection import Selection

# How many documents a page has. Other statements wait while one is read.
PAGE = 200
# A page ends with the document that reaches this length, so that memory does not grow with the size
# of documents.
PAGE_TEXT = 256 * 1024  # characters


class Inserted(NamedTuple):
    """How many documents an insert added, and how many it replaced with another text."""

    added: int
    replaced: int


class Rewritten(NamedTuple):
    """How many documents a statement matched, and how many of them it changed."""

    matched: int
    changed: int


# Returns the new text of a document for its text; None to delete the document. It is called more
# than once.
Change: TypeAlias = Callable[[str], str | None]


class Documents(Protocol):
    """Documents in collections, and collections in schemas. Names are any texts.

    A method with a schema and a collection raises ``UnknownSchema`` or ``UnknownCollection``; each
    raises ``StoreFailure`` if the store fails: unless it is ``StoreOutcomeUnknown``, nothing was
    applied.
    """

    async def open(self) -> None:
        """Connect, and create what is missing.

        Raises:
            StartRefused: The database cannot be used.
        """
        ...

    async def close(self) -> None:
        """Releases the database."""
        ...

    async def create_schema(self, name: str) -> bool:
        """Create a schema; return whether it did not exist."""
        ...

    async def drop_schema(self, name: str) -> int | None:
        """Drop a schema with its collections; return their number, or None if the schema does not exist."""
        ...

    async def list_schemas(self) -> list[str]:
        """Return the names of the schemas, sorted."""
        ...

    async def create_collection(self, schema: str, name: str) -> bool:
        """Create a collection; return whether it did not exist."""
        ...

    async def drop_collection(self, schema: str, name: str) -> bool:
        """Drop a collection; return whether it existed."""
        ...

    async def list_collections(self, schema: str) -> list[str]:
        """Return the names of a schema's collections, sorted; none if the schema does not exist."""
        ...

    async def check(self, schema: str, name: str) -> None:
        """Check that a collection exists."""
        ...

    async def count(self, schema: str, name: str) -> int:
        """Return the number of documents."""
        ...

    async def insert(self, schema: str, name: str, documents: Sequence[Document], *, upsert: bool = False) -> Inserted:
        """Add all documents or none.

        Args:
            schema: The schema.
            name: The collection.
            documents: The documents.
            upsert: Whether a document replaces another with its key; of equal keys in the batch the
                last one stays.

        Raises:
            DuplicateKey: Without ``upsert``: a key exists, or is twice in the batch.
        """
        ...

    async def page(
        self, schema: str, name: str, after: str | None, keys: Sequence[str] | None = None
    ) -> list[Document]:
        """Return documents by key, up to ``PAGE`` of them or ``PAGE_TEXT``; none only at the end.

        Args:
            schema: The schema.
            name: The collection.
            after: The key before the first one; None from the first document.
            keys: The sorted keys of the documents to read; None for all.
        """
        ...

    async def rewrite(self, schema: str, name: str, selection: Selection, change: Change) -> Rewritten:
        """Change or delete the chosen documents. If the change of one fails, nothing is changed.

        They are chosen by pages, while others write; then those are changed that still meet the
        condition.

        Raises:
            TooManyToSort: The selection has an order and chooses too many.
            TooManyToChange: It chooses more than the store changes at once.
            WriteConflict: Others changed a document again and again; earlier ones of this call may
                be changed.
        """
        ...
