"""Check characters of many texts: the library's, made faster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.sequences.check_digits import CHECKS, Check

DIGITS = "0123456789"
LETTERS = DIGITS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
class TestOfNeighbours:
    @given(data=st.data())
    def test_are_those_that_the_library_makes_of_each(self, check: Check, data: st.DataObject) -> None:
        """Of texts in any order, of any lengths, with anything before and after them."""
        characters = st.text(DIGITS if check.decimal_only else LETTERS, max_size=6)
        before, after, head = data.draw(characters), data.draw(characters), data.draw(characters)
        texts = [head + tail for tail in data.draw(st.lists(characters, min_size=1)) if head + tail]
        assert check.of_neighbours(before, texts, after) == [check.make(f"{before}{text}{after}") for text in texts]

    @given(start=st.integers(0, 10**18), step=st.sampled_from([1, 3, 10, 999, -1]), width=st.sampled_from([0, 19]))
    def test_of_numbers_that_follow_each_other(self, check: Check, start: int, step: int, width: int) -> None:
        texts = [f"{abs(start + step * n):0{width}d}" for n in range(300)]
        assert check.of_neighbours("2026", texts, "7") == [check.make(f"2026{text}7") for text in texts]

    def test_of_the_shortest_and_the_next(self, check: Check) -> None:
        texts = [str(number) for number in range(1100)]
        assert check.of_neighbours("", texts, "") == [check.make(text) for text in texts]

    def test_ask_the_library_for_few(self, check: Check) -> None:
        asked = []

        def make(text: str) -> str:
            asked.append(text)
            return check.make(text)

        texts = [f"{number:09d}" for number in range(123_456, 133_456)]
        check._replace(make=make).of_neighbours("2026", texts, "")
        assert len(asked) < 3_000
