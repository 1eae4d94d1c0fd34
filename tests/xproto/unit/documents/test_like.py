"""LIKE matches as SQLite's does, in a time that a pattern cannot multiply."""

import sqlite3
from contextlib import closing
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_xproto.documents.errors import PatternTooComplex
from idalloc_xproto.documents.like import MAX_CHARACTERS, MAX_TEXTS, like_pattern

TEXTS = st.text("ab", max_size=10)


@given(st.text("ab%_", max_size=10), TEXTS)
@example("%a_b%ab_", "aabbababb")
def test_like_matches_equally(pattern: str, text: str) -> None:
    """A pattern matches the texts that SQLite's LIKE matches, on letters of one case."""
    with closing(sqlite3.connect(":memory:")) as db:
        expected = db.execute("SELECT ? LIKE ?", (text, pattern)).fetchone()[0]
    assert like_pattern(pattern)(text) is (expected == 1)


@given(st.text("a%_!", max_size=8), st.text("a%_!", max_size=8))
def test_escaped_characters_match_themselves(pattern: str, text: str) -> None:
    """A character after the escape is itself; an escape at the end is itself too."""
    matches = like_pattern(pattern, "!")(text)
    if pattern.replace("!!", "").endswith("!"):
        pattern += "!"  # SQLite lets nothing match
    with closing(sqlite3.connect(":memory:")) as db:
        expected = db.execute("SELECT ? LIKE ? ESCAPE '!'", (text, pattern)).fetchone()[0]
    assert matches is (expected == 1)


@pytest.mark.parametrize(
    "pattern",
    [
        "%" + "_" * 20_000 + "y%",
        "%x_x%" * 5_000 + "y%",
        "%" + "x" * 20_000 + "y%",
        "%" + "x" * 200 + "_x" * (MAX_TEXTS - 2) + "_y%",
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """A pattern of 20,000 characters takes a text of 50,000 less than a second of work."""
    began = process_time()
    assert not like_pattern(pattern)("x" * 50_000)
    assert process_time() - began < 1


def test_too_many_texts_between_underscores_are_refused() -> None:
    """Too many or too long texts between `_` in the middle of a pattern are refused."""
    assert like_pattern("%" + "a_" * (MAX_TEXTS - 1) + "a%")("b" + "ac" * MAX_TEXTS)
    anywhere = like_pattern("a_" * MAX_TEXTS + "a%" + "a" * MAX_CHARACTERS + "%" + "_a" * MAX_TEXTS)
    assert anywhere("ab" * MAX_TEXTS + "a" * (MAX_CHARACTERS + 1) + "ba" * MAX_TEXTS)
    for pattern in ("%" + "a_" * MAX_TEXTS + "a%", "%a_" + "a" * MAX_CHARACTERS + "%"):
        with pytest.raises(PatternTooComplex):
            like_pattern(pattern)
