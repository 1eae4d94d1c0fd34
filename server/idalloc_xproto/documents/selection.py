"""The documents that a statement selects: its condition, order and limit."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from idalloc_xproto.documents.cost import Budget, count_parts, steps_of_parts
from idalloc_xproto.documents.criteria import Node, keys_of
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import TooManyToChange
from idalloc_xproto.documents.evaluation import condition_of
from idalloc_xproto.documents.json_text import Json, load
from idalloc_xproto.documents.side_thread import LEAST_STEPS, SideThread
from idalloc_xproto.documents.sorting import SortKey, sort_key_of


@dataclass(frozen=True)
class Selection:
    """The documents that a statement selects, and their order."""

    criteria: Node | None = None  # the condition; None for all
    # The expressions to sort by, and whether descending; empty for the order of the keys.
    order: Sequence[tuple[Node, bool]] = ()
    limit: int | None = None  # the most documents; None for all
    offset: int = 0  # how many to skip first
    budget: Budget = field(default_factory=Budget)  # what the statement may still spend
    # Whether the statement writes. Then a value that it compares as a number must be one.
    is_strict: bool = False

    @cached_property
    def predicate(self) -> Callable[[Json], bool] | None:
        """The function that checks whether a document meets the condition; None without one.

        Raises:
            NotServed: MySQL's rule for the condition is not known.
        """
        if self.criteria is None:
            return None
        condition = condition_of(self.criteria, is_strict=self.is_strict, check=self.budget.check)
        return lambda content: condition(content) is True

    @cached_property
    def sort_keys(self) -> Sequence[tuple[Callable[[Json], SortKey], bool]]:
        """The functions that return what to sort a document by, and whether descending.

        Raises:
            NotServed: MySQL's rule for an expression is not known.
        """
        check = self.budget.check
        return [
            (sort_key_of(node, is_strict=self.is_strict, check=check), descending) for node, descending in self.order
        ]

    @cached_property
    def parts(self) -> int:
        """How many parts of expressions are evaluated for each document.

        Raises:
            TooMuchWork: There are too many.
        """
        return count_parts(self.criteria, *(node for node, _ in self.order), is_strict=self.is_strict)

    @cached_property
    def keys(self) -> list[str] | None:
        """The only keys that can meet the condition, sorted; None if it does not name them."""
        keys = None if self.criteria is None else keys_of(self.criteria)
        return None if keys is None else sorted(keys)

    def matches(self, document: Document) -> bool:
        """Return whether a document meets the condition."""
        return self.predicate is None or self.predicate(load(document.text))


class Chooser:
    """Chooses the documents of one selection from pages that are sorted by key."""

    def __init__(self, selection: Selection) -> None:
        self.is_done = selection.limit == 0  # whether no further page is needed
        self._selection = selection
        self._seen = 0
        self._to_sort: list[tuple[list[SortKey], Document]] = []

    def choose(self, page: Iterable[Document]) -> Iterator[Document]:
        """Yield the chosen documents of a page; if they are to be sorted, keep them for ``sorted``.

        Raises:
            TooManyToSort: The documents so far are more than fit in memory.
            DocumentsError: The budget of the statement is spent.
        """
        selection = self._selection
        predicate = selection.predicate
        sort_keys = selection.sort_keys
        last = None if selection.limit is None else selection.offset + selection.limit
        for document in page:
            if self.is_done:
                return
            content = None
            if predicate is not None or sort_keys:
                selection.budget.count_read(document, selection.parts)
                content = load(document.text)
            if predicate is not None and not predicate(content):
                continue
            if sort_keys:
                keys = [sort_key(content) for sort_key, _ in sort_keys]
                selection.budget.count_sorted(document, [value for _, value in keys])
                self._to_sort.append((keys, document))
                continue
            self._seen += 1
            if self._seen > selection.offset:
                self.is_done = self._seen == last
                yield document

    def sorted(self) -> Sequence[Document]:
        """Return the chosen documents in order, after the last page; none without an order."""
        selection = self._selection
        for index, (_, descending) in reversed(list(enumerate(selection.order))):
            self._to_sort.sort(key=lambda each, index=index: each[0][index], reverse=descending)  # type: ignore[misc]
        last = None if selection.limit is None else selection.offset + selection.limit
        return [document for _, document in self._to_sort[selection.offset : last]]


async def chosen_keys(
    selection: Selection,
    read: Callable[[str | None, Sequence[str] | None], Awaitable[Sequence[Document]]],
    thread: SideThread,
    most: int,
    tried: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Return the keys of the documents of a selection, which are read page by page.

    Args:
        selection: Which documents.
        read: Returns a page; see ``Documents.page``.
        thread: The thread that chooses them.
        most: The most documents.
        tried: Called with the text of each document; may raise an error.

    Raises:
        TooManyToChange: There are more than ``most``.
    """
    chooser = Chooser(selection)
    after = None
    chosen: list[str] = []

    def add(documents: Iterable[Document]) -> None:
        for document in documents:
            tried(document.text)
            chosen.append(document.key)
        if len(chosen) > most:
            raise TooManyToChange(most)

    while not chooser.is_done and (page := await read(after, selection.keys)):
        selection.budget.check()
        await thread.run(steps_of_parts(page, selection.parts), add, chooser.choose(page))
        after = page[-1].key
    await thread.run(LEAST_STEPS, lambda: add(chooser.sorted()))
    return chosen
