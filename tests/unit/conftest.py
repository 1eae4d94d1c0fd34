"""A store in memory, its clock and an allocator, for every unit test that asks for them."""

import os

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import TERMS


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def allocator(store: MemoryStore, clock: FakeClock) -> Allocator:
    return Allocator(store, clock, TERMS)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without idalloc's variables, for a test to set some."""
    for name in [name for name in os.environ if name.startswith("IDALLOC_")]:
        monkeypatch.delenv(name)
    return monkeypatch
