"""The order of documents, as MySQL sorts JSON values."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

from idalloc_xproto.documents.comparison import Check, exact, no_check, same
from idalloc_xproto.documents.criteria import ID, NULL, Key, Node
from idalloc_xproto.documents.evaluation import Context, compile_node
from idalloc_xproto.documents.json_text import Json

# The rank of a value's type, and the key that orders the values of one type.
SortKey: TypeAlias = tuple[int, Any]


def sort_key_of(node: Node, *, is_strict: bool = False, check: Check = no_check) -> Callable[[Json], SortKey]:
    """Return the function that returns a document's sort key for an expression.

    Raises:
        NotServed: MySQL's rule for the expression is not known.
    """
    expression = compile_node(Key() if node == ID else node, Context(is_strict, check=check))
    if expression.is_constant:
        return lambda _: (0, None)
    run = expression.run

    def sort_key(content: Json) -> SortKey:
        value = run(content)
        rank, part = _PARTS[type(value)]
        return rank, part(value)

    return sort_key


# MySQL sorts objects and arrays by length only.
_PARTS: dict[type, tuple[int, Callable[[Any], Any]]] = {
    type(NULL): (0, lambda _: None),
    type(None): (1, lambda _: None),
    int: (2, same),
    float: (2, exact),
    Decimal: (2, same),
    str: (3, same),
    dict: (4, len),
    list: (5, len),
    bool: (6, same),
}
