"""Compares criteria, orders and projections with a live MySQL, for new cases at each run."""

import os
import random

import pytest

from tests.xproto.support.mysql import criteria_answers, server

pytestmark = [
    pytest.mark.mysql,
    pytest.mark.timeout(900),  # including the download
    pytest.mark.skipif("IDALLOC_TEST_MYSQL" not in os.environ, reason="needs a live MySQL: make test-mysql"),
]


async def test_each_answer_is_mysqls() -> None:
    """A live MySQL selects, orders and projects the documents of new cases as idalloc does."""
    seed = random.SystemRandom().randrange(2**32)
    with server.running() as port:
        answers = await criteria_answers.ask(port, seed, 20_000)
    _, differences, _ = criteria_answers.compare(seed, answers)
    assert differences == [], f"seed {seed}"
