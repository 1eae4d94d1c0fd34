"""The limits of what a statement on documents may cost, all in one place.

A step is about a microsecond of work: it evaluates one part of an expression for one document, or
reads 64 characters of a document. A statement spends steps document by document, so the server can
end it between any two of them. Parts that compare arrays and objects of one document take longer:
the limit of time ends them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import gt
from typing import Any

from idalloc_xproto.documents.criteria import NULL, ArrayOf, Call, Node, ObjectOf, Value
from idalloc_xproto.documents.document import Document
from idalloc_xproto.documents.errors import (
    ArgumentsTooLarge,
    CallerLeft,
    DocumentTooLarge,
    ResultTooLarge,
    TookTooLong,
    TooManyToSort,
    TooMuchWork,
)
from idalloc_xproto.documents.json_text import dump

# The most steps of a statement, those for one document, and its longest time, without the time that
# the client takes to read the reply.
MAX_STEPS = 50_000_000
MAX_STEPS_A_DOCUMENT = 10_000
MAX_SECONDS = 60.0
# The most documents that a statement sorts, which it does in memory, and their keys to sort by.
MAX_SORTED_DOCUMENTS = 100_000
MAX_SORTED_KEYS = 400_000
MAX_SORTED_TEXT = 32 * 2**20  # characters of the documents, and of the values that they are sorted by
# The most bytes of a message, of a row of a result and of a changed document: MySQL's default of
# mysqlx_max_allowed_packet.
MAX_SIZE = 64 * 2**20

# The most parts of one message, which take memory and time beyond their bytes. An item is a part of
# a document or of criteria.
MAX_INSERTED_DOCUMENTS = 10_000
MAX_ARGUMENTS = 65_535  # as in MySQL
MAX_ITEMS = 250_000

_DOCUMENT = 10  # steps to read a document, and to evaluate the first part
_CHARACTERS = 64  # characters of a document that a step reads
_BYTES = 8  # bytes of a message that a step reads: its parts are read one by one
# The characters that cost as much memory and time as one value that is kept to sort by it.
_ITEM = 64


@dataclass(eq=False)
class Budget:
    """What one statement may still spend. Its methods raise an error once a limit is exceeded."""

    # The most bytes of a row, of a changed document, and of the arguments at all their uses.
    max_size: int = MAX_SIZE
    has_left: Callable[[], bool] = lambda: False  # returns whether the caller has left
    clock: Callable[[], float] = time.monotonic  # returns the time, in seconds

    def __post_init__(self) -> None:
        self._ends = self.clock() + MAX_SECONDS
        self._steps = self._arguments = self._sorted = self._keys = self._sorted_text = 0

    def check(self) -> None:
        """Check that the statement may continue.

        Raises:
            CallerLeft: Nobody waits for it.
            TookTooLong: Its time is over.
        """
        if self.has_left():
            raise CallerLeft
        if self.clock() > self._ends:
            raise TookTooLong

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of this block, in which the caller reads."""
        began = self.clock()
        yield
        self._ends += self.clock() - began

    def count_argument(self, size: int) -> None:
        """Count a use of an argument of ``size`` bytes.

        Raises:
            ArgumentsTooLarge: All uses together have more than ``max_size``.
        """
        self._arguments += size
        if self._arguments > self.max_size:
            raise ArgumentsTooLarge(self.max_size)

    def count_read(self, document: Document, parts: int) -> None:
        """Count a document for which ``parts`` parts of expressions are evaluated.

        Raises:
            TooMuchWork: The statement has taken too many steps.
            CallerLeft, TookTooLong: See ``check``.
        """
        self.check()
        self._steps += _DOCUMENT + parts + len(document.text) // _CHARACTERS
        if self._steps > MAX_STEPS:
            raise TooMuchWork(f"a statement takes at most {MAX_STEPS} steps; choose fewer documents")

    def count_sorted(self, document: Document, keys: list[Any]) -> None:
        """Count a document that is kept to be sorted by the values of expressions.

        Raises:
            TooManyToSort: There are more than fit in memory.
        """
        self._sorted += 1
        self._keys += len(keys)
        self._sorted_text += len(document.text) + sum(_size(key, MAX_SORTED_TEXT, _ITEM) for key in keys)
        spent = (self._sorted, self._keys, self._sorted_text)
        if any(map(gt, spent, (MAX_SORTED_DOCUMENTS, MAX_SORTED_KEYS, MAX_SORTED_TEXT))):
            raise TooManyToSort

    def row_text(self, value: Any) -> str:
        """Return the text of a projected value.

        Raises:
            ResultTooLarge: It is larger than a message.
        """
        # The size is checked before the text exists: a value may be in it many times.
        if _size(value, self.max_size) > self.max_size or self._is_too_large(text := dump(value)):
            raise ResultTooLarge(self.max_size)
        return text

    def add_value(self, value: Any, size: int) -> int:
        """Return ``size`` plus the size of a value that a change writes.

        Raises:
            DocumentTooLarge: It is larger than a message.
        """
        size += _size(value, self.max_size)
        if size > self.max_size:
            raise DocumentTooLarge(self.max_size)
        return size

    def check_document(self, text: str) -> str:
        """Return the text of a changed document if it is small enough.

        Raises:
            DocumentTooLarge: It is larger than a message.
        """
        if self._is_too_large(text):
            raise DocumentTooLarge(self.max_size)
        return text

    def _is_too_large(self, text: str) -> bool:
        return 4 * len(text) > self.max_size and len(text.encode(errors="surrogatepass")) > self.max_size


