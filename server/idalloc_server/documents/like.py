"""Patterns of LIKE."""

import re
from collections.abc import Callable
from functools import lru_cache


@lru_cache(maxsize=64)
def like_pattern(pattern: str, escape: str = "\\") -> Callable[[str], bool]:
    """Returns a function that matches texts with a pattern of LIKE: ``%`` any text, ``_`` any character.

    Its time is linear in the number of ``%``; a regular expression for the whole pattern would backtrack.
    """
    parts = _between_percents(pattern, escape)
    first, *middle = ["".join(part) for part in parts]
    if not middle:
        whole = re.compile(first, re.DOTALL)
        return lambda text: whole.fullmatch(text) is not None
    head, tail = re.compile(first, re.DOTALL), re.compile(middle[-1], re.DOTALL)
    tail_length = len(parts[-1])
    between = [re.compile(part, re.DOTALL) for part in middle[:-1] if part]

    def is_match(text: str) -> bool:
        end = len(text) - tail_length
        if (found := head.match(text)) is None or end < 0 or tail.fullmatch(text, end) is None:
            return False
        for part in between:
            if (found := part.search(text, found.end(), end)) is None:
                return False
        return found.end() <= end

    return is_match


def _between_percents(pattern: str, escape: str) -> list[list[str]]:
    """Returns what is between the ``%`` of a pattern of LIKE: for each part, a regular expression a character."""
    parts: list[list[str]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            parts[-1].append(re.escape(next(characters, escape)))
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append("." if character == "_" else re.escape(character))
    return parts
