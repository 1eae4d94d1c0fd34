"""Patterns of sequence names, such as ``orders.*``."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

ANY = "*"


class Patterns:
    """Matches names of sequences.

    ``*`` matches any number of characters; no other character is special.

    Args:
        patterns: A name matches if any of these does.
    """

    __slots__ = ("_exact", "_prefixes", "_split", "patterns")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._exact = frozenset(pattern for pattern in self.patterns if ANY not in pattern)
        # Most patterns end in their only star; str.startswith matches these fastest.
        self._prefixes = tuple(pattern[:-1] for pattern in self.patterns if pattern.find(ANY) == len(pattern) - 1 >= 0)
        self._split = tuple(
            pattern.split(ANY) for pattern in self.patterns if 0 <= pattern.find(ANY) < len(pattern) - 1
        )

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def match(self, name: str) -> bool:
        """Return whether a pattern matches the whole name."""
        return (
            name.startswith(self._prefixes) or name in self._exact or any(_fits(texts, name) for texts in self._split)
        )

    @property
    def any_name(self) -> bool:
        """Whether every name matches."""
        return ANY in self.patterns

    def ranges(self, prefix: str) -> Iterator["NameRange"]:
        """Yield disjoint ranges, in order, that cover all matching names with a prefix."""
        found: dict[str, NameRange] = {}
        for pattern in self.patterns:
            literal, star, _ = pattern.partition(ANY)
            if star and prefix.startswith(literal):
                literal = prefix
            if literal.startswith(prefix):
                is_single = not star and found.get(literal, NameRange("", True)).is_single
                found[literal] = NameRange(literal, is_single)
        last = None
        for each in sorted(found.values()):
            if last is None or last.is_single or not each.prefix.startswith(last.prefix):
                last = each
                yield each


class NameRange(NamedTuple):
    """All names with a prefix, or the single name that equals it."""

    prefix: str
    is_single: bool

    def has(self, name: str) -> bool:
        """Return whether the range contains a name."""
        return name == self.prefix if self.is_single else name.startswith(self.prefix)

    def is_before(self, name: str) -> bool:
        """Return whether all names of the range are at or before this one."""
        return self.prefix <= name and (self.is_single or not name.startswith(self.prefix))


def _fits(texts: list[str], name: str) -> bool:
    """Return whether a name consists of these texts with any text between them, in linear time."""
    first, *between, last = texts
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at = len(first)
    end = len(name) - len(last)
    for text in between:
        at = name.find(text, at, end)
        if at < 0:
            return False
        at += len(text)
    return True
