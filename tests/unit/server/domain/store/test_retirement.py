"""A retired store creates no sequence and claims no start timestamp: another store does."""

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.errors import StartRefused, StoreRetired
from idalloc_server.domain.store.retirement import RETIREMENT, raise_if_retired, retirement_row
from tests.support.fake_store import FakeClock, MemoryStore


async def test_a_retired_store_issues_no_ids(allocator: Allocator, store: MemoryStore, clock: FakeClock) -> None:
    """P1: a retired store creates no row on first use, and no process starts on it."""
    await store.create(retirement_row("crate://new", "retire:1", clock.wall()))
    with pytest.raises(StoreRetired, match="crate://new"):
        await allocator.issue("orders", 1)
    assert list(store.rows) == [RETIREMENT]
    start_timestamps = StartTimestamps(store, clock, prefix=0, holder="me", max_clock_skew=5.0)
    with pytest.raises(StartRefused, match="crate://new"):
        await start_timestamps.start()
    assert not store.prefixes[0].holder


def test_a_retirement_that_was_undone_has_no_effect() -> None:
    """The tombstone of a retirement, or no row, means that the store is in use."""
    raise_if_retired(None)
    raise_if_retired(retirement_row("crate://new", "retire:1", 0.0)._replace(deleted=True))
