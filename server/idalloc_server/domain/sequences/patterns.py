"""Patterns of sequence names, such as ``orders.*``."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

ANY = "*"


class Patterns:
    """Names of sequences, in which ``*`` stands for any characters, or none; nothing else is special.

    Args:
        patterns: The patterns, any of which lets a name match.
    """

    __slots__ = ("_exact", "_others", "_prefixes", "patterns")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._exact = frozenset(pattern for pattern in self.patterns if ANY not in pattern)
        # One star at the end is what nearly all have, and what Python matches fastest.
        self._prefixes = tuple(pattern[:-1] for pattern in self.patterns if pattern.find(ANY) == len(pattern) - 1 >= 0)
        self._others = tuple(
            pattern.split(ANY) for pattern in self.patterns if 0 <= pattern.find(ANY) < len(pattern) - 1
        )

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def match(self, name: str) -> bool:
        """Tells whether one of them matches the whole name."""
        return name.startswith(self._prefixes) or name in self._exact or any(_fits(each, name) for each in self._others)

    @property
    def any_name(self) -> bool:
        """Whether every name matches."""
        return ANY in self.patterns

    def ranges(self, prefix: str) -> Iterator["NameRange"]:
        """Yields the ranges of names that hold all matching names with a prefix, in their order and disjoint."""
        found: dict[str, NameRange] = {}
        for pattern in self.patterns:
            beginning, star, _ = pattern.partition(ANY)
            if star and prefix.startswith(beginning):
                beginning = prefix
            if beginning.startswith(prefix):
                is_one = not star and found.get(beginning, NameRange("", True)).is_one
                found[beginning] = NameRange(beginning, is_one)
        last = None
        for each in sorted(found.values()):
            if last is None or last.is_one or not each.beginning.startswith(last.beginning):
                last = each
                yield each


class NameRange(NamedTuple):
    """The names with one beginning, or the one name that is equal to it."""

    beginning: str
    is_one: bool

    def has(self, name: str) -> bool:
        """Whether a name is in it."""
        return name == self.beginning if self.is_one else name.startswith(self.beginning)

    def is_before(self, name: str) -> bool:
        """Whether it has no name behind this one."""
        return self.beginning <= name and (self.is_one or not name.startswith(self.beginning))


def _fits(parts: list[str], name: str) -> bool:
    """Tells whether a name is these parts with anything between them, in the time of one reading."""
    first, *between, last = parts
    if len(name) < len(first) + len(last) or not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in between:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
