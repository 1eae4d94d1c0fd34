"""Opening a store in CrateDB: versions, tables, privileges, unavailable clusters."""

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.errors import StartRefused, StoreAnsweredError, StoreOutcomeUnknown, StoreUnreachable
from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.cratedb.schema import check_version
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock


async def refusal(store: Store) -> str:
    with pytest.raises(StartRefused) as caught:
        await store.open()
    assert caught.value.setting == "store"
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestVersions:
    @pytest.mark.parametrize("version", ["5.10.16", "5.11.0", "6.0.1", "6.4.3", "6.10.0", "7.0.0-SNAPSHOT"])
    def test_supported_versions(self, version: str) -> None:
        """CrateDB 5.10.16 and newer are supported, except 6.0.0."""
        assert check_version(version) is None  # type: ignore[func-returns-value]

    @pytest.mark.parametrize("version", ["4.8.4", "5.9.20", "5.10.9", "5.10.15", "6.0.0", "unknown", ""])
    def test_unsupported_versions(self, version: str) -> None:
        """Older versions, 6.0.0 and unknown versions are refused with the supported ones."""
        with pytest.raises(StartRefused, match=r"upgrade the cluster to 5\.10\.16 or newer, but not 6\.0\.0"):
            check_version(version)

    async def test_every_node_of_the_cluster_is_checked(self, emulator: CrateEmulator, store: Store) -> None:
        """One old node refuses the start, before anything is written."""
        emulator.statements.versions = ["6.4.3", "6.4.3", "5.10.15"]
        assert "CrateDB 5.10.15 cannot be used" in await refusal(store)
        assert emulator.writes() == []

    async def test_a_start_does_not_wait_for_a_paused_node(self, emulator: CrateEmulator, store: Store) -> None:
        """P10: a node that does not answer the others has no version, and refuses no start."""
        emulator.statements.versions = ["6.4.3", None]
        await store.open()
        assert len(emulator.writes()) > 0

    async def test_the_answering_node_is_checked_without_sys_nodes(self, emulator: CrateEmulator, store: Store) -> None:
        """If the user may not see sys.nodes, the version of the answering node counts."""
        emulator.statements.denied = {"sys"}
        emulator.statements.versions = ["6.0.0"]
        assert "CrateDB 6.0.0 cannot be used" in await refusal(store)


class TestTables:
    async def test_new_tables_are_durable(self, emulator: CrateEmulator, store: Store) -> None:
        """P1: new tables have one shard, replicas, and a translog synced with each request."""
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
        """A start on complete tables needs no DDL; it only writes to check privileges."""
        await store.open()
        before = len(emulator.writes())
        emulator.statements.denied = {"DDL", "sys"}
        again = open_store(store.address, clock)
        await again.open()
        await again.close()
        assert {statement.split()[0] for statement in emulator.writes()[before:]} == {"REFRESH", "UPDATE"}

    @pytest.mark.parametrize(
        ("columns", "why"),
        [
            ("name TEXT PRIMARY KEY, value BIGINT", "column last_value (BIGINT) is missing"),
            ("name TEXT PRIMARY KEY, last_value TEXT", "column last_value must be BIGINT, not TEXT"),
            ("name BIGINT PRIMARY KEY, last_value BIGINT", "column name must be TEXT"),
            ("name TEXT PRIMARY KEY, last_value BIGINT, step TEXT", "column step must be BIGINT"),
            ("name TEXT PRIMARY KEY, last_value BIGINT, mode BIGINT", "column mode must be TEXT"),
            (
                "name TEXT PRIMARY KEY, last_value BIGINT PRIMARY KEY",
                "the table ids.sequences: its primary key must be name alone",
            ),
        ],
    )
    async def test_a_table_of_another_program_is_refused(
        self, emulator: CrateEmulator, store: Store, columns: str, why: str
    ) -> None:
        """A table with another key or another type of column is refused and not changed."""
        emulator.statements.execute(f"CREATE TABLE ids.sequences ({columns})", [])
        message = await refusal(store)
        assert why in message
        assert "choose another schema" in message
        assert emulator.writes() == []

    async def test_a_table_with_async_durability_is_refused(self, emulator: CrateEmulator, store: Store) -> None:
        """P1: a table that loses acknowledged writes is refused with the statement to run."""
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
    async def test_a_table_without_replicas_is_logged(
        self, emulator: CrateEmulator, store: Store, nodes: int, replicas: str, warned: bool
    ) -> None:
        """A start on several nodes logs a warning for a table without replicas."""
        emulator.statements.versions = ["6.4.3"] * nodes
        emulator.statements.execute(
            "CREATE TABLE ids.sequences (name TEXT PRIMARY KEY, last_value BIGINT)"
            f" WITH (number_of_replicas = '{replicas}')",
            [],
        )
        with capture_logs() as logs:
            await store.open()
        tables = [log["table"] for log in logs if log["event"] == "table_without_replica"]
        assert tables == ["ids.sequences"] * warned


