"""Faults of CrateDB that need an operator, at a start and while serving; also on a real CrateDB."""

import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog

from idalloc_server.domain.errors import (
    StartRefused,
    StoreAnsweredError,
    StoreExchanged,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Demand
from idalloc_server.store.cluster.http_transport import HostTimeouts
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock
from tests.support.store_backends import REAL_CRATEDB, CrateBackend, skip_before_oids
from tests.support.store_rows import requested_row

DEMAND = Demand(12.5, 10, 1_700_000_000)
GUIDE = "name TEXT PRIMARY KEY, last_value BIGINT"
# CrateDB 5.10 answers 500 with a code for any failure, and 6 with a code of its own.
FULL_DISK = (StoreAnsweredError, StoreOutcomeUnknown)


class Cluster:
    """A schema of its own, and a user with privileges on it only."""

    def __init__(self, host: str, superuser: str, *, is_real: bool) -> None:
        self.is_real = is_real  # whether it is a real CrateDB
        self.schema = f"idalloc_test_{uuid.uuid4().hex[:12]}"
        self.user = f"{self.schema}_user"
        self.url = f"crate://{self.user}@{host}/?schema={self.schema}"  # for that user
        self._stores: list[Store] = []
        self._backend = CrateBackend(f"crate://{superuser}@{host}/?schema={self.schema}")

    async def sql(self, statement: str, *args: object) -> list[Sequence[Any]]:
        """Run a statement as the superuser; ``{}`` is the prefix of the names of tables."""
        return await self._backend.sql(statement, *args)

    async def run(self, message: str) -> None:
        """Run the statements that a message names as the next step; the emulator has only the user
        someone.
        """
        for statement in message.rpartition("run ")[2].partition(", or ")[0].split("; "):
            if statement.startswith(("ALTER", "CREATE", "INSERT", "GRANT")):
                await self.sql(statement.replace("with a value of yours", "''").replace("someone", self.user))

    async def grant(self, *privileges: str) -> None:
        await self.sql(f'GRANT {", ".join(privileges)} ON SCHEMA "{self.schema}" TO "{self.user}"')

    async def revoke(self, *privileges: str) -> None:
        await self.sql(f'REVOKE {", ".join(privileges)} ON SCHEMA "{self.schema}" FROM "{self.user}"')

    async def forget_name(self) -> None:
        await self._backend.forget_name()

    async def open(self, opening: Opening = ANY_STORE) -> Store:
        self._stores.append(open_store(self.url, FakeClock()))
        await self._stores[-1].open(opening)
        return self._stores[-1]

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self.grant("DDL", "DML", "DQL")
        await self._backend.close()
        await self.sql(f'DROP USER "{self.user}"')


@pytest.fixture(params=["emulator", *([pytest.param("cratedb", marks=pytest.mark.cratedb)] if REAL_CRATEDB else [])])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A schema on the emulator, or on a real CrateDB if IDALLOC_TEST_CRATEDB_URL is set."""
    async with contextlib.AsyncExitStack() as opened:
        emulator = None
        if request.param == "emulator":
            emulator = await opened.enter_async_context(CrateEmulator())
            cluster = Cluster(emulator.host, "crate", is_real=False)
        else:
            superuser, _, hosts = urlsplit(REAL_CRATEDB).netloc.rpartition("@")
            cluster = Cluster(hosts.partition(",")[0], superuser or "crate", is_real=True)
        await cluster.sql(f'CREATE USER "{cluster.user}"')
        await cluster.grant("DDL", "DML", "DQL")
        yield cluster
        await cluster.close()
        assert emulator is None or emulator.unknown == []


class TestRunningServer:
    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            ('ALTER TABLE {}sequences SET ("blocks.write" = true)', "doesn't support or allow UPDATE operations"),
            ('ALTER TABLE {}sequences SET ("blocks.read_only" = true)', "doesn't support or allow UPDATE operations"),
            ("ALTER TABLE {}sequences CLOSE", "as it is currently closed"),
            ("REVOKE DML ON SCHEMA {schema} FROM {user}", "Missing 'DML' privilege"),
        ],
    )
    async def test_a_refusal_names_the_statement_to_run(self, cluster: Cluster, fault: str, message: str) -> None:
        """STORE_REFUSED: after the next step in the message the same server continues."""
        store = await cluster.open()
        await store.create(requested_row("s"))
        await cluster.sql(fault.replace("{schema}", cluster.schema).replace("{user}", cluster.user))
        with pytest.raises(StoreRefused, match=re.escape(message)):
            await store.grant("s", 10, 1000)
        with pytest.raises(StoreRefused, match=re.escape(message)) as caught:
            await store.grant("s", 10, 1000)
        await cluster.run(str(caught.value))
        granted = await store.grant("s", 10, 1000)
        assert granted is not None
        assert granted.last_value == 10  # the refused grants were not applied

    async def test_a_full_disk_recovers(self, cluster: Cluster) -> None:
        """STORE_UNAVAILABLE: CrateDB sets and removes read_only_allow_delete by its watermarks."""
        store = await cluster.open()
        await store.create(requested_row("s"))
        await cluster.sql('ALTER TABLE {}sequences SET ("blocks.read_only_allow_delete" = true)')
        with pytest.raises(FULL_DISK, match="read-only / allow delete"):
            await store.grant("s", 10, 1000)
        await cluster.sql('ALTER TABLE {}sequences SET ("blocks.read_only_allow_delete" = false)')
        granted = await store.grant("s", 10, 1000)
        assert granted is not None
        assert granted.last_value == 10

    @pytest.mark.parametrize("table", ["sequences", "start_timestamps"])
    async def test_a_dropped_table_is_refused(self, cluster: Cluster, table: str) -> None:
        """STORE_REFUSED: without a table every call is refused. P3: a new table is another one."""
        store = await cluster.open()
        await cluster.sql(f"DROP TABLE {{}}{table}")
        for _ in range(3):
            with pytest.raises(StoreRefused, match="restore"):
                await (store.grant("s", 1, 1000) if table == "sequences" else store.keep_prefix(1, "me", 60.0))
        await cluster.open(Opening(repairs=True))  # makes the table again
        await skip_before_oids(cluster.sql)
        with pytest.raises(StoreExchanged, match=f'"{table}" with the OID'):
            await (store.grant("s", 1, 1000) if table == "sequences" else store.keep_prefix(1, "me", 60.0))

    async def test_a_dropped_column_is_refused(self, cluster: Cluster) -> None:
        """P1: without a column every call is refused; the message asks to restore it."""
        store = await cluster.open()
        await store.create(requested_row("s"))
        await cluster.sql("ALTER TABLE {}sequences DROP COLUMN writes")
        with pytest.raises(StoreRefused, match=r"ColumnUnknownException.*; restore that column"):
            await store.grant("s", 1, 1000)

    async def test_a_user_without_any_privilege_is_refused(self, cluster: Cluster) -> None:
        """STORE_REFUSED: CrateDB reports an unknown schema; the message names the privileges."""
        store = await cluster.open()
        await cluster.revoke("DDL", "DML", "DQL")
        for _ in range(2):
            with pytest.raises(StoreRefused, match="grant the user DQL and DML"):
                await store.get("s")
            with pytest.raises(StoreRefused, match="grant the user DQL and DML"):
                await store.grant("s", 1, 1000)

    async def test_a_grant_without_dql_is_given_back(self, cluster: Cluster) -> None:
        """P9: without DQL the first grant of a generation cannot read the retirement row."""
        store = await cluster.open()
        await store.create(requested_row("s"))
        await cluster.revoke("DDL", "DQL")
        for _ in range(2):
            with pytest.raises(StoreRefused, match="Missing 'DQL' privilege"):
                await store.grant("s", 10, 1000)
        await cluster.grant("DQL")
        granted = await store.grant("s", 10, 1000)
        assert granted is not None
        assert granted.last_value == 10


class TestStart:
    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (f"{GUIDE}, owner TEXT NOT NULL", "its column owner is NOT NULL without a default"),
            (f"{GUIDE}, mode TEXT NOT NULL", "its column mode is NOT NULL, and idalloc writes NULL into it"),
            (f"{GUIDE}, step BIGINT GENERATED ALWAYS AS last_value * 2", "CrateDB generates its column step"),
            (f"{GUIDE}, demand TEXT GENERATED ALWAYS AS name", "CrateDB generates its column demand"),
            (
                f"{GUIDE}, demand TEXT CONSTRAINT short CHECK (demand < 'a')",
                "may violate its CHECK constraint short of demand",
            ),
            (
                f"{GUIDE} CONSTRAINT positive CHECK (last_value > 0)",
                "may violate its CHECK constraint positive of last_value",
            ),
        ],
    )
    async def test_an_unsuitable_table_is_refused(self, cluster: Cluster, columns: str, message: str) -> None:
        """A start names the statement to run and changes nothing; after it a start succeeds."""
        await cluster.sql(f"CREATE TABLE {{}}sequences ({columns}) CLUSTERED INTO 1 SHARDS")
        with pytest.raises(StartRefused, match=re.escape(message)) as caught:
            await cluster.open()
        message = str(caught.value)
        assert message.startswith(f"store: the table {cluster.schema}.sequences: ")
        assert "\n" not in message
        await cluster.run(message)
        store = await cluster.open()
        await store.create(requested_row("s"))
        granted = await store.grant("s", 10, 1000)
        assert granted is not None
        assert granted.last_value == 10

    async def test_a_partitioned_table_is_refused(self, cluster: Cluster) -> None:
        """The statements in the message copy the sequences into a table without partitions."""
        await cluster.sql(f"CREATE TABLE {{}}sequences ({GUIDE}) CLUSTERED INTO 1 SHARDS PARTITIONED BY (name)")
        await cluster.sql("INSERT INTO {}sequences (name, last_value) VALUES ('s', 41)")
        with pytest.raises(StartRefused, match=r"it is PARTITIONED BY \(name\)") as caught:
            await cluster.open()
        if not cluster.is_real:
            return  # the emulator copies no tables
        await cluster.sql("REFRESH TABLE {}sequences")
        await cluster.run(str(caught.value))
        store = await cluster.open()
        granted = await store.grant("s", 1, 1000)
        assert granted is not None
        assert granted.last_value == 42
        await cluster.sql("DROP TABLE {}sequences_unpartitioned")

    @pytest.mark.parametrize(
        "columns",
        [
            f"{GUIDE} NOT NULL, owner TEXT NOT NULL DEFAULT 'us', twice BIGINT GENERATED ALWAYS AS last_value * 2",
            f"{GUIDE}, note TEXT CONSTRAINT noted CHECK (note <> '')",
            f"{GUIDE}, demand TEXT NOT NULL DEFAULT ''",
        ],
    )
    async def test_harmless_columns_are_accepted(self, cluster: Cluster, columns: str) -> None:
        """Columns and constraints of other programs that cannot fail a write are accepted."""
        await cluster.sql(f"CREATE TABLE {{}}sequences ({columns}) CLUSTERED INTO 1 SHARDS")
        store = await cluster.open()
        await store.create(requested_row("s"))
        assert await store.grant("s", 10, 1000) is not None

    async def test_without_ddl_an_older_table_serves(self, cluster: Cluster) -> None:
        """P10: a start that may not add the column demand serves; the named statement adds it."""
        store = await cluster.open()
        await store.create(requested_row("s"))
        await cluster.sql("ALTER TABLE {}sequences DROP COLUMN demand")
        await cluster.revoke("DDL")
        with structlog.testing.capture_logs() as logs:
            store = await cluster.open()
        [line] = [line for line in logs if line["event"] == "demand_not_kept"]
        assert (line["log_level"], line["table"]) == ("warning", f"{cluster.schema}.sequences")
        assert "Missing 'DDL' privilege" in line["error"]
        for last_value in (10, 20):
            granted = await store.grant("s", 10, 1000, demand=DEMAND)
            assert granted is not None
            assert (granted.last_value, granted.demand) == (last_value, None)
        await cluster.grant("DDL")
        await cluster.run(line["next_step"])
        await cluster.revoke("DDL")
        with structlog.testing.capture_logs() as logs:
            restarted = await cluster.open()
        assert not [line for line in logs if line["event"] == "demand_not_kept"]
        granted = await restarted.grant("s", 10, 1000, demand=DEMAND)
        assert granted is not None
        assert (granted.last_value, granted.demand) == (30, DEMAND)
        again = await store.grant("s", 10, 1000)  # by the server that started without it
        assert again is not None
        assert (again.last_value, again.demand) == (40, None)

    async def test_a_column_of_another_program_is_left_alone(self, cluster: Cluster) -> None:
        """A column demand of another type keeps its values, and its table serves."""
        await cluster.sql(f"CREATE TABLE {{}}sequences ({GUIDE}, demand BIGINT) CLUSTERED INTO 1 SHARDS")
        await cluster.sql("INSERT INTO {}sequences (name, last_value, demand) VALUES ('s', 41, 7)")
        with structlog.testing.capture_logs() as logs:
            store = await cluster.open()
        assert [line["log_level"] for line in logs if line["event"] == "demand_not_kept"] == ["warning"]
        granted = await store.grant("s", 1, 1000, demand=DEMAND)
        assert granted is not None
        assert (granted.last_value, granted.demand) == (42, None)
        assert await cluster.sql("SELECT demand FROM {}sequences WHERE name = ?", "s") == [[7]]

    async def test_a_required_column_stays_required(self, cluster: Cluster) -> None:
        """A user who may add neither a required column nor an optional one is refused."""
        await cluster.open()
        await cluster.forget_name()  # as in an older version, which could lack columns
        for column in ("demand", "writes"):
            await cluster.sql(f"ALTER TABLE {{}}sequences DROP COLUMN {column}")
        await cluster.revoke("DDL")
        with pytest.raises(StartRefused, match="cannot create or complete the table"):
            await cluster.open()

    @pytest.mark.parametrize("missing", ["DQL", "DML"])
    async def test_a_missing_privilege_is_refused(self, cluster: Cluster, missing: str) -> None:
        """A start without DQL or DML is refused with the GRANT statement to run."""
        await cluster.open()
        await cluster.revoke("DDL", missing)
        with pytest.raises(StartRefused, match=f"Missing '{missing}' privilege") as caught:
            await cluster.open()
        await cluster.run(str(caught.value))
        await cluster.open()

    @pytest.mark.parametrize("fault", ['SET ("blocks.write" = true)', "CLOSE"])
    async def test_a_blocked_table_is_refused(self, cluster: Cluster, fault: str) -> None:
        """A start on a blocked or closed table is refused with the statement to run."""
        await cluster.open()
        await cluster.sql(f"ALTER TABLE {{}}sequences {fault}")
        with pytest.raises(StartRefused, match="it cannot be used") as caught:
            await cluster.open()
        await cluster.run(str(caught.value))
        await cluster.open()

    async def test_a_start_on_a_full_disk_is_retryable(self, cluster: Cluster) -> None:
        """A start on a full disk is rejected, not refused: it succeeds when there is room."""
        await cluster.open()
        await cluster.sql('ALTER TABLE {}sequences SET ("blocks.read_only_allow_delete" = true)')
        with pytest.raises(FULL_DISK, match="read-only / allow delete"):
            await cluster.open()
        await cluster.sql('ALTER TABLE {}sequences SET ("blocks.read_only_allow_delete" = false)')
        await cluster.open()


class TestUnauthorized:
    """A starting node answers 401 to a right password; a restarted CrateDB did so for 8 s."""

    @pytest.mark.parametrize(("start", "error"), [(60.0, StoreAnsweredError), (0.0, StoreRefused)])
    async def test_a_lasting_401_is_refused(
        self, emulator: CrateEmulator, start: float, error: type[Exception]
    ) -> None:
        """STORE_REFUSED: a 401 is rejected at first, and refused if it outlasts a host's start."""
        http = CrateHttp([emulator.host], host_timeouts=HostTimeouts(start=start))
        store = CrateStore("crate://", http, "ids")
        await store.open()
        emulator.require_password("alice", "new")
        for _ in range(2):  # the second waits for a probe, which is refused too
            with pytest.raises(error, match="password authentication failed"):
                await store.grant("s", 1, 1000)
            with pytest.raises(error, match="password authentication failed"):
                await store.get("s")
        emulator.authorization = None
        assert await store.grant("s", 1, 1000) is None
        await store.close()

    async def test_a_401_after_an_unknown_table_is_rejected(self, emulator: CrateEmulator) -> None:
        """A restarted host that knows neither table nor user is rejected, not refused."""
        http = CrateHttp([emulator.host])
        store = CrateStore("crate://", http, "ids")
        await store.open()
        for use in (lambda: store.grant("s", 1, 1000), lambda: store.get("s")):
            emulator.inject(
                Fault("error", status=404, code=4041, message="RelationUnknown[Relation 'ids.sequences' unknown]"),
                Fault("error", match="sequences", status=401, code=0, message="password authentication failed"),
            )
            with pytest.raises(StoreAnsweredError, match="password authentication failed"):
                await use()
            assert await use() is None
        await store.close()

    async def test_a_repeated_read_is_never_unknown(self, emulator: CrateEmulator) -> None:
        """A read that is repeated after a start, and loses its answer, is unreachable."""
        store = CrateStore("crate://", CrateHttp([emulator.host]), "ids")
        await store.open()
        emulator.inject(
            Fault("error", status=404, code=4041, message="RelationUnknown[Relation 'ids.sequences' unknown]"),
            Fault("drop", match='FROM "ids"."sequences"'),
        )
        with pytest.raises(StoreUnreachable):
            await store.get("s")
        assert await store.get("s") is None
        await store.close()

    async def test_a_starting_host_is_skipped(self, emulator: CrateEmulator) -> None:
        """P10: in a rolling restart a host that does not know its users yet is skipped."""
        other = f"127.0.0.1:{await emulator.listen()}"
        http = CrateHttp([emulator.host, other])
        store = CrateStore("crate://", http, "ids")
        await store.open()
        port = int(emulator.host.rpartition(":")[2])
        for _ in range(2):
            emulator.inject(
                Fault("error", port=port, status=401, code=0, message='password authentication failed for user "a"')
            )
        assert await store.grant("s", 1, 1000) is None
        assert await store.get("s") is None
        await store.close()
