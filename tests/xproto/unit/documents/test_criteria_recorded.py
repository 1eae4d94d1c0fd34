"""Criteria, orders and projections answer as a recorded MySQL 8.0.31."""

import pytest

from idalloc_xproto.documents.evaluation import OPERATORS
from tests.xproto.support.mysql import criteria, criteria_answers

# What idalloc refuses, since MySQL's rule is not known. Any other refusal fails the test.
_REFUSED = (
    "between of the column _id and a number",
    "between of equal bounds with an array, an object or a JSON text",
    "comparison of two texts of the statement",
    "comparison with a condition that has no field",
    "in with several values, one of which is an array, an object or a JSON text",
    "in with an array and the column _id",
    "in with an array and a value that is bound or computed",
    "in with negative numbers beside numbers from 2^63 on",
    "the column _id as a condition",
    "not in with an array inside of ",
    "sort by a number",
    "sort by doc with fields",
)


@pytest.mark.parametrize("seed", criteria_answers.SEEDS)
def test_each_answer_is_mysqls(seed: int) -> None:
    """Each case gets MySQL's documents, order and fields, or its error's code, or is refused."""
    _, digest, answers = criteria_answers.recorded(seed)
    made, differences, refused = criteria_answers.compare(seed, answers)
    assert made == digest, (
        "the cases are not the recorded ones: run python -m tests.xproto.support.mysql.criteria_answers"
    )
    assert differences == []
    assert [text for text in refused if not any(each in text for each in _REFUSED)] == []
    assert len(answers) - refused.total() > 5_000  # of each of four seeds


def test_each_served_operator_is_compared() -> None:
    """The cases have all operators that criteria may have."""
    assert criteria.OPERATORS.keys() == OPERATORS.keys()
