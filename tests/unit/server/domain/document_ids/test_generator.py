"""Document ids: MySQL's arithmetic (compared with recordings), settings, and serial overflows."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idalloc_server.domain.document_ids.generator import MAX_SERIAL, DocIdGenerator, DocIdRun, next_serial
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import (
    DocIdTimestampRefused,
    InvalidRequest,
    ServerDraining,
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreUnavailable,
)
from tests.support.fake_store import FakeClock, Fault, MemoryStore, lost_reply, rejected, unreachable
from tests.support.mysql import recordings
from tests.support.waiting import settle

NOW = 1_700_000_000

# Serials at the start, where an offset may lie ahead, anywhere, and before the overflow.
SERIALS = st.one_of(
    st.integers(0, 200_000),
    st.integers(0, MAX_SERIAL),
    st.integers(0, 5_000_000).map(lambda below: MAX_SERIAL - below),
)
STEPS = st.one_of(st.integers(0, 20), st.integers(0, 65_535), st.sampled_from([1, 2, 3, 16, 256, 65_535]))
RUNS = st.builds(
    lambda prefix, timestamp, first, step, count: DocIdRun(
        prefix, timestamp, first, step, min(count, (MAX_SERIAL - first) // step + 1)
    ),
    st.integers(0, 65_535),
    st.integers(0, 2**32 - 1),
    SERIALS,
    st.one_of(st.integers(1, 300), st.integers(1, 65_535)),
    st.one_of(st.integers(1, 20), st.integers(4_000, 9_000)),
)


def start_timestamps_of(store: MemoryStore) -> StartTimestamps:
    return StartTimestamps(store, FakeClock(wall=NOW), prefix=0, holder="me", max_clock_skew=1e12)


async def started(store: MemoryStore) -> DocIdGenerator:
    """Return the generator of a process that has just started."""
    start_timestamps = start_timestamps_of(store)
    return DocIdGenerator(start_timestamps, await start_timestamps.start())


def running(store: MemoryStore, serial: int, timestamp: int = NOW) -> DocIdGenerator:
    """Return a generator that has issued ``serial``, set directly as for the recordings."""
    doc_ids = DocIdGenerator(start_timestamps_of(store), StartTimestamp(0, timestamp))
    doc_ids._serial = serial
    return doc_ids


def texts(runs: list[DocIdRun] | None) -> list[str]:
    assert runs is not None
    return [text for run in runs for text in run.texts()]


def serials(runs: list[DocIdRun] | None) -> list[int]:
    return [int(text[12:], 16) for text in texts(runs)]


def generate_one_by_one(timestamp: int, serial: int, offset: int, increment: int, count: int) -> list[tuple[int, int]]:
    """Return what MySQL's generator does, one id at a time."""
    ids = []
    for _ in range(count):
        following = next_serial(serial, offset, increment)
        if following <= serial:
            timestamp += 1
            following = offset
        serial = following
        ids.append((timestamp, serial))
    return ids


