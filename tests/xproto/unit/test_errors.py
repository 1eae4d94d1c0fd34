"""Refusals become MySQL's errors, and say whether something may have been written."""

from typing import cast

import pytest

from idalloc_server.domain.errors import (
    Refusal,
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreUnavailable,
    StoreUnreachable,
)
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.mysql_errors import from_refusal
from tests.xproto.support.caller import FakeCaller, reply_to
from tests.xproto.support.client import insert


class FailingDocuments:
    """A store whose inserts fail."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure

    async def check(self, schema: str, name: str) -> None:
        pass

    async def insert(self, *_: object, upsert: bool = False) -> None:
        raise self._failure


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreUnreachable, StoreAnsweredError])
def test_an_unavailable_store_wrote_nothing(kind: type[StoreUnavailable]) -> None:
    """1105 says that nothing was written if the statement was not executed."""
    error = from_refusal(kind("no answer\nfrom crate"))
    assert (error.code, error.message) == (1105, "the store is unavailable, and nothing was written: no answer")


def test_an_unknown_outcome_says_so() -> None:
    """Without an answer 1105 states that the statement may have been applied."""
    error = from_refusal(StoreOutcomeUnknown("timeout"))
    assert (error.code, error.message) == (
        1105,
        "the outcome is unknown, the statement may have been applied: timeout",
    )


@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreOutcomeUnknown("timeout")])
async def test_a_failed_insert_burns_its_ids(failure: Refusal) -> None:
    """Ids of an insert that the store failed count as burned, whether written or not."""
    caller = FakeCaller()
    with pytest.raises(type(failure)):
        await reply_to(cast(Documents, FailingDocuments(failure)), insert("{}", '{"_id": 1}', "{}"), caller)
    assert caller.burned == 2
