"""The store's health is judged by what was asked of it."""

import asyncio

import structlog

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import SequenceNotFound, StoreWentBackwards
from tests.support.fake_store import FakeClock, MemoryStore, rejected

TERMS = AllocationConfig(lease_ttl=180.0, store_timeout=60.0, auto_create_sequences=True)


async def settle() -> None:
    """Lets a refill from a store in memory run to its end."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_refill_that_fails_without_callers_is_seen() -> None:
    """Callers served from a lease notice nothing; health and the log say why the store fails, once a second."""
    clock = FakeClock()
    store = MemoryStore(clock)
    node = Allocator(store, clock, TERMS)
    for _ in range(5):
        await node.allocate("orders", 10)
    clock.advance(70)  # a third of the lease is gone: it is to be renewed
    store.next("grant", rejected())
    assert node.take("orders", 1) is not None
    await settle()
    with structlog.testing.capture_logs() as logs:
        node.store_health.evaluate()
        node.store_health.evaluate()
    assert node.store_health.error == "the store said no"
    assert [(line["event"], line["count"]) for line in logs] == [("store_fails", 1)]
    clock.advance(2)
    assert node.take("orders", 1) is not None
    await settle()
    with structlog.testing.capture_logs() as logs:
        node.store_health.evaluate()
    assert node.store_health.error == ""
    assert [line["event"] for line in logs] == ["store_recovered"]


async def test_a_mistake_of_a_caller_is_no_fault_of_the_store() -> None:
    """Only errors of the store count."""
    check = Allocator(MemoryStore(FakeClock()), FakeClock(), TERMS).store_health
    check.record_failure(SequenceNotFound("orders"))
    check.evaluate()
    assert check.error == ""


async def test_a_sequence_that_is_behind_is_no_failing_store() -> None:
    """P3 refuses one sequence, while others work: the check of the store would turn with each call."""
    check = Allocator(MemoryStore(FakeClock()), FakeClock(), TERMS).store_health
    check.record_failure(StoreWentBackwards("orders", seen="value 10", found="value 5"))
    check.evaluate()
    assert check.error == ""
