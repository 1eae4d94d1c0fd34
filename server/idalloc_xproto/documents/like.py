"""SQL's LIKE: in a pattern ``%`` is any text, and ``_`` any character."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from idalloc_xproto.documents.errors import PatternTooComplex

# The most texts, and characters in them, around the `_` between two `%`: the matcher may compare
# all of them at each place of a text.
MAX_TEXTS = 16
MAX_CHARACTERS = 256

_SHORT = 256  # characters of a pattern


class _Part(NamedTuple):
    """What a pattern has between two ``%``."""

    length: int  # in characters
    texts: tuple[tuple[int, str], ...]  # the texts between the ``_``, each after its place

    @property
    def is_complex(self) -> bool:
        """Whether this part takes long to find."""
        characters = sum(len(own) for _, own in self.texts)
        return len(self.texts) > 1 and (len(self.texts) > MAX_TEXTS or characters > MAX_CHARACTERS)

    def is_at(self, text: str, start: int) -> bool:
        """Return whether a text has this part at a place."""
        return all(text.startswith(own, start + place) for place, own in self.texts)

    def end_in(self, text: str, start: int, end: int) -> int:
        """Return where this part first ends between two places; -1 if it is not there."""
        last = end - self.length
        if not self.texts or start > last:
            return start + self.length if start <= last else -1
        place, longest = max(self.texts, key=lambda each: len(each[1]))
        found = text.find(longest, start + place, last + place + len(longest))
        while found >= 0 and len(self.texts) > 1 and not self.is_at(text, found - place):
            found = text.find(longest, found + 1, last + place + len(longest))
        return found - place + self.length if found >= 0 else -1


def like_pattern(pattern: str, escape: str = "\\") -> Callable[[str], bool]:
    """Return the function that matches a text against a pattern, in a time linear in the text.

    Raises:
        PatternTooComplex: A part between two ``%`` has more than ``MAX_TEXTS`` or
            ``MAX_CHARACTERS``.
    """
    return (_of_short if len(pattern) <= _SHORT else _of_long)(pattern, escape)


def _matcher(pattern: str, escape: str) -> Callable[[str], bool]:
    head, *middle = _parts(pattern, escape)
    if not middle:
        return lambda text: len(text) == head.length and head.is_at(text, 0)
    tail = middle.pop()
    middle = [part for part in middle if part.length]  # each takes at least one character
    if any(part.is_complex for part in middle):
        raise PatternTooComplex(MAX_TEXTS, MAX_CHARACTERS)

    def matches(text: str) -> bool:
        at = head.length
        end = len(text) - tail.length
        if end < at or not head.is_at(text, 0) or not tail.is_at(text, end):
            return False
        for part in middle:
            at = part.end_in(text, at, end)
            if at < 0:
                return False
        return True

    return matches


# A long pattern is kept for the next document only.
_of_short = lru_cache(64)(_matcher)
_of_long = lru_cache(1)(_matcher)


def _parts(pattern: str, escape: str) -> Iterator[_Part]:
    length = 0
    texts: list[tuple[int, str]] = []
    text: list[str] = []

    def end_text() -> None:
        if text:
            texts.append((length - len(text), "".join(text)))
            text.clear()

    characters = iter(pattern)
    for character in characters:
        if character == escape:
            text.append(next(characters, escape))
        elif character == "%":
            end_text()
            yield _Part(length, tuple(texts))
            length = 0
            texts = []
            continue
        elif character == "_":
            end_text()
        else:
            text.append(character)
        length += 1
    end_text()
    yield _Part(length, tuple(texts))
