"""Start timestamps (P6), wrong clocks, and prefixes that two nodes use."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.document_ids import start_timestamps as start_timestamps_module
from idalloc_server.domain.document_ids.start_timestamps import (
    HEARTBEAT_SECONDS,
    STALE_AFTER,
    TIMESTAMP_END,
    StartTimestamp,
    StartTimestamps,
)
from idalloc_server.domain.errors import DocIdTimestampRefused, StartRefused, StoreOutcomeUnknown, StoreUnavailable
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply, rejected, twice, unreachable
from tests.support.waiting import settle

NOW = 1_700_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(wall=NOW + 0.75)


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


def start_timestamps_of(
    store: MemoryStore,
    clock: FakeClock,
    holder: str = "me:50051",
    prefix: int = 7,
    prefix_conflict: Literal["warn", "refuse"] = "refuse",
) -> StartTimestamps:
    return StartTimestamps(
        store, clock, prefix=prefix, holder=holder, max_clock_skew=5.0, prefix_conflict=prefix_conflict
    )


@asynccontextmanager
async def heartbeats(
    start_timestamps: StartTimestamps, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Task[None]]:
    """Send heartbeats without a pause between them."""
    monkeypatch.setattr(start_timestamps_module, "HEARTBEAT_SECONDS", 0)
    task = asyncio.create_task(start_timestamps.keep_prefix())
    yield task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def wait_for_heartbeats(store: MemoryStore, times: int = 1) -> None:
    """Wait until the store has answered this many further heartbeats."""
    wanted = len(store.calls_of("keep_prefix")) + times + 1
    async with asyncio.timeout(5):
        while len(store.calls_of("keep_prefix")) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0)


class TestStart:
    async def test_claims_the_second_of_the_clock(self, store: MemoryStore, clock: FakeClock) -> None:
        """The first claim is the second of the clock."""
        assert await start_timestamps_of(store, clock).start() == StartTimestamp(prefix=7, timestamp=NOW)
        (claim,) = store.calls_of("claim_start")
        assert claim.arguments == (7, NOW, "me:50051", STALE_AFTER)

    async def test_claims_the_next_second_if_claimed(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: a second that is claimed is not claimed again."""
        starts = [await start_timestamps_of(store, clock).start() for _ in range(3)]
        assert [start.timestamp for start in starts] == [NOW, NOW + 1, NOW + 2]

    async def test_a_restored_store_repeats_no_claim(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: a process that claims again from a store that lost its claim gets a later second."""
        start_timestamps = start_timestamps_of(store, clock)
        assert await start_timestamps.start() == StartTimestamp(7, NOW)
        store.prefixes.clear()
        assert await start_timestamps.claim(7) == StartTimestamp(7, NOW + 1)

    async def test_prefixes_are_independent(self, store: MemoryStore, clock: FakeClock) -> None:
        """Each prefix has its own start timestamps."""
        starts = [await start_timestamps_of(store, clock, prefix=prefix).start() for prefix in (0, 65_535)]
        assert starts == [StartTimestamp(0, NOW), StartTimestamp(65_535, NOW)]

    async def test_a_repeated_or_unanswered_claim_burns_a_second(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: a claim that is applied twice, or without a reply, burns a second."""
        store.next("claim_start", twice(), lost_reply())
        assert (await start_timestamps_of(store, clock).start()).timestamp == NOW + 1
        with pytest.raises(StoreOutcomeUnknown):
            await start_timestamps_of(store, clock).start()
        assert (await start_timestamps_of(store, clock).start()).timestamp == NOW + 3

    async def test_a_clock_before_1970_claims_0(self, clock: FakeClock) -> None:
        """A clock before 1970 claims timestamp 0."""
        clock.wall_seconds = -5.5
        store = MemoryStore(clock)
        assert (await start_timestamps_of(store, clock).start()).timestamp == 0
        assert store.calls_of("claim_start")[0].arguments[1] == 0


class TestWrongClocks:
    @pytest.mark.parametrize(("ahead", "side"), [(5.5, "ahead of"), (-5.5, "behind")])
    async def test_a_clock_far_from_the_store_is_rejected(self, ahead: float, side: str, clock: FakeClock) -> None:
        """A clock further than max_clock_skew from the store's claims nothing."""
        store = MemoryStore(FakeClock(wall=clock.wall() - ahead))
        with pytest.raises(
            StartRefused, match=f"clock is {side} the store's by more than max_clock_skew = 5 s"
        ) as refusal:
            await start_timestamps_of(store, clock).start()
        assert refusal.value.setting == "max_clock_skew"
        assert not store.calls_of("claim_start")

    @pytest.mark.parametrize("ahead", [4.5, -4.5])
    async def test_a_clock_near_the_store_is_accepted(self, ahead: float, clock: FakeClock) -> None:
        """A clock within max_clock_skew of the store's may claim."""
        store = MemoryStore(FakeClock(wall=clock.wall() - ahead))
        assert (await start_timestamps_of(store, clock).start()).timestamp == NOW

    async def test_a_slow_reply_is_not_clock_skew(self, store: MemoryStore, clock: FakeClock) -> None:
        """The duration of the store's reply does not count as clock skew."""
        store.clock = FakeClock(wall=clock.wall())
        gate = store.hold("now")
        starting = asyncio.create_task(start_timestamps_of(store, clock).start())
        await asyncio.sleep(0)
        clock.advance(60)
        gate.set()
        assert (await starting).timestamp == NOW + 60

    async def test_a_store_without_a_clock_is_not_compared(self, clock: FakeClock) -> None:
        """A store without a clock of its own allows any clock."""
        store = MemoryStore(FakeClock(wall=0), has_clock=False)
        assert (await start_timestamps_of(store, clock).start()).timestamp == NOW

    @pytest.mark.parametrize("tells_time", [True, False])
    async def test_a_clock_past_2106_is_rejected(self, clock: FakeClock, tells_time: bool) -> None:
        """A clock whose timestamp does not fit in an id claims nothing."""
        clock.wall_seconds = TIMESTAMP_END
        store = MemoryStore(clock, has_clock=tells_time)
        with pytest.raises(StartRefused, match="past the year 2106") as refusal:
            await start_timestamps_of(store, clock).start()
        assert refusal.value.setting == "max_clock_skew"
        assert not store.calls_of("claim_start")

    async def test_an_exhausted_prefix_is_rejected(self, store: MemoryStore, clock: FakeClock) -> None:
        """A prefix without start timestamps left names the setting node_prefix."""
        store.prefixes[7].last_start = TIMESTAMP_END - 2
        assert (await start_timestamps_of(store, clock).start()).timestamp == TIMESTAMP_END - 1
        with pytest.raises(StartRefused, match="prefix 7 has no start timestamp") as refusal:
            await start_timestamps_of(store, clock).start()
        assert refusal.value.setting == "node_prefix"


class TestConflict:
    async def test_refuse_rejects_the_start(self, store: MemoryStore, clock: FakeClock) -> None:
        """With prefix_conflict refuse, a node does not start on the prefix of a live node."""
        await start_timestamps_of(store, clock, "first:50051").start()
        with pytest.raises(StartRefused, match="in use by first:50051") as refusal:
            await start_timestamps_of(store, clock, "second:50051").start()
        assert refusal.value.setting == "node_prefix"
        assert "\n" not in str(refusal.value)

    async def test_warn_logs_and_starts(self, store: MemoryStore, clock: FakeClock, logs: list[Any]) -> None:
        """P6: with prefix_conflict warn, both nodes issue, under different start timestamps."""
        first = await start_timestamps_of(store, clock, "first:50051", prefix_conflict="warn").start()
        assert logs == []
        second = await start_timestamps_of(store, clock, "second:50051", prefix_conflict="warn").start()
        assert second.timestamp == first.timestamp + 1
        (warning,) = logs
        assert warning == {
            "event": "prefix_conflict",
            "next_step": "give this node or the other one another node_prefix",
            "log_level": "warning",
            "prefix": 7,
            "holder": "first:50051",
            "seen_at": clock.wall(),
        }

    async def test_the_same_holder_is_no_conflict(self, store: MemoryStore, clock: FakeClock, logs: list[Any]) -> None:
        """A restarted node does not conflict with itself."""
        await start_timestamps_of(store, clock, "first:50051").start()
        await start_timestamps_of(store, clock, "first:50051").start()
        assert logs == []

    async def test_a_released_prefix_is_no_conflict(self, store: MemoryStore, clock: FakeClock) -> None:
        """A released prefix is free."""
        first = start_timestamps_of(store, clock, "first:50051")
        await first.start()
        await first.release()
        assert (await start_timestamps_of(store, clock, "second:50051").start()).timestamp == NOW + 1

    async def test_a_stale_holder_is_no_conflict(self, store: MemoryStore, clock: FakeClock) -> None:
        """A holder without heartbeats for STALE_AFTER seconds is stale."""
        await start_timestamps_of(store, clock, "first:50051").start()
        clock.advance(STALE_AFTER - 1)
        with pytest.raises(StartRefused):
            await start_timestamps_of(store, clock, "second:50051").start()
        clock.advance(1)
        assert (await start_timestamps_of(store, clock, "second:50051").start()).timestamp == NOW + STALE_AFTER


class TestHeartbeats:
    async def test_a_live_node_is_never_stale(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Heartbeats keep the holder of a prefix."""
        first = start_timestamps_of(store, clock, "first:50051")
        await first.start()
        async with heartbeats(first, monkeypatch):
            for _ in range(10):
                clock.advance(HEARTBEAT_SECONDS)
                await wait_for_heartbeats(store)
        with pytest.raises(StartRefused, match="in use by first:50051"):
            await start_timestamps_of(store, clock, "second:50051").start()

    def test_two_missed_heartbeats_are_tolerated(self) -> None:
        """A node may miss two heartbeats before it is stale."""
        assert HEARTBEAT_SECONDS * 3 <= STALE_AFTER

    async def test_heartbeats_have_an_interval(self, store: MemoryStore, clock: FakeClock) -> None:
        """The first heartbeat waits for one interval."""
        task = asyncio.create_task(start_timestamps_of(store, clock).keep_prefix())
        await settle()
        assert store.calls == []
        task.cancel()

    async def test_an_outage_is_logged_once(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
    ) -> None:
        """An outage of the store logs one failure and one recovery."""
        start_timestamps = start_timestamps_of(store, clock)
        await start_timestamps.start()
        store.next("keep_prefix", unreachable(), lost_reply(), rejected())
        async with heartbeats(start_timestamps, monkeypatch) as task:
            await wait_for_heartbeats(store, 4)
            store.next("keep_prefix", unreachable())
            await wait_for_heartbeats(store, 2)
            assert not task.done()
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [
            ("prefix_heartbeat_failed", "warning"),
            ("prefix_heartbeat_recovered", "info"),
        ] * 2
        assert logs[0]["error"] == "the store cannot be reached"

    async def test_heartbeats_follow_a_changed_prefix(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a switch, heartbeats and claims use the new prefix."""
        start_timestamps = start_timestamps_of(store, clock)
        await start_timestamps.start()
        start = await start_timestamps.claim(8)
        assert (start, start_timestamps.prefix) == (StartTimestamp(8, NOW), 7)
        start_timestamps.prefix = start.prefix
        await start_timestamps.release(7)
        assert store.prefixes[7].holder == ""
        assert await start_timestamps.claim_next(NOW) == StartTimestamp(8, NOW + 1)
        async with heartbeats(start_timestamps, monkeypatch):
            await wait_for_heartbeats(store)
        assert {call.arguments[0] for call in store.calls_of("keep_prefix")} == {8}

    async def test_a_failed_release_is_logged(self, store: MemoryStore, clock: FakeClock, logs: list[Any]) -> None:
        """A release that fails is logged and raises nothing."""
        start_timestamps = start_timestamps_of(store, clock)
        await start_timestamps.start()
        store.down = True
        await start_timestamps.release()
        assert [(entry["event"], entry["resource"]) for entry in logs] == [("cleanup_failed", "prefix")]
        assert store.prefixes[7].holder == "me:50051"


class TestClaimNext:
    async def test_is_later_than_any_clock(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: the next claim is later than the last, whatever the clock says."""
        start_timestamps = start_timestamps_of(store, clock)
        clock.wall_seconds = 0
        assert await start_timestamps.claim_next(NOW) == StartTimestamp(7, NOW + 1)
        assert await start_timestamps.claim_next(NOW) == StartTimestamp(7, NOW + 2)

    async def test_raises_the_failure_of_the_store(self, store: MemoryStore, clock: FakeClock) -> None:
        """A failure of the store is raised."""
        store.down = True
        with pytest.raises(StoreUnavailable):
            await start_timestamps_of(store, clock).claim_next(NOW)

    async def test_stays_below_2_to_32(self, store: MemoryStore, clock: FakeClock) -> None:
        """P6: no timestamp of 2^32 or more is returned."""
        start_timestamps = start_timestamps_of(store, clock)
        assert await start_timestamps.claim_next(TIMESTAMP_END - 2) == StartTimestamp(7, TIMESTAMP_END - 1)
        with pytest.raises(DocIdTimestampRefused):
            await start_timestamps.claim_next(TIMESTAMP_END - 1)
        assert len(store.calls) == 1
        with pytest.raises(DocIdTimestampRefused):  # the store has no later one
            await start_timestamps.claim_next(NOW)