class TestArithmetic:
    def test_every_recorded_transition_is_reproduced(self) -> None:
        """Each transition recorded from MySQL is reproduced, one id at a time."""
        seen = 0
        for recorded in recordings.transitions():
            timestamp, serial = recorded.timestamp_before, recorded.serial_before
            for text in recorded.ids:
                ((timestamp, serial),) = generate_one_by_one(timestamp, serial, recorded.offset, recorded.increment, 1)
                assert f"{timestamp:08x}{serial:016x}" == text[4:], recorded
                seen += 1
        assert seen == 1319

    async def test_every_recorded_batch_is_reproduced_by_runs(self) -> None:
        """At most three runs reproduce each batch recorded from MySQL, also over overflows."""
        overflows = 0
        for recorded in recordings.transitions():
            store = MemoryStore()
            doc_ids = running(store, recorded.serial_before, recorded.timestamp_before)
            runs = await doc_ids.issue(len(recorded.ids), recorded.offset, recorded.increment)
            assert [text[4:] for text in texts(runs)] == [text[4:] for text in recorded.ids], recorded
            assert len(runs) <= 3
            overflows += len(store.calls)
        assert overflows >= 13  # the number recorded

    @pytest.mark.parametrize(
        ("offset", "increment", "expected"),
        [
            (5, 1, [1, 2, 3]),  # the offset is ignored
            (0, 0, [1, 2, 3]),
            (3, 10, [3, 13, 23]),
            (10, 3, [3, 6, 9, 10, 13]),  # underflow until the offset
            (16, 8, [8, 16, 24]),  # underflow without effect: a power of two
        ],
    )
    def test_first_serials_of_a_new_process(self, offset: int, increment: int, expected: list[int]) -> None:
        """A new process issues MySQL's first serials for any offset and increment."""
        found = generate_one_by_one(NOW, 0, offset, increment, len(expected))
        assert [serial for _, serial in found] == expected

    @given(SERIALS, STEPS, STEPS, st.one_of(st.integers(1, 5), st.integers(1, 400)))
    def test_runs_equal_ids_one_by_one(self, serial: int, offset: int, increment: int, count: int) -> None:
        """The closed form gives the ids of MySQL's algorithm."""

        async def generated() -> list[DocIdRun]:
            doc_ids = running(MemoryStore(), serial)
            doc_ids.offset, doc_ids.increment = offset, increment
            return await doc_ids.issue(count)

        runs = asyncio.run(generated())
        expected = generate_one_by_one(NOW, serial, offset, increment, count)
        assert texts(runs) == [f"0000{timestamp:08x}{serial:016x}" for timestamp, serial in expected]
        assert len(runs) <= 3
        assert sum(run.id_count for run in runs) == count

    def test_a_million_ids_are_two_runs(self) -> None:
        """A batch has few runs, however large it is."""
        runs = running(MemoryStore(), 0).issue_now(1_000_000, offset=10, increment=3)
        assert runs == [DocIdRun(0, NOW, 3, 3, 3), DocIdRun(0, NOW, 10, 3, 999_997)]

    @pytest.mark.parametrize(
        ("offset", "increment", "first"), [(16, 8, 8), (65_535, 1, 1), (7, 10, 7), (65_535, 256, 255)]
    )
    def test_a_constant_step_is_one_run(self, offset: int, increment: int, first: int) -> None:
        """A batch with a constant step is one run."""
        runs = running(MemoryStore(), 0).issue_now(1_000_000, offset, increment)
        assert runs == [DocIdRun(0, NOW, first, increment, 1_000_000)]


class TestTexts:
    @given(RUNS)
    def test_equal_formatting_each_id(self, run: DocIdRun) -> None:
        """The table-driven texts equal those of printf."""
        expected = [
            "%04x%08x%016x" % (run.prefix, run.timestamp, run.first + i * run.step)  # noqa: UP031
            for i in range(run.id_count)
        ]
        assert run.texts() == expected
        assert run.first_doc_id == expected[0]

    def test_match_the_example_of_mysql(self) -> None:
        """The example of MySQL's documentation is reproduced."""
        assert DocIdRun(0, 0x6075F681, 6, 1, 1).texts() == ["00006075f6810000000000000006"]


