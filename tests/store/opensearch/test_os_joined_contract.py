"""The contract of grants, where each of them shares its request with another update."""

import asyncio

import pytest

from idalloc_server.store.opensearch.joined_updates import MAX_REQUESTS
from idalloc_server.store.opensearch.requests import RowUpdate
from idalloc_server.store.opensearch.results import Written
from idalloc_server.store.opensearch.store import OpenSearchStore
from idalloc_server.store.urls import open_store
from tests.store.conftest import OPENSEARCH
from tests.store.test_contract_give_back import TestGiveBack
from tests.store.test_contract_grants import TestCreate, TestGrant
from tests.store.test_contract_timestamps import (
    test_a_clock_past_max_value_moves_nothing,
    test_a_counter_below_the_floor_grants_nothing,
    test_a_grant_of_a_missing_sequence_is_none,
    test_a_grant_of_the_other_kind_is_empty,
    test_a_renewal_returns_the_generation,
    test_concurrent_grants_never_overlap,
    test_no_timestamp_is_too_far_ahead_of_the_clock,
    test_the_first_timestamp_is_now,
    test_the_last_timestamp_is_max_value,
    test_the_stores_clock_limits_a_node_clock,
    test_timestamps_rise_after_a_clock_step_back,
)
from tests.support.fake_store import FakeClock
from tests.support.store_backends import Opener

__all__ = [
    "TestCreate",
    "TestGiveBack",
    "TestGrant",
    "test_a_clock_past_max_value_moves_nothing",
    "test_a_counter_below_the_floor_grants_nothing",
    "test_a_grant_of_a_missing_sequence_is_none",
    "test_a_grant_of_the_other_kind_is_empty",
    "test_a_renewal_returns_the_generation",
    "test_concurrent_grants_never_overlap",
    "test_no_timestamp_is_too_far_ahead_of_the_clock",
    "test_the_first_timestamp_is_now",
    "test_the_last_timestamp_is_max_value",
    "test_the_stores_clock_limits_a_node_clock",
    "test_timestamps_rise_after_a_clock_step_back",
]
pytestmark = pytest.mark.parametrize("opener", OPENSEARCH, indirect=True)


class JoiningStore(OpenSearchStore):
    """Updates missing rows beside each row: one that waits with it, and others before both."""

    async def _join(self, update: RowUpdate) -> Written | None:
        beside = [update._replace(name=f"missing {number}") for number in range(MAX_REQUESTS + 1)]
        calls = [OpenSearchStore._join(self, each) for each in (*beside, update)]
        *_, answer = await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def open_joining(url: str, clock: FakeClock) -> JoiningStore:
    store = open_store(url, clock)
    assert isinstance(store, OpenSearchStore)
    return JoiningStore(store.address, store.http, store.prefix, store.timeout)


@pytest.fixture
def opener(opener: Opener) -> Opener:
    opener.open_url = open_joining
    return opener
