"""Fixtures of all unit tests: a store in memory, its clock, an allocator, an environment."""

import os

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.store_calls import proxied
from tests.support.fake_store import FakeClock, MemoryStore
from tests.support.sequence_allocators import CONFIG


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def allocator(store: MemoryStore, clock: FakeClock) -> Allocator:
    return Allocator(proxied(store, Store, CONFIG.store_timeout), clock, CONFIG)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Remove idalloc's variables from the environment; a test may set some."""
    for name in [name for name in os.environ if name.startswith("IDALLOC_")]:
        monkeypatch.delenv(name)
    return monkeypatch