class TestSettings:
    async def test_all_callers_share_the_serial(self) -> None:
        """All callers share one serial, whatever their offset and increment, as in MySQL."""
        doc_ids = await started(MemoryStore())
        assert serials(doc_ids.issue_now(11))[-1] == 0x0B
        assert serials(doc_ids.issue_now(2, increment=256)) == [0x101, 0x201]
        assert serials(doc_ids.issue_now(2, offset=128, increment=256)) == [0x280, 0x380]
        assert serials(doc_ids.issue_now(1)) == [0x381]  # as recorded from MySQL

    async def test_zero_means_the_nodes_setting(self) -> None:
        """An offset or increment of 0 is the node's, which may change."""
        doc_ids = await started(MemoryStore())
        doc_ids.offset, doc_ids.increment = 3, 10
        assert serials(doc_ids.issue_now(2)) == [3, 13]
        assert serials(doc_ids.issue_now(1, offset=5)) == [15]
        assert serials(doc_ids.issue_now(1, increment=1)) == [16]
        doc_ids.increment = 100
        assert serials(doc_ids.issue_now(1)) == [103]

    @pytest.mark.parametrize(
        ("count", "offset", "increment", "field"),
        [
            (1, -1, 0, "auto_increment_offset"),
            (1, 65_536, 0, "auto_increment_offset"),
            (1, 0, -1, "auto_increment_increment"),
            (1, 0, 65_536, "auto_increment_increment"),
            (0, 0, 0, "id_count"),
            (-1, 0, 0, "id_count"),
            (2**40 + 1, 0, 0, "id_count"),
        ],
    )
    async def test_an_argument_out_of_range_issues_nothing(
        self, count: int, offset: int, increment: int, field: str
    ) -> None:
        """An argument out of range names its field and issues nothing."""
        doc_ids = await started(MemoryStore())
        with pytest.raises(InvalidRequest) as refusal:
            doc_ids.issue_now(count, offset, increment)
        assert refusal.value.field == field
        assert serials(doc_ids.issue_now(1, 65_535, 65_535)) == [65_535]

    async def test_a_new_prefix_gets_its_own_start_timestamp(self) -> None:
        """P6: a new prefix gets its own start timestamp, and the serial continues."""
        store = MemoryStore()
        doc_ids = await started(store)
        before = texts(await doc_ids.issue(3))
        await doc_ids.change(prefix=255)
        after = texts(doc_ids.issue_now(1))
        assert after == [f"00ff{NOW:08x}{4:016x}"]
        assert store.prefixes[255].last_start == NOW
        assert [store.prefixes[prefix].holder for prefix in (0, 255)] == ["", "me"]
        await doc_ids.change(prefix=0)
        back = texts(doc_ids.issue_now(1))
        assert back > before
        assert back == [f"0000{NOW + 1:08x}{5:016x}"]


