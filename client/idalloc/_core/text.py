"""Untrusted text made safe to print on a terminal."""

import re

# C0, DEL and C1; line and paragraph separators; marks, embeddings, overrides and isolates of
# bidirectional text. Also lone surrogates, which stand for bytes of a file name that are not UTF-8.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""Return the text on one line, with unsafe characters escaped, such as ``\u202e``."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
