"""A store in memory and its clock, for every unit test that asks for them."""

import pytest

from tests.fakes import FakeClock, MemoryStore


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)
