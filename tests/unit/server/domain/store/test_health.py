"""The store's health follows from the results of its calls."""

import asyncio

import pytest
import structlog

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import (
    Refusal,
    SequenceNotFound,
    StoreExchanged,
    StoreFailure,
    StoreRefused,
    StoreUnavailable,
    StoreUnreachable,
    StoreWentBackwards,
)
from idalloc_server.domain.store.store_calls import StoreHealth
from tests.support.fake_store import FakeClock, Fault, MemoryStore, rejected

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=60.0, auto_create_sequences=True)


async def settle() -> None:
    """Let a refill from a store in memory complete."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_failed_refill_without_callers_is_reported() -> None:
    """A failed refill without a caller shows in the health and, once a second, in the log."""
    clock = FakeClock()
    store = MemoryStore(clock)
    node = Allocator(store, clock, CONFIG)
    for _ in range(5):
        await node.issue("orders", 10)
    clock.advance(70)  # more than a third of the lease TTL: renewal is due
    store.next("grant", rejected())
    assert node.issue_now("orders", 1) is not None
    await settle()
    with structlog.testing.capture_logs() as logs:
        node.store_health.evaluate()
        node.store_health.evaluate()
    assert node.store_health.error == "the store rejected the statement"
    assert [(line["event"], line["count"]) for line in logs] == [("store_unavailable", 1)]
    clock.advance(2)
    assert node.issue_now("orders", 1) is not None
    await settle()
    with structlog.testing.capture_logs() as logs:
        node.store_health.evaluate()
    assert node.store_health.error == ""
    assert [line["event"] for line in logs] == ["store_recovered"]


async def test_a_failed_refill_of_cancelled_callers_is_reported() -> None:
    """A store that fails after its callers' deadlines shows in the health, and counts once."""
    clock = FakeClock()
    store = MemoryStore(clock)
    node = Allocator(store, clock, CONFIG)
    fails = asyncio.Event()
    store.next("grant", Fault(applied=0, error=rejected().error, before=fails))
    calls = [asyncio.create_task(node.issue("orders", 1)) for _ in range(2)]
    await settle()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    fails.set()
    await settle()
    with structlog.testing.capture_logs() as logs:
        node.store_health.evaluate()
    assert node.store_health.error == "the store rejected the statement"
    assert [(line["event"], line["count"]) for line in logs] == [("store_unavailable", 1)]


@pytest.mark.parametrize("errors", [(StoreUnreachable("away"), StoreRefused("read-only")), (StoreUnreachable("away"),)])
def test_the_event_is_the_reason_of_the_last_error(errors: tuple[StoreFailure, ...]) -> None:
    """The log event of a failing store has the name of the last error's reason."""
    health = StoreHealth()
    for error in errors:
        health.record_failure(error)
    with structlog.testing.capture_logs() as logs:
        health.evaluate()
    assert [(line["event"], line["count"], line["error"]) for line in logs] == [
        (errors[-1].reason.lower(), len(errors), str(errors[-1]))
    ]


@pytest.mark.parametrize(
    "error",
    [
        SequenceNotFound("orders"),
        StoreUnavailable("the lease of sequence 'orders' expired before the reply; try again"),
    ],
    ids=["of a caller", "of this node"],
)
async def test_an_error_that_is_not_of_the_store_does_not_count(error: Refusal) -> None:
    """Only the store's own errors, and a store that does not answer in time, count."""
    health = Allocator(MemoryStore(FakeClock()), FakeClock(), CONFIG).store_health
    health.record_failure(error)
    health.evaluate()
    assert health.error == ""


async def test_a_sequence_that_went_backwards_does_not_count() -> None:
    """P3: a store that is behind for one sequence works for others."""
    health = Allocator(MemoryStore(FakeClock()), FakeClock(), CONFIG).store_health
    health.record_failure(StoreWentBackwards("orders", seen="value 10", found="value 5"))
    health.evaluate()
    assert health.error == ""


def test_only_a_grant_ends_an_exchange() -> None:
    """P3: a kept prefix, in another table, does not show that exchanged sequences are back."""
    health = StoreHealth()
    health.record_failure(StoreExchanged("the table a", "the table b"))
    health.evaluate()
    for _ in range(3):
        health.record_heartbeat()
        health.evaluate()
        assert "was exchanged" in health.error
    health.record_success()
    health.evaluate()
    assert health.error == ""
    health.record_failure(StoreUnreachable("away"))
    health.evaluate()
    health.record_heartbeat()
    health.evaluate()
    assert health.error == ""