class TestPrivileges:
    @pytest.mark.parametrize("denied", ["DDL", "DDL DML", "DDL DML DQL", "DDL DML DQL sys"])
    async def test_a_user_without_ddl_cannot_create_tables(
        self, emulator: CrateEmulator, store: Store, denied: str
    ) -> None:
        """A start without tables and without DDL is refused with the privileges to grant."""
        emulator.statements.denied = set(denied.split())
        assert "grant the user DDL, DQL and DML on schema ids" in await refusal(store)

    async def test_a_user_without_dml_is_refused(self, emulator: CrateEmulator, store: Store, clock: FakeClock) -> None:
        """A start without DML is refused with the GRANT statement to run."""
        await store.open()
        emulator.statements.denied = {"DDL", "DML"}
        message = await refusal(open_store(store.address, clock))
        assert "the table ids.sequences: it cannot be used" in message
        assert "Missing 'DML' privilege" in message
        assert message.endswith('; run GRANT DML ON SCHEMA "ids" TO "someone"')

    async def test_a_wrong_password_is_refused(self, emulator: CrateEmulator, clock: FakeClock) -> None:
        """A wrong password refuses the start; neither the message nor the address contains it."""
        emulator.require_password("alice", "right")
        store = open_store(f"crate://alice:wrong-one@{emulator.host}/", clock)
        message = await refusal(store)
        assert "check the host, the user and the password" in message
        assert "wrong-one" not in message + store.address

    async def test_a_percent_encoded_password_is_accepted(self, emulator: CrateEmulator, clock: FakeClock) -> None:
        """A password with reserved characters is decoded before it is sent."""
        emulator.require_password("alice", "r:ght /@?")
        store = open_store(f"crate://alice:r%3Aght%20%2F%40%3F@{emulator.host}/", clock)
        await store.open()
        await store.close()
        assert emulator.requests != []

    async def test_a_token_is_accepted(self, emulator: CrateEmulator, clock: FakeClock) -> None:
        """The parameter jwt is sent as a bearer token, and the address does not contain it."""
        emulator.authorization = "Bearer abc.def.ghi"
        store = open_store(f"crate://{emulator.host}/?jwt=abc.def.ghi", clock)
        await store.open()
        await store.close()
        assert "abc" not in store.address


class TestUnavailableCluster:
    async def test_an_unreachable_cluster_is_retryable(self, clock: FakeClock) -> None:
        """A start without a reachable host raises StoreUnreachable, not StartRefused."""
        store = open_store("crate://127.0.0.1:1/", clock)
        with pytest.raises(StoreUnreachable):
            await store.open()
        await store.close()

    @pytest.mark.parametrize("match", ["sys.nodes", "information_schema"])
    async def test_a_failing_cluster_is_retryable(self, emulator: CrateEmulator, store: Store, match: str) -> None:
        """A start on a cluster that answers 500 raises StoreAnsweredError, not StartRefused."""
        emulator.inject(Fault("error", status=500, code=5000, times=-1, match=match))
        with pytest.raises(StoreAnsweredError):
            await store.open()

    async def test_a_failed_create_table_is_retryable(self, emulator: CrateEmulator, store: Store) -> None:
        """A CREATE TABLE of unknown outcome raises StoreOutcomeUnknown, not StartRefused."""
        emulator.inject(Fault("error", times=-1, match="CREATE TABLE"))
        with pytest.raises(StoreOutcomeUnknown, match="ClusterBlockException"):
            await store.open()
