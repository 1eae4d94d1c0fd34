"""Unsafe characters for terminals: rejected in new text, escaped when stored text is printed."""

import re

from idalloc_server.domain.errors import InvalidRequest

# C0, DEL and C1; line and paragraph separators; bidirectional marks, embeddings, overrides and
# isolates.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
REPLACEMENT = "\ufffd"


def check_text(field: str, text: str) -> None:
    """Reject control characters, line separators and bidirectional marks.

    Raises:
        InvalidRequest: The text has one; the error names ``field`` and the code point.
    """
    if found := _UNSAFE.search(text):
        raise InvalidRequest(
            field, f"must not have control characters or bidirectional marks; has U+{ord(found[0]):04X}"
        )


def is_safe(text: str) -> bool:
    """Return whether ``check_text`` accepts a text."""
    return _UNSAFE.search(text) is None


def replaced(text: str) -> str:
    """Return the text with U+FFFD for each unsafe character."""
    return _UNSAFE.sub(REPLACEMENT, text)


def escaped(text: str) -> str:
    r"""Return the text with each unsafe character escaped as in JSON, such as ``\u202e``."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
