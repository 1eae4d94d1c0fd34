"""What is CrateDB's alone: set-up, what it refuses, and writes that a cluster applies twice."""

import asyncio

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.errors import StartRefused, StoreOutcomeUnknown, StoreRejected, StoreUnreachable
from idalloc_server.domain.records import RecordedAllocation, Revision
from idalloc_server.domain.retention import Retention
from idalloc_server.domain.sequences.model import Kind, Sequence
from idalloc_server.domain.store import Store
from idalloc_server.store.cratedb.schema import check_version
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock
from tests.support.store_rows import row


def allocation(request_id: str, first_id: int = 1) -> RecordedAllocation:
    return RecordedAllocation(request_id, "s", first_id, 10, 1, 1, "", 0, "node")


@pytest.fixture
async def store(emulator: CrateEmulator, clock: FakeClock) -> Store:
    return open_store(f"crate://alice@{emulator.host}/?schema=ids", clock)


@pytest.fixture(autouse=True)
async def closed(store: Store) -> object:
    yield
    await store.close()


async def refusal(store: Store) -> str:
    with pytest.raises(StartRefused) as caught:
        await store.open()
    assert caught.value.setting == "store"
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestVersions:
    @pytest.mark.parametrize("version", ["5.10.12", "5.10.16", "5.11.0", "6.0.1", "6.4.3", "6.10.0", "7.0.0-SNAPSHOT"])
    def test_these_work(self, version: str) -> None:
        assert check_version(version) is None  # type: ignore[func-returns-value]

    @pytest.mark.parametrize("version", ["4.8.4", "5.9.20", "5.10.9", "5.10.11", "6.0.0", "unknown", ""])
    def test_these_do_not(self, version: str) -> None:
        with pytest.raises(StartRefused, match=r"upgrade the cluster to 5\.10\.12 or newer, but not 6\.0\.0"):
            check_version(version)

    async def test_a_single_old_node_is_one_too_many(self, emulator: CrateEmulator, store: Store) -> None:
        emulator.statements.versions = ["6.4.3", "6.4.3", "5.10.11"]
        assert "CrateDB 5.10.11 cannot be used" in await refusal(store)
        assert emulator.writes() == []

    async def test_where_the_nodes_are_hidden_the_one_that_answers_is_looked_at(
        self, emulator: CrateEmulator, store: Store
    ) -> None:
        emulator.statements.denied = {"sys"}
        emulator.statements.versions = ["6.0.0"]
        assert "CrateDB 6.0.0 cannot be used" in await refusal(store)


