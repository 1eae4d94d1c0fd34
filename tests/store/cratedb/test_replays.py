"""Writes that CrateDB applies twice, and lost answers."""

import asyncio

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import StoreOutcomeUnknown
from idalloc_server.domain.sequences.sequence import Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation, RowChange
from idalloc_server.domain.store.retention import Retention
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock
from tests.support.store_rows import requested_row
from tests.support.waiting import until

CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)


def allocation(request_id: str, first_id: int = 1) -> RecordedAllocation:
    return RecordedAllocation(request_id, "s", first_id, 10, 1, 1, "", 0, "node")


class TestReplays:
    async def test_a_lost_answer_burns_its_range(self, emulator: CrateEmulator, store: Store) -> None:
        """P1: the ids of a grant whose answer was lost are never granted again."""
        await store.open()
        await store.create(requested_row("s"))
        emulator.inject(Fault("drop", match="granted"))
        with pytest.raises(StoreOutcomeUnknown):
            await store.grant("s", 10, 1000)
        granted = await store.grant("s", 1, 1000)
        assert granted is not None
        assert granted.last_value == 11

    async def test_a_grant_applied_twice_burns_the_first(self, emulator: CrateEmulator, store: Store) -> None:
        """P1: a grant that the cluster applies twice burns ids, and returns the later ones."""
        await store.open()
        await store.create(requested_row("s", Sequence(max_value=25)))
        emulator.inject(Fault("duplicate", times=2, match="granted"))
        first = await store.grant("s", 10, 1000)
        second = await store.grant("s", 2, 1000)
        assert first is not None
        assert second is not None
        assert (first.value_before, first.last_value) == (10, 20)
        assert (second.value_before, second.last_value) == (22, 24)

    async def test_a_tail_given_back_twice_moves_the_counter_once(self, emulator: CrateEmulator, store: Store) -> None:
        """P2: a give_back that the cluster applies twice moves the counter once."""
        await store.open()
        await store.create(requested_row("s"))
        first = await store.grant("s", 10, 1000)
        assert first is not None
        emulator.inject(Fault("duplicate", match="granted"))
        # The second time the version differs: the answer that nothing was given back is safe.
        assert not await store.give_back("s", 4, first.version)
        renewed = await store.grant("s", 0, 1000)
        assert renewed is not None
        assert renewed.last_value == 6

    async def test_a_claim_applied_twice_skips_a_timestamp(self, emulator: CrateEmulator, store: Store) -> None:
        """P6: a claim that the cluster applies twice skips a start timestamp."""
        await store.open()
        emulator.inject(Fault("duplicate", match="start_timestamps"))
        assert (await store.claim_start(3, 1000, "me", 60)).start_timestamp == 1001

    async def test_the_clock_is_the_clock_of_the_cluster(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        """P6: now() and the time of a claim are CrateDB's clock."""
        await store.open()
        clock.wall_seconds = 1_234_567_890.125
        assert await store.now() == 1_234_567_890.125
        assert (await store.claim_start(3, 1000, "me", 60)).seen_at == 1_234_567_890.125

    async def test_a_create_applied_twice_is_one(self, emulator: CrateEmulator, store: Store) -> None:
        """P1: a create that the cluster applies twice makes one row."""
        await store.open()
        emulator.inject(Fault("duplicate", match="INSERT"))
        assert await store.create(requested_row("s")) == requested_row("s")

    async def test_a_first_use_applied_twice_grants_once(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        """P1: a first use whose creation is applied twice gets the ids from the start, once."""
        await store.open()
        emulator.inject(Fault("duplicate", match="INSERT"))
        allocator = Allocator(store, clock, CONFIG)
        assert [(await allocator.issue("s", 5)).first_id for _ in range(2)] == [1, 6]

    async def test_a_first_use_without_an_answer_burns_its_ids(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        """P1, P9: the ids of a creation whose connection broke are burned; the next ones follow."""
        await store.open()
        emulator.inject(Fault("drop", match="INSERT"))
        allocator = Allocator(store, clock, CONFIG)
        with pytest.raises(StoreOutcomeUnknown):
            await allocator.issue("s", 5)
        assert (await allocator.issue("s", 5)).first_id == 6
        assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 5}

    async def test_a_revision_applied_twice_is_one(self, emulator: CrateEmulator, store: Store) -> None:
        """P5: a revision that the cluster applies twice has the effect of one."""
        await store.open()
        await store.create(requested_row("s"))
        emulator.inject(Fault("duplicate", match="rev_by"))
        revised = await store.revise("s", 0, RowChange(Sequence(), 41, "me", 5.0))
        assert revised is not None
        assert (revised.revised_by, revised.revision, revised.generation, revised.last_value) == ("me", 1, 2, 41)

    async def test_a_late_replay_of_a_revision_changes_nothing(self, emulator: CrateEmulator, store: Store) -> None:
        """P5: a revision that is replayed after a later one changes nothing."""
        await store.open()
        await store.create(requested_row("s"))
        first = RowChange(Sequence(max_value=50), 20, "first", 5.0)
        await store.revise("s", 0, first)
        second = await store.revise("s", 1, RowChange(Sequence(max_value=90), 0, "second", 6.0))
        assert await store.revise("s", 0, first) == second

    async def test_timestamps_granted_twice_burn_the_first(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        """P1: a grant of timestamps that the cluster applies twice burns the first ones."""
        await store.open()
        await store.create(requested_row("s", Sequence(kind=Kind.TIMESTAMP_MS)))
        emulator.inject(Fault("duplicate", match="granted"))
        now = round(clock.wall() * 1000)
        granted = await store.grant_timestamps("s", 10, 1000, now, 1000)
        assert granted is not None
        assert (granted.granted, granted.value_before) == (10, now + 9)

    async def test_a_record_with_a_lost_answer_is_kept(self, emulator: CrateEmulator, store: Store) -> None:
        """P7: a retry finds the record of a call whose answer was lost."""
        await store.open()
        emulator.inject(Fault("drop", match="INSERT"))
        with pytest.raises(StoreOutcomeUnknown):
            await store.record([allocation("r")])
        assert await store.record([allocation("r", 11)]) == {"r": allocation("r")}

    async def test_200_allocations_are_recorded_by_one_statement(self, emulator: CrateEmulator, store: Store) -> None:
        """P7: many allocations are recorded by one statement."""
        await store.open()
        before = len(emulator.writes())
        many = [allocation(f"r{number}", number) for number in range(200)]
        assert await store.record(many) == {one.request_id: one for one in many}
        assert len(emulator.writes()) == before + 1

    async def test_an_older_table_of_allocations_gets_a_window(self, emulator: CrateEmulator, store: Store) -> None:
        """P7: an older table of allocations gets the missing column and keeps its rows."""
        columns = "sequence TEXT, first_id BIGINT, id_count BIGINT, step BIGINT, generation BIGINT, period TEXT,"
        for statement in (
            "CREATE TABLE ids.sequences (name TEXT PRIMARY KEY, last_value BIGINT)",
            "INSERT INTO ids.sequences (name, last_value) VALUES ('s', 10)",
            "REFRESH TABLE ids.sequences",
            f"CREATE TABLE ids.allocations (request_id TEXT PRIMARY KEY, {columns} prefix INTEGER, node TEXT,"
            " written_at TIMESTAMP WITH TIME ZONE)",
            "INSERT INTO ids.allocations (request_id, sequence, first_id, id_count, step, generation, period, prefix,"
            " node, written_at) VALUES ('r', 's', 1, 10, 1, 1, '', 0, 'node', CURRENT_TIMESTAMP)",
        ):
            emulator.statements.execute(statement, [])
        await store.open()
        assert await store.recorded("r") == allocation("r")
        new = allocation("q")._replace(window_ms=1000)
        assert await store.record([new]) == {"q": new}

    async def test_a_newer_record_of_the_same_id_is_not_removed(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        """P7: a record that replaces a removed one is not removed by a slower node."""
        await store.open()
        await store.record([allocation("r")])
        newest = await store.newest_recorded()
        assert newest
        seen = Retention([(newest, 3600.0)], 3600.0)
        # Between this SELECT and DELETE another node deletes the record; the id is recorded again.
        emulator.inject(Fault("delay", seconds=0.2, match="DELETE"))
        removing = asyncio.create_task(store.forget_recorded(seen, 10))
        await until(lambda: emulator.writes()[-1].startswith("DELETE"))
        other = open_store(store.address, clock)
        assert await other.forget_recorded(seen, 10) == 1
        await other.record([allocation("r", 11)])
        await other.close()
        assert await removing == 0
        assert await store.recorded("r") == allocation("r", 11)
