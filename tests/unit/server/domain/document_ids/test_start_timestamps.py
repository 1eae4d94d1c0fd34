"""Start timestamps (P6), the clocks that may not be believed, and prefixes that two nodes use."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.document_ids import start_timestamps as epoch_module
from idalloc_server.domain.document_ids.start_timestamps import (
    KEEP_SECONDS,
    STALE_AFTER,
    TIMESTAMP_END,
    StartTimestamp,
    StartTimestamps,
)
from idalloc_server.domain.errors import DocIdTimestampRefused, StartRefused, StoreOutcomeUnknown, StoreUnavailable
from tests.support.fake_store import FakeClock, MemoryStore, lost_reply, rejected, twice, unreachable

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


def epoch_of(
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
async def kept(start_timestamps: StartTimestamps, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Task[None]]:
    """Keeps a prefix, with no time between one write and the next."""
    monkeypatch.setattr(epoch_module, "KEEP_SECONDS", 0)
    task = asyncio.create_task(start_timestamps.run())
    yield task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def kept_again(store: MemoryStore, times: int = 1) -> None:
    """Waits until the prefix was kept so many times more, and the last of them has been answered."""
    wanted = len(store.calls_of("keep_prefix")) + times + 1
    async with asyncio.timeout(5):
        while len(store.calls_of("keep_prefix")) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0)


class TestStart:
    async def test_claims_the_clock_s_second(self, store: MemoryStore, clock: FakeClock) -> None:
        assert await epoch_of(store, clock).start() == StartTimestamp(prefix=7, timestamp=NOW)
        (claim,) = store.calls_of("claim_start")
        assert claim.arguments == (7, NOW, "me:50051", STALE_AFTER)

    async def test_claims_a_later_one_where_that_was_had(self, store: MemoryStore, clock: FakeClock) -> None:
        starts = [await epoch_of(store, clock).start() for _ in range(3)]
        assert [start.timestamp for start in starts] == [NOW, NOW + 1, NOW + 2]

    async def test_under_each_prefix_on_its_own(self, store: MemoryStore, clock: FakeClock) -> None:
        starts = [await epoch_of(store, clock, prefix=prefix).start() for prefix in (0, 65_535)]
        assert starts == [StartTimestamp(0, NOW), StartTimestamp(65_535, NOW)]

    async def test_a_claim_applied_twice_or_without_an_answer_burns_a_second(
        self, store: MemoryStore, clock: FakeClock
    ) -> None:
        store.next("claim_start", twice(), lost_reply())
        assert (await epoch_of(store, clock).start()).timestamp == NOW + 1
        with pytest.raises(StoreOutcomeUnknown):
            await epoch_of(store, clock).start()
        assert (await epoch_of(store, clock).start()).timestamp == NOW + 3

    async def test_a_clock_before_1970_claims_from_there(self, clock: FakeClock) -> None:
        clock.wall_seconds = -5.5
        store = MemoryStore(clock)
        assert (await epoch_of(store, clock).start()).timestamp == 0
        assert store.calls_of("claim_start")[0].arguments[1] == 0


class TestWrongClocks:
    @pytest.mark.parametrize(("ahead", "side"), [(5.5, "5.5 s ahead of"), (-5.5, "5.5 s behind")])
    async def test_too_far_from_the_store_s(self, ahead: float, side: str, clock: FakeClock) -> None:
        store = MemoryStore(FakeClock(wall=clock.wall() - ahead))
        with pytest.raises(StartRefused, match=f"clock is {side} the store's, more than 5 s") as refusal:
            await epoch_of(store, clock).start()
        assert refusal.value.setting == "max_clock_skew"
        assert not store.calls_of("claim_start")

    @pytest.mark.parametrize("ahead", [4.5, -4.5])
    async def test_near_enough(self, ahead: float, clock: FakeClock) -> None:
        store = MemoryStore(FakeClock(wall=clock.wall() - ahead))
        assert (await epoch_of(store, clock).start()).timestamp == NOW

    async def test_an_answer_that_took_long_is_not_a_skew(self, store: MemoryStore, clock: FakeClock) -> None:
        store.clock = FakeClock(wall=clock.wall())
        gate = store.hold("now")
        starting = asyncio.create_task(epoch_of(store, clock).start())
        await asyncio.sleep(0)
        clock.advance(60)
        gate.set()
        assert (await starting).timestamp == NOW + 60

    async def test_a_store_without_a_clock_leaves_this_machine_s(self, clock: FakeClock) -> None:
        store = MemoryStore(FakeClock(wall=0), has_clock=False)
        assert (await epoch_of(store, clock).start()).timestamp == NOW

    @pytest.mark.parametrize("tells_time", [True, False])
    async def test_past_2106(self, clock: FakeClock, tells_time: bool) -> None:
        clock.wall_seconds = TIMESTAMP_END
        store = MemoryStore(clock, has_clock=tells_time)
        with pytest.raises(StartRefused, match="past the year 2106") as refusal:
            await epoch_of(store, clock).start()
        assert refusal.value.setting == "max_clock_skew"
        assert not store.calls_of("claim_start")

    async def test_a_prefix_that_was_spoilt(self, store: MemoryStore, clock: FakeClock) -> None:
        store.prefixes[7].last_start = TIMESTAMP_END - 2
        assert (await epoch_of(store, clock).start()).timestamp == TIMESTAMP_END - 1
        with pytest.raises(StartRefused, match="prefix 7 has no start timestamp") as refusal:
            await epoch_of(store, clock).start()
        assert refusal.value.setting == "node_prefix"


async def test_a_store_that_says_nothing_is_given_up(clock: FakeClock) -> None:
    class SilentStore(MemoryStore):
        async def now(self) -> float | None:
            await asyncio.Event().wait()
            return None

    start_timestamps = StartTimestamps(
        SilentStore(clock), clock, prefix=7, holder="me", max_clock_skew=5.0, store_timeout=0.1
    )
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailable, match=r"within 0\.1 s"):
            await start_timestamps.start()


class TestConflict:
    async def test_refused(self, store: MemoryStore, clock: FakeClock) -> None:
        await epoch_of(store, clock, "first:50051").start()
        with pytest.raises(StartRefused, match="in use by first:50051") as refusal:
            await epoch_of(store, clock, "second:50051").start()
        assert refusal.value.setting == "node_prefix"
        assert "\n" not in str(refusal.value)

    async def test_warned_of(self, store: MemoryStore, clock: FakeClock, logs: list[Any]) -> None:
        first = await epoch_of(store, clock, "first:50051", prefix_conflict="warn").start()
        assert logs == []
        second = await epoch_of(store, clock, "second:50051", prefix_conflict="warn").start()
        assert second.timestamp == first.timestamp + 1
        (warning,) = logs
        assert warning == {
            "event": "prefix_conflict",
            "log_level": "warning",
            "prefix": 7,
            "holder": "first:50051",
            "seen_at": clock.wall(),
        }

    async def test_not_with_oneself(self, store: MemoryStore, clock: FakeClock, logs: list[Any]) -> None:
        await epoch_of(store, clock, "first:50051").start()
        await epoch_of(store, clock, "first:50051").start()
        assert logs == []

    async def test_not_with_one_who_released_it(self, store: MemoryStore, clock: FakeClock) -> None:
        first = epoch_of(store, clock, "first:50051")
        await first.start()
        await first.release()
        assert (await epoch_of(store, clock, "second:50051").start()).timestamp == NOW + 1

    async def test_not_with_one_who_was_not_seen_for_long(self, store: MemoryStore, clock: FakeClock) -> None:
        await epoch_of(store, clock, "first:50051").start()
        clock.advance(STALE_AFTER - 1)
        with pytest.raises(StartRefused):
            await epoch_of(store, clock, "second:50051").start()
        clock.advance(1)
        assert (await epoch_of(store, clock, "second:50051").start()).timestamp == NOW + STALE_AFTER


class TestKeeping:
    async def test_a_node_that_lives_is_never_stale(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = epoch_of(store, clock, "first:50051")
        await first.start()
        async with kept(first, monkeypatch):
            for _ in range(10):
                clock.advance(KEEP_SECONDS)
                await kept_again(store)
        with pytest.raises(StartRefused, match="in use by first:50051"):
            await epoch_of(store, clock, "second:50051").start()

    def test_misses_two_turns_before_it_is_stale(self) -> None:
        assert KEEP_SECONDS * 3 <= STALE_AFTER

    async def test_it_waits_between(self, store: MemoryStore, clock: FakeClock) -> None:
        task = asyncio.create_task(epoch_of(store, clock).run())
        await asyncio.sleep(0.05)
        assert store.calls == []
        task.cancel()

    async def test_an_outage_is_logged_once_and_survived(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
    ) -> None:
        start_timestamps = epoch_of(store, clock)
        await start_timestamps.start()
        store.next("keep_prefix", unreachable(), lost_reply(), rejected())
        async with kept(start_timestamps, monkeypatch) as task:
            await kept_again(store, 4)
            store.next("keep_prefix", unreachable())
            await kept_again(store, 2)
            assert not task.done()
        assert [(entry["event"], entry["log_level"]) for entry in logs] == [
            ("prefix_not_kept", "warning"),
            ("prefix_kept_again", "info"),
        ] * 2
        assert logs[0]["error"] == "the store cannot be reached"

    async def test_a_prefix_that_was_changed_is_the_one_kept(
        self, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start_timestamps = epoch_of(store, clock)
        await start_timestamps.start()
        start = await start_timestamps.claim(8)
        assert (start, start_timestamps.prefix) == (StartTimestamp(8, NOW), 7)
        start_timestamps.use(start)
        await start_timestamps.release(7)
        assert store.prefixes[7].holder == ""
        assert await start_timestamps.claim_next(NOW) == StartTimestamp(8, NOW + 1)
        async with kept(start_timestamps, monkeypatch):
            await kept_again(store)
        assert {call.arguments[0] for call in store.calls_of("keep_prefix")} == {8}

    async def test_release_does_not_fail_a_stop(self, store: MemoryStore, clock: FakeClock, logs: list[Any]) -> None:
        start_timestamps = epoch_of(store, clock)
        await start_timestamps.start()
        store.down = True
        await start_timestamps.release()
        assert [entry["event"] for entry in logs] == ["prefix_not_released"]
        assert store.prefixes[7].holder == "me:50051"


class TestNext:
    async def test_is_later_whatever_the_clock_says(self, store: MemoryStore, clock: FakeClock) -> None:
        start_timestamps = epoch_of(store, clock)
        clock.wall_seconds = 0
        assert await start_timestamps.claim_next(NOW) == StartTimestamp(7, NOW + 1)
        assert await start_timestamps.claim_next(NOW) == StartTimestamp(7, NOW + 2)

    async def test_passes_a_failure_on(self, store: MemoryStore, clock: FakeClock) -> None:
        store.down = True
        with pytest.raises(StoreUnavailable):
            await epoch_of(store, clock).claim_next(NOW)

    async def test_below_2_to_32_or_not_at_all(self, store: MemoryStore, clock: FakeClock) -> None:
        start_timestamps = epoch_of(store, clock)
        assert await start_timestamps.claim_next(TIMESTAMP_END - 2) == StartTimestamp(7, TIMESTAMP_END - 1)
        with pytest.raises(DocIdTimestampRefused):
            await start_timestamps.claim_next(TIMESTAMP_END - 1)
        assert len(store.calls) == 1
        with pytest.raises(DocIdTimestampRefused):  # the store knows of more
            await start_timestamps.claim_next(NOW)
