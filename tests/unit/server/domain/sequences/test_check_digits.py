"""Check digits of many texts equal those that python-stdnum computes one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.sequences.check_digits import CHECK_ALGORITHMS, CheckAlgorithm

DIGITS = "0123456789"
LETTERS = DIGITS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize("check", CHECK_ALGORITHMS.values(), ids=CHECK_ALGORITHMS)
class TestComputeMany:
    @given(data=st.data())
    def test_equals_the_library_for_any_texts(self, check: CheckAlgorithm, data: st.DataObject) -> None:
        """Texts in any order and of any lengths get the library's check characters."""
        characters = st.text(DIGITS if check.decimal_only else LETTERS, max_size=6)
        before, after, head = data.draw(characters), data.draw(characters), data.draw(characters)
        texts = [head + tail for tail in data.draw(st.lists(characters, min_size=1)) if head + tail]
        assert check.compute_many(before, texts, after) == [check.compute(f"{before}{text}{after}") for text in texts]

    @given(start=st.integers(0, 10**18), step=st.sampled_from([1, 3, 10, 999, -1]), width=st.sampled_from([0, 19]))
    def test_equals_the_library_for_consecutive_numbers(
        self, check: CheckAlgorithm, start: int, step: int, width: int
    ) -> None:
        """Consecutive numbers get the library's check characters."""
        texts = [f"{abs(start + step * n):0{width}d}" for n in range(300)]
        assert check.compute_many("2026", texts, "7") == [check.compute(f"2026{text}7") for text in texts]

    def test_equals_the_library_for_short_numbers(self, check: CheckAlgorithm) -> None:
        """Texts of one to four characters get the library's check characters."""
        texts = [str(number) for number in range(1100)]
        assert check.compute_many("", texts, "") == [check.compute(text) for text in texts]

    def test_calls_the_library_rarely(self, check: CheckAlgorithm) -> None:
        """10,000 consecutive texts need fewer than 3,000 calls of the library."""
        asked = []

        def compute(text: str) -> str:
            asked.append(text)
            return check.compute(text)

        texts = [f"{number:09d}" for number in range(123_456, 133_456)]
        check._replace(compute=compute).compute_many("2026", texts, "")
        assert len(asked) < 3_000
