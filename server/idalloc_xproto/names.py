"""MySQL's rules for names of schemas and collections."""

from functools import lru_cache

from idalloc_xproto.mysql_errors import XError

MAX_NAME = 64  # characters
# MySQL calls a longer name incorrect, not too long. An error shows the beginning of a name.
_MAX_BYTES = 192
_SHOWN_BYTES = 100


@lru_cache(maxsize=1_024)
def check_names(schema: str, collection: str | None = None) -> None:
    """Check names in MySQL's order: the collection's first.

    Raises:
        XError: A name is too long, or incorrect.
    """
    if collection is not None:
        _check(collection, 1103, "table")
    _check(schema, 1102, "database")


def _check(name: str, code: int, kind: str) -> None:
    if name.endswith(" ") or len(name.encode()) > _MAX_BYTES:
        raise XError(code, f"Incorrect {kind} name '{_shown(name)}'", "42000")
    if len(name) > MAX_NAME:
        raise XError(1059, f"Identifier name '{_shown(name)}' is too long", "42000")


def _shown(name: str) -> str:
    """Return the beginning of a name.

    MySQL cuts bytes, and shows each byte of a cut character as a question mark.
    """
    cut = name.encode()[:_SHOWN_BYTES]
    shown = cut.decode(errors="ignore")
    return shown + "?" * (len(cut) - len(shown.encode()))
