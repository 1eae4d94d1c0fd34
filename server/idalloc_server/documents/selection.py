"""Which documents a statement is about: its condition, order and limit."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from idalloc_server.documents.criteria import Node, SortKey, evaluate, keys_of, matches
from idalloc_server.documents.document import Document
from idalloc_server.documents.errors import TooManyToSort
from idalloc_server.documents.json_text import load

# The most that a statement sorts, which is in memory.
MAX_SORTED_DOCUMENTS = 100_000
MAX_SORTED_TEXT = 32 * 2**20  # characters of the documents


class Selection(NamedTuple):
    """Which documents a statement is about, and in which order.

    Attributes:
        criteria: The condition; None for all.
        order: The expressions to sort by, and whether descending; empty for the order of the keys.
        limit: The most documents; None for all.
        offset: How many to skip first.
    """

    criteria: Node | None = None
    order: Sequence[tuple[Node, bool]] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def keys(self) -> list[str] | None:
        """The only keys that can meet the condition, sorted; None if it does not name them."""
        keys = None if self.criteria is None else keys_of(self.criteria)
        return None if keys is None else sorted(keys)

    def matches(self, document: Document) -> bool:
        """Whether a document meets the condition."""
        return self.criteria is None or matches(self.criteria, load(document.text))


class Chooser:
    """Chooses the documents of one statement, which come by key and page by page.

    Args:
        selection: Which documents the statement is about.

    Attributes:
        is_done: Whether the documents that follow need not be read.
    """

    def __init__(self, selection: Selection) -> None:
        self.is_done = selection.limit == 0
        self._selection = selection
        self._seen = 0
        self._to_sort: list[tuple[list[SortKey], Document]] = []
        self._text = 0

    def choose(self, page: Iterable[Document]) -> Iterator[Document]:
        """Yield the chosen documents of a page; none if they are sorted.

        Raises:
            TooManyToSort: The documents so far are more than ``MAX_SORTED_DOCUMENTS`` or ``MAX_SORTED_TEXT``.
        """
        criteria, order, limit, offset = self._selection
        for document in page:
            if self.is_done:
                return
            content = None if criteria is None and not order else load(document.text)
            if criteria is not None and not matches(criteria, content):
                continue
            if order:
                self._keep(document, [SortKey(evaluate(node, content)) for node, _ in order])
                continue
            self._seen += 1
            if self._seen > offset:
                self.is_done = limit is not None and self._seen == offset + limit
                yield document

    def sorted(self) -> Sequence[Document]:
        """Return the chosen documents that are sorted, after the last page; none if the statement has no order."""
        for index, (_, descending) in reversed(list(enumerate(self._selection.order))):
            self._to_sort.sort(key=lambda each, index=index: each[0][index], reverse=descending)  # type: ignore[misc]
        limit, offset = self._selection.limit, self._selection.offset
        return [document for _, document in self._to_sort[offset : None if limit is None else offset + limit]]

    def _keep(self, document: Document, keys: list[SortKey]) -> None:
        self._to_sort.append((keys, document))
        self._text += len(document.text)
        if len(self._to_sort) > MAX_SORTED_DOCUMENTS or self._text > MAX_SORTED_TEXT:
            raise TooManyToSort