def steps_of_parts(documents: Sequence[Document], parts: int) -> int:
    """Return about how many steps it takes to evaluate ``parts`` parts for each document.

    Without parts it is 0: the documents are not parsed.
    """
    return parts and (_DOCUMENT + parts) * len(documents) + sum(len(each.text) for each in documents) // _CHARACTERS


def steps_of_message(size: int) -> int:
    """Return about how many steps it takes to parse a message of ``size`` bytes."""
    return size // _BYTES


def count_parts(*nodes: Node | None, is_strict: bool = False, before: int = 0) -> int:
    """Return how many parts of expressions are evaluated for each document.

    The literals of an ``in`` do not count: they are found by their hash.

    Args:
        nodes: The expressions.
        is_strict: Whether the statement writes: then it compares each number of an ``in``.
        before: The parts of other expressions, which are added.

    Raises:
        TooMuchWork: There are more than ``MAX_STEPS_A_DOCUMENT``.
    """
    count = before
    waiting = [node for node in nodes if node is not None]
    while waiting and count <= MAX_STEPS_A_DOCUMENT:
        own, inner = _parts(waiting.pop(), is_strict)
        count += own
        waiting += inner
    if count > MAX_STEPS_A_DOCUMENT:
        raise TooMuchWork(f"expressions have at most {MAX_STEPS_A_DOCUMENT} parts for each document")
    return count


def _parts(node: Node, is_strict: bool) -> tuple[int, Iterable[Node]]:
    """Return how many parts a node has by itself, and the nodes in it."""
    match node:
        case Call(("in" | "not_in"), (tested, *others)):
            return 1, (tested, *(each for each in others if not _is_looked_up(each, is_strict)))
        case Call(("like" | "not_like"), operands):
            patterns = (each.value for each in operands if isinstance(each, Value))
            return 1 + sum(_size(pattern, MAX_SIZE) // _CHARACTERS for pattern in patterns), operands
        case Call():
            return 1, node.operands
        case ObjectOf():
            return 1, [member for _, member in node.members]
        case ArrayOf():
            return 1, node.items
        case Value() if isinstance(node.value, dict | list):
            return _size(node.value, MAX_STEPS_A_DOCUMENT), ()
    return 1, ()


def _is_looked_up(node: Node, is_strict: bool) -> bool:
    """Return whether a value of an ``in`` is found by its hash."""
    if not isinstance(node, Value) or node.is_json or node.value is NULL:
        return False
    return isinstance(node.value, str) or not is_strict


def _size(value: Any, most: int, item: int = 0) -> int:
    """Return the least number of characters that the JSON text of a value may have.

    Counting stops above ``most``. ``item`` is added for each value inside.
    """
    size = 0
    waiting = [value]
    while waiting and size <= most:
        each = waiting.pop()
        size += item
        if isinstance(each, str):
            size += len(each) + 2
        elif isinstance(each, dict):
            size += max(2, sum(len(key) + 6 for key in each))
            waiting += each.values()
        elif isinstance(each, list):
            size += max(2, 2 * len(each))
            waiting += each
        else:
            size += 1
    return size
