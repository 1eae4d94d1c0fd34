"""A store in memory, its clock and an allocator, for every unit test that asks for them."""

import pytest

from idalloc_server.domain.allocator import Allocator
from tests.fakes import FakeClock, MemoryStore
from tests.unit.lanes import TERMS


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def allocator(store: MemoryStore, clock: FakeClock) -> Allocator:
    return Allocator(store, clock, TERMS)
