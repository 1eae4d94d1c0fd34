"""The contract of grants, where each of them shares its request with another write."""

import asyncio
from typing import Any

import pytest

from idalloc_server.domain.errors import GrantLost
from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.cluster.joined_writes import MAX_REQUESTS, JoinedWrites
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.opensearch.store import OpenSearchStore
from idalloc_server.store.urls import open_store
from tests.store.conftest import CRATEDB, OPENSEARCH
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
# On the emulator these are slow, since each grant has nine others beside it.
LONG_CRATEDB = [pytest.param("emulator", marks=pytest.mark.test_long), *CRATEDB[1:]]
pytestmark = pytest.mark.parametrize("opener", [*LONG_CRATEDB, *OPENSEARCH], indirect=True)


class Crowded(JoinedWrites[Any, Any]):
    """Writes missing rows beside each row: one that waits with it, and others before both."""

    async def write(self, write: Any) -> Any:
        beside = [write._replace(name=f"missing {number}") for number in range(MAX_REQUESTS + 1)]
        calls = [JoinedWrites.write(self, each) for each in (*beside, write)]
        *_, answer = await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(answer, GrantLost):  # as the caller, who repeats it
            return await self._send(write)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class JoiningStore(CrateStore):
    """Sends no grant alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._grants = Crowded(self._send_grant, self._send_grants)

    def _is_alone(self, name: str) -> bool:
        return False


def open_joining(url: str, clock: FakeClock) -> Store:
    store = open_store(url, clock)
    if isinstance(store, CrateStore):
        return JoiningStore(store.address, store.http, store.schema)
    assert isinstance(store, OpenSearchStore)
    store._updates = Crowded(store._send_update, store._send_updates)
    return store


@pytest.fixture
def opener(opener: Opener) -> Opener:
    opener.open_url = open_joining
    return opener