class TestTables:
    async def test_they_are_made_to_keep_what_they_acknowledge(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        made = [statement for statement in emulator.writes() if statement.startswith("CREATE")]
        assert len(made) == 3
        for statement, table in zip(made, ("sequences", "start_timestamps", "allocations"), strict=True):
            assert statement.startswith(f'CREATE TABLE IF NOT EXISTS "ids"."{table}" (')
            assert statement.endswith(
                " CLUSTERED INTO 1 SHARDS WITH (number_of_replicas = '0-2', \"translog.durability\" = 'REQUEST',"
                " column_policy = 'strict')"
            )

    async def test_a_second_start_changes_nothing(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        await store.open()
        before = len(emulator.writes())
        emulator.statements.denied = {"DDL", "sys"}
        again = open_store(store.address, clock)
        await again.open()
        await again.close()
        assert all(statement.startswith("UPDATE") for statement in emulator.writes()[before:])

    @pytest.mark.parametrize(
        ("columns", "why"),
        [
            ("name TEXT PRIMARY KEY, value BIGINT", "column last_value must be BIGINT"),
            ("name TEXT PRIMARY KEY, last_value TEXT", "column last_value must be BIGINT"),
            ("name BIGINT PRIMARY KEY, last_value BIGINT", "column name must be TEXT"),
            ("name TEXT PRIMARY KEY, last_value BIGINT, step TEXT", "column step must be BIGINT"),
            ("name TEXT PRIMARY KEY, last_value BIGINT, mode BIGINT", "column mode must be TEXT"),
            (
                "name TEXT PRIMARY KEY, last_value BIGINT PRIMARY KEY",
                "the table ids.sequences: its primary key must be name alone",
            ),
        ],
    )
    async def test_a_table_of_something_else_is_refused_and_left_alone(
        self, emulator: CrateEmulator, store: Store, columns: str, why: str
    ) -> None:
        emulator.statements.execute(f"CREATE TABLE ids.sequences ({columns})", [])
        message = await refusal(store)
        assert why in message
        assert "choose another schema" in message
        assert emulator.writes() == []

    async def test_one_that_loses_acknowledged_writes_is_refused(self, emulator: CrateEmulator, store: Store) -> None:
        emulator.statements.execute(
            "CREATE TABLE ids.sequences (name TEXT PRIMARY KEY, last_value BIGINT)"
            " WITH (\"translog.durability\" = 'async')",
            [],
        )
        message = await refusal(store)
        assert 'ALTER TABLE "ids"."sequences" SET ("translog.durability" = \'REQUEST\')' in message

    @pytest.mark.parametrize(
        ("nodes", "replicas", "warned"), [(3, "0", True), (3, "0-1", False), (3, "1", False), (1, "0", False)]
    )
    async def test_a_cluster_whose_table_has_no_replica_is_warned_of(
        self, emulator: CrateEmulator, store: Store, nodes: int, replicas: str, warned: bool
    ) -> None:
        emulator.statements.versions = ["6.4.3"] * nodes
        emulator.statements.execute(
            "CREATE TABLE ids.sequences (name TEXT PRIMARY KEY, last_value BIGINT)"
            f" WITH (number_of_replicas = '{replicas}')",
            [],
        )
        with capture_logs() as logs:
            await store.open()
        assert [log["table"] for log in logs if log["log_level"] == "warning"] == ["ids.sequences"] * warned


class TestPrivileges:
    @pytest.mark.parametrize("denied", ["DDL", "DDL DML", "DDL DML DQL", "DDL DML DQL sys"])
    async def test_without_those_to_make_the_tables(self, emulator: CrateEmulator, store: Store, denied: str) -> None:
        emulator.statements.denied = set(denied.split())
        assert "grant the user DDL, DQL and DML on schema ids" in await refusal(store)

    async def test_without_that_to_write(self, emulator: CrateEmulator, store: Store, clock: FakeClock) -> None:
        await store.open()
        emulator.statements.denied = {"DDL", "DML"}
        message = await refusal(open_store(store.address, clock))
        assert "the table ids.sequences: it cannot be used" in message
        assert "Missing 'DML' privilege" in message
        assert message.endswith('; run GRANT DML ON SCHEMA "ids" TO "someone"')

    async def test_with_a_wrong_password(self, emulator: CrateEmulator, clock: FakeClock) -> None:
        emulator.demand("alice", "right")
        store = open_store(f"crate://alice:wrong-one@{emulator.host}/", clock)
        message = await refusal(store)
        assert "check the host, the user and the password" in message
        assert "wrong-one" not in message + store.address

    async def test_with_the_right_one(self, emulator: CrateEmulator, clock: FakeClock) -> None:
        emulator.demand("alice", "r:ght /@?")
        store = open_store(f"crate://alice:r%3Aght%20%2F%40%3F@{emulator.host}/", clock)
        await store.open()
        await store.close()
        assert emulator.requests != []

    async def test_with_a_token(self, emulator: CrateEmulator, clock: FakeClock) -> None:
        emulator.authorization = "Bearer abc.def.ghi"
        store = open_store(f"crate://{emulator.host}/?jwt=abc.def.ghi", clock)
        await store.open()
        await store.close()
        assert "abc" not in store.address


class TestStartingWithoutACluster:
    async def test_one_that_is_away_is_no_wrong_setting(self, clock: FakeClock) -> None:
        store = open_store("crate://127.0.0.1:1/", clock)
        with pytest.raises(StoreUnreachable):
            await store.open()
        await store.close()

    @pytest.mark.parametrize("match", ["sys.nodes", "information_schema"])
    async def test_nor_is_one_that_fails(self, emulator: CrateEmulator, store: Store, match: str) -> None:
        emulator.inject(Fault("error", status=500, code=5000, times=-1, match=match))
        with pytest.raises(StoreRejected):
            await store.open()

    async def test_nor_one_that_cannot_make_a_table_now(self, emulator: CrateEmulator, store: Store) -> None:
        emulator.inject(Fault("error", times=-1, match="CREATE TABLE"))
        with pytest.raises(StoreOutcomeUnknown, match="ClusterBlockException"):
            await store.open()


class TestFaults:
    async def test_a_lost_answer_burns_its_range(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        await store.create(row("s"))
        emulator.inject(Fault("drop", match="granted"))
        with pytest.raises(StoreOutcomeUnknown):
            await store.grant("s", 10, 1000)
        granted = await store.grant("s", 1, 1000)
        assert granted is not None
        assert granted.last_value == 11

    async def test_a_grant_applied_twice_burns_the_first(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        await store.create(row("s", Sequence(max_value=25)))
        emulator.inject(Fault("duplicate", times=2, match="granted"))
        first = await store.grant("s", 10, 1000)
        second = await store.grant("s", 2, 1000)
        assert first is not None
        assert second is not None
        assert (first.value_before, first.last_value) == (10, 20)
        assert (second.value_before, second.last_value) == (22, 24)

    async def test_a_tail_given_back_twice_moves_the_counter_once(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        await store.create(row("s"))
        first = await store.grant("s", 10, 1000)
        assert first is not None
        emulator.inject(Fault("duplicate", match="granted"))
        # The second time it finds another version: its answer is that nothing was given back, which is safe.
        assert not await store.give_back("s", 4, first.version)
        renewed = await store.grant("s", 0, 1000)
        assert renewed is not None
        assert renewed.last_value == 6

    async def test_a_claim_applied_twice_skips_a_timestamp(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        emulator.inject(Fault("duplicate", match="start_timestamps"))
        assert (await store.claim_start(3, 1000, "me", 60)).start_timestamp == 1001

    async def test_the_clock_is_the_clusters(self, emulator: CrateEmulator, store: Store, clock: FakeClock) -> None:
        await store.open()
        clock.wall_seconds = 1_234_567_890.125
        assert await store.now() == 1_234_567_890.125
        assert (await store.claim_start(3, 1000, "me", 60)).seen_at == 1_234_567_890.125

    async def test_a_creation_applied_twice_is_one(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        emulator.inject(Fault("duplicate", match="INSERT"))
        assert await store.create(row("s")) == row("s")

    async def test_a_revision_applied_twice_is_one(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        await store.create(row("s"))
        emulator.inject(Fault("duplicate", match="rev_by"))
        revised = await store.revise("s", 0, Revision(Sequence(), 41, "me", 5.0))
        assert revised is not None
        assert (revised.revised_by, revised.revision, revised.generation, revised.last_value) == ("me", 1, 2, 41)

    async def test_a_late_replay_of_a_revision_changes_nothing(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        await store.create(row("s"))
        first = Revision(Sequence(max_value=50), 20, "first", 5.0)
        await store.revise("s", 0, first)
        second = await store.revise("s", 1, Revision(Sequence(max_value=90), 0, "second", 6.0))
        assert await store.revise("s", 0, first) == second

    async def test_timestamps_granted_twice_burn_the_first(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        await store.open()
        await store.create(row("s", Sequence(kind=Kind.TIMESTAMP_MS)))
        emulator.inject(Fault("duplicate", match="granted"))
        now = round(clock.wall() * 1000)
        granted = await store.grant_timestamps("s", 10, 1000, now, 1000)
        assert granted is not None
        assert (granted.granted, granted.value_before) == (10, now + 9)

    async def test_a_record_whose_answer_is_lost_stands(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        emulator.inject(Fault("drop", match="INSERT"))
        with pytest.raises(StoreOutcomeUnknown):
            await store.record([allocation("r")])
        assert await store.record([allocation("r", 11)]) == {"r": allocation("r")}

    async def test_a_record_is_one_statement_however_many_they_are(self, emulator: CrateEmulator, store: Store) -> None:
        await store.open()
        before = len(emulator.writes())
        many = [allocation(f"r{number}", number) for number in range(200)]
        assert await store.record(many) == {one.request_id: one for one in many}
        assert len(emulator.writes()) == before + 1

    async def test_answers_of_an_older_version_get_a_window(self, emulator: CrateEmulator, store: Store) -> None:
        """P7: the table of recorded answers gets the column that it lacks, and its rows stay."""
        columns = "sequence TEXT, first_id BIGINT, id_count BIGINT, step BIGINT, generation BIGINT, period TEXT,"
        for statement in (
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

    async def test_one_written_down_anew_is_not_removed(
        self, emulator: CrateEmulator, store: Store, clock: FakeClock
    ) -> None:
        await store.open()
        await store.record([allocation("r")])
        newest = await store.newest_recorded()
        assert newest
        seen = Retention([(newest, 3600.0)], 3600.0)
        # Between the look and the removal another node looks and removes, and the same id is written down again.
        emulator.inject(Fault("delay", seconds=0.2, match="DELETE"))
        removing = asyncio.create_task(store.forget_recorded(seen, 10))
        while not emulator.writes()[-1].startswith("DELETE"):  # noqa: ASYNC110 - it tells no event
            await asyncio.sleep(0.001)
        other = open_store(store.address, clock)
        assert await other.forget_recorded(seen, 10) == 1
        await other.record([allocation("r", 11)])
        await other.close()
        assert await removing == 0
        assert await store.recorded("r") == allocation("r", 11)