class TestOverflow:
    async def test_take_issues_nothing_before_the_claim(self) -> None:
        """P6: a call that overflows issues nothing before the next start timestamp is claimed."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL - 2)
        assert doc_ids.issue_now(3) is None
        assert store.calls == []
        assert serials(doc_ids.issue_now(2)) == [MAX_SERIAL - 1, MAX_SERIAL]

    async def test_claims_a_timestamp_and_restarts_at_the_offset(self) -> None:
        """After an overflow ids continue under a later timestamp, at the caller's offset."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL - 1)
        runs = await doc_ids.issue(3, offset=7, increment=1)
        assert [run.first_doc_id for run in runs] == [
            f"0000{NOW:08x}{MAX_SERIAL:016x}",
            f"0000{NOW + 1:08x}{7:016x}",
        ]
        assert runs[1].id_count == 2
        (claim,) = store.calls_of("claim_start")
        assert claim.arguments[:3] == (0, NOW + 1, "me")
        assert doc_ids.start_timestamp == NOW + 1

    async def test_uses_the_timestamp_of_the_store(self) -> None:
        """P6: after an overflow the store may return any later timestamp."""
        store = MemoryStore()
        store.prefixes[0].last_start = NOW + 100  # claimed by another process
        doc_ids = running(store, MAX_SERIAL)
        assert texts(await doc_ids.issue(1)) == [f"0000{NOW + 101:08x}{1:016x}"]

    async def test_a_thousand_callers_share_one_claim(self) -> None:
        """A thousand callers that overflow share one claim, and their ids rise."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL - 5)
        gate = store.hold("claim_start")
        callers = [asyncio.create_task(doc_ids.issue(10)) for _ in range(1000)]
        await settle()
        assert doc_ids.issue_now(1) is None  # must not overtake the waiting callers
        gate.set()
        answers = [texts(await caller) for caller in callers]
        assert len(store.calls_of("claim_start")) == 1
        ids = [text for answer in answers for text in answer]
        assert len(ids) == 10_000
        assert ids == sorted(set(ids))

    async def test_a_cancelled_caller_does_not_cancel_the_claim(self) -> None:
        """A cancelled caller gets no ids and does not cancel the claim of others."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL)
        gate = store.hold("claim_start")
        first = asyncio.create_task(doc_ids.issue(1000))
        second = asyncio.create_task(doc_ids.issue(1))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.set()
        assert texts(await second) == [f"0000{NOW + 1:08x}{1:016x}"]
        assert len(store.calls_of("claim_start")) == 1

    async def test_a_claim_without_callers_serves_the_next_call(self) -> None:
        """A claim whose callers are gone serves the next call."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL)
        gate = store.hold("claim_start")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(doc_ids.issue(1), 0.01)
        gate.set()
        await settle()
        assert texts(doc_ids.issue_now(1)) == [f"0000{NOW + 1:08x}{1:016x}"]

    async def test_a_claim_of_the_old_prefix_is_not_used(self) -> None:
        """P6: after a change of the prefix during a claim, the ids have the new prefix."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL)
        gate = store.hold("claim_start")
        call = asyncio.create_task(doc_ids.issue(1))
        await settle()
        await doc_ids.change(prefix=255)
        gate.set()
        assert texts(await call) == [f"00ff{store.prefixes[255].last_start:08x}{1:016x}"]

    async def test_a_failed_claim_fails_its_callers_and_is_retried(self) -> None:
        """A failed claim fails its callers; the next call claims again."""
        store = MemoryStore()
        store.next("claim_start", unreachable(), rejected(), lost_reply())
        doc_ids = running(store, MAX_SERIAL)
        waiting = await asyncio.gather(*(doc_ids.issue(1) for _ in range(5)), return_exceptions=True)
        assert all(isinstance(failure, StoreUnavailable) for failure in waiting)
        assert len(store.calls_of("claim_start")) == 1
        with pytest.raises(StoreAnsweredError):
            await doc_ids.issue(1)
        with pytest.raises(StoreOutcomeUnknown):
            await doc_ids.issue(1)
        # The claim without a reply was applied: its timestamp is burned.
        assert texts(await doc_ids.issue(1)) == [f"0000{NOW + 2:08x}{1:016x}"]

    async def test_the_last_timestamp_can_be_used_up(self) -> None:
        """P6: after the last timestamp that fits in an id, calls fail."""
        store = MemoryStore()
        doc_ids = running(store, MAX_SERIAL - 2, timestamp=2**32 - 1)
        with pytest.raises(DocIdTimestampRefused, match="prefix 0 has no start timestamp"):
            await doc_ids.issue(3)
        assert texts(doc_ids.issue_now(2)) == [
            "0000fffffffffffffffffffffffe",
            "0000ffffffffffffffffffffffff",
        ]
        with pytest.raises(DocIdTimestampRefused):
            await doc_ids.issue(1)
        assert store.calls == []

    async def test_a_timestamp_that_does_not_fit_is_rejected(self) -> None:
        """P6: a timestamp of 2^32 or more from the store is never used."""
        store = MemoryStore()
        store.prefixes[0].last_start = 2**32 - 1
        with pytest.raises(DocIdTimestampRefused):
            await running(store, MAX_SERIAL).issue(1)

    async def test_close_cancels_the_claim(self) -> None:
        """close cancels the claim in progress and fails its callers."""
        store = MemoryStore()
        store.hold("claim_start")
        doc_ids = running(store, MAX_SERIAL)
        waiting = asyncio.create_task(doc_ids.issue(1))
        await settle()
        await doc_ids.cancel_claims()
        with pytest.raises(ServerDraining):
            await waiting
        with pytest.raises(ServerDraining):
            await doc_ids.issue(1)
        assert len(store.calls_of("claim_start")) == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @given(
        st.lists(
            st.tuples(
                st.one_of(st.integers(1, 3), st.just(60_000)),
                st.sampled_from([0, 1, 7, 65_535]),
                st.sampled_from([0, 1, 3, 256, 65_535]),
                st.sampled_from([None, unreachable(), lost_reply()]),
                st.booleans(),
            ),
            min_size=1,
            max_size=30,
        )
    )
    def test_ids_rise_through_overflows_and_failures(
        self, calls: list[tuple[int, int, int, Fault | None, bool]]
    ) -> None:
        """P6: ids rise within a process through overflows and failures of the store."""

        async def all_ids() -> list[str]:
            store = MemoryStore()
            doc_ids = running(store, MAX_SERIAL - 1_000_000)
            ids: list[str] = []
            for count, offset, increment, fault, at_the_end in calls:
                if fault:
                    store.next("claim_start", fault)
                if at_the_end:
                    doc_ids._serial = max(doc_ids._serial, MAX_SERIAL - 100)
                try:
                    runs = await doc_ids.issue(count, offset, increment)
                except StoreUnavailable:
                    continue
                for run in runs:
                    ids += run.texts()[:: max(1, run.id_count - 1)]  # the first and the last
            return ids

        ids = asyncio.run(all_ids())
        assert ids == sorted(set(ids))
