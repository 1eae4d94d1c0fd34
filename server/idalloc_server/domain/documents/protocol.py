"""What a store of documents must do."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

# How many documents a page of a scan has. A page is parsed on the event loop: it must not take long.
PAGE = 200


class Document(NamedTuple):
    """A stored document.

    Attributes:
        key: The text of its ``_id``, which is unique in its collection and ordered by its bytes.
        text: Its normalised JSON text.
    """

    key: str
    text: str


class Rewrite(NamedTuple):
    """A document that a statement matched, and what becomes of it.

    Attributes:
        key: Its key.
        text: The new text; None to delete the document.
    """

    key: str
    text: str | None


class Inserted(NamedTuple):
    """How many documents an insert added, and how many it replaced with another text."""

    added: int
    replaced: int


class Rewritten(NamedTuple):
    """How many documents a statement matched, and how many of them it changed."""

    matched: int
    changed: int


# Chooses from documents those that a statement matches. A store may call it more than once.
Plan: TypeAlias = Callable[[Iterable[Document]], Iterable[Rewrite]]


class Documents(Protocol):
    """Documents in collections, and collections in schemas. Names are any texts.

    A method with a schema and a collection raises ``UnknownSchema`` or ``UnknownCollection``; each raises
    ``StoreFailure`` if the store fails: unless it is ``StoreOutcomeUnknown``, nothing was applied.
    """

    async def open(self) -> None:
        """Connects, and creates what is missing.

        Raises:
            StartRefused: The database cannot be used.
        """
        ...

    async def close(self) -> None:
        """Releases the database."""
        ...

    async def create_schema(self, name: str) -> bool:
        """Creates a schema; returns whether it did not exist."""
        ...

    async def drop_schema(self, name: str) -> int | None:
        """Drops a schema with its collections; returns their number, or None if the schema does not exist."""
        ...

    async def list_schemas(self) -> list[str]:
        """Returns the names of the schemas, sorted."""
        ...

    async def create_collection(self, schema: str, name: str) -> bool:
        """Creates a collection; returns whether it did not exist."""
        ...

    async def drop_collection(self, schema: str, name: str) -> bool:
        """Drops a collection; returns whether it existed."""
        ...

    async def list_collections(self, schema: str) -> list[str]:
        """Returns the names of a schema's collections, sorted; none if the schema does not exist."""
        ...

    async def check(self, schema: str, name: str) -> None:
        """Checks that a collection exists."""
        ...

    async def count(self, schema: str, name: str) -> int:
        """Returns the number of documents."""
        ...

    async def insert(self, schema: str, name: str, documents: Sequence[Document], *, upsert: bool = False) -> Inserted:
        """Adds all documents or none.

        Args:
            schema: The schema.
            name: The collection.
            documents: The documents.
            upsert: Whether a document replaces another with its key; of equal keys in the batch the last one stays.

        Raises:
            DuplicateKey: Without ``upsert``: a key exists, or is twice in the batch.
        """
        ...

    async def get(self, schema: str, name: str, keys: Collection[str]) -> list[Document]:
        """Returns the documents with these keys that exist, by key."""
        ...

    async def page(self, schema: str, name: str, after: str | None, limit: int = PAGE) -> list[Document]:
        """Returns documents by key, from after a key (None: from the first), at most ``limit``."""
        ...

    async def rewrite(self, schema: str, name: str, keys: Collection[str] | None, plan: Plan) -> Rewritten:
        """Changes or deletes documents.

        Args:
            schema: The schema.
            name: The collection.
            keys: The keys of the documents to read; None for all.
            plan: Chooses among them, and returns their new texts.

        Raises:
            WriteConflict: Others changed a document again and again; earlier ones of this call may be changed.
        """
        ...
