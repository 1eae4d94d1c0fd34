"""Makes idalloc's tables in CrateDB, adopts those that are there, and refuses what cannot be counted on.

Every step looks first and does only what is missing, so that any number of processes may start at once, and a user
without the privilege for DDL will do where the tables are complete.
"""

# ruff: noqa: S608 - the schema's name was checked, and nothing else that is not our own gets into a statement

import re
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from idalloc_server.domain.errors import StartRefused, StoreOutcomeUnknown, StoreRejected, StoreUnavailable
from idalloc_server.store.crate_http import CrateHttp

_log = structlog.get_logger(__name__)

# Before it, updates could get stuck or be retried on a changed request; 6.0.0 loses defaults.
_OLDEST = (5, 10, 12)
_BROKEN = (6, 0, 0)
_WORKS = "5.10.12 or newer, but not 6.0.0"
_ROUNDS = 3
_KEY = "SELECT column_name FROM information_schema.key_column_usage WHERE table_schema = ? AND table_name = ?"


@dataclass(frozen=True)
class Table:
    """A table as idalloc makes it.

    Attributes:
        name: Its name, without its schema.
        key: Its primary key.
        columns: The type of each column. Of a table that is adopted all but the first two may be missing.
    """

    name: str
    key: str
    columns: Mapping[str, str]

    def reference(self, schema: str) -> str:
        """Returns its full name as SQL takes it."""
        return f'"{schema}"."{self.name}"'

    def definition(self, schema: str) -> str:
        """Returns the statement that makes it."""
        columns = ", ".join(
            f"{name} {kind}{' PRIMARY KEY' if name == self.key else ''}" for name, kind in self.columns.items()
        )
        return (
            f"CREATE TABLE IF NOT EXISTS {self.reference(schema)} ({columns}) CLUSTERED INTO 1 SHARDS WITH ("
            "number_of_replicas = '0-2', \"translog.durability\" = 'REQUEST', column_policy = 'strict')"
        )


SEQUENCES = Table(
    "sequences",
    "name",
    {
        "name": "TEXT",
        "last_value": "BIGINT",
        "step": "BIGINT",
        "min_value": "BIGINT",
        "max_value": "BIGINT",
        "generation": "BIGINT",
        "lease_ms": "BIGINT",
        "granted": "BIGINT",
        "settings": "TEXT",
        "mode": "TEXT",
        "rev": "BIGINT",
        "rev_by": "TEXT",
        "created_at": "TIMESTAMP WITH TIME ZONE",
        "changed_at": "TIMESTAMP WITH TIME ZONE",
        "writes": "BIGINT",
    },
)
STARTS = Table(
    "start_timestamps",
    "prefix",
    {
        "prefix": "INTEGER",
        "last_start": "BIGINT",
        "holder": "TEXT",
        "seen_at": "TIMESTAMP WITH TIME ZONE",
    },
)
ALLOCATIONS = Table(
    "allocations",
    "request_id",
    {
        "request_id": "TEXT",
        "sequence": "TEXT",
        "first_id": "BIGINT",
        "id_count": "BIGINT",
        "step": "BIGINT",
        "generation": "BIGINT",
        "period": "TEXT",
        "prefix": "INTEGER",
        "node": "TEXT",
        "written_at": "TIMESTAMP WITH TIME ZONE",
        "window_ms": "BIGINT",
    },
)


async def set_up(http: CrateHttp, schema: str) -> None:
    """Checks the cluster and makes what is missing.

    Raises:
        StartRefused: The version, a table, its settings or the user's privileges will not do.
        StoreUnavailable: The cluster cannot be reached, or fails.
    """
    try:
        check_version(await http.version())
    except StoreRejected as error:
        if error.http_status is not None and error.http_status >= 500:
            raise
        raise StartRefused("store", f"check the host, the user and the password or jwt of the URL: {error}") from error
    nodes = await _nodes(http)
    for table in (SEQUENCES, STARTS, ALLOCATIONS):
        await _ensure(http, schema, table)
        await _check_settings(http, schema, table, nodes)
        await _check_writable(http, schema, table)
    # Each node answers it alone, from what it knows of the cluster's tables.
    http.require(_KEY, schema, SEQUENCES.name)


def check_version(version: str) -> None:
    """Refuses a CrateDB that updates cannot be trusted to.

    Raises:
        StartRefused: It is one of those, or tells no version.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    parts = tuple(int(part) for part in found.groups()) if found else (0, 0, 0)
    if parts < _OLDEST or parts == _BROKEN:
        raise StartRefused("store", f"CrateDB {version} cannot be used: upgrade the cluster to {_WORKS}")


async def _nodes(http: CrateHttp) -> int | None:
    """Checks every node's version; returns how many there are, or None where the user may not see them."""
    try:
        rows = await http.read("SELECT version['number'] FROM sys.nodes")
    except StoreRejected as error:
        if error.http_status is not None and error.http_status >= 500:
            raise
        return None
    for (version,) in rows:
        check_version(str(version))
    return len(rows)


async def _ensure(http: CrateHttp, schema: str, table: Table) -> None:
    """Makes a table, or the columns that it lacks."""
    failure: StoreUnavailable | None = None
    # Another process that starts just now makes the same table or columns: the one that comes second is refused, and
    # sees them when it looks again.
    for _ in range(_ROUNDS):
        missing = _missing(schema, table, await _columns(http, schema, table))
        if not missing:
            return
        for statement in missing:
            try:
                await http.write(statement)
            except (StoreRejected, StoreOutcomeUnknown) as error:
                failure = error
    if isinstance(failure, StoreOutcomeUnknown):
        raise failure
    raise StartRefused(
        "store",
        f"cannot make or complete the table {schema}.{table.name}: {failure}; "
        f"grant the user DDL, DQL and DML on schema {schema}, or make the table first",
    ) from failure


def _missing(schema: str, table: Table, found: Mapping[str, str]) -> list[str]:
    """Returns the statements that make what is missing."""
    if not found:
        return [table.definition(schema)]
    essential = list(table.columns)[:2]
    for name, kind in table.columns.items():
        if found.get(name) != kind and (name in found or name in essential):
            raise StartRefused(
                "store",
                f"the table {schema}.{table.name} is not one of idalloc's, which has {name} {kind}; "
                "choose another schema (?schema=…)",
            )
    return [
        f"ALTER TABLE {table.reference(schema)} ADD COLUMN {name} {kind}"
        for name, kind in table.columns.items()
        if name not in found
    ]


async def _columns(http: CrateHttp, schema: str, table: Table) -> dict[str, str]:
    rows = await http.read(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = ? AND table_name = ?",
        schema,
        table.name,
    )
    return {str(name): str(kind).upper() for name, kind in rows}


async def _check_settings(http: CrateHttp, schema: str, table: Table, nodes: int | None) -> None:
    full_name = f"{schema}.{table.name}"
    rows = await http.read(_KEY, schema, table.name)
    # Without it every statement would be an update by query, which sees an old snapshot.
    if rows != [[table.key]]:
        raise StartRefused(
            "store",
            f"the primary key of the table {full_name} must be {table.key} alone; choose another schema (?schema=…)",
        )
    rows = await http.read(
        "SELECT number_of_replicas, settings['translog']['durability'] FROM information_schema.tables"
        " WHERE table_schema = ? AND table_name = ?",
        schema,
        table.name,
    )
    replicas, durability = rows[0] if rows else (None, None)
    if str(durability).upper() == "ASYNC":
        raise StartRefused(
            "store",
            f"the table {full_name} loses acknowledged writes in a crash: "
            f"""ALTER TABLE {table.reference(schema)} SET ("translog.durability" = 'REQUEST')""",
        )
    if nodes is not None and nodes > 1 and str(replicas) in ("0", "0-0"):
        _log.warning(
            "the table has no replica: its sequences are lost with its node",
            table=full_name,
            mend=f"ALTER TABLE {table.reference(schema)} SET (number_of_replicas = '0-2')",
        )


async def _check_writable(http: CrateHttp, schema: str, table: Table) -> None:
    """Writes nothing, with the privilege that writing takes."""
    nobody: object = "" if table.columns[table.key] == "TEXT" else -1
    last = list(table.columns)[1]
    try:
        await http.write(f"UPDATE {table.reference(schema)} SET {last} = {last} WHERE {table.key} = ?", nobody)
    except StoreRejected as error:
        raise StartRefused(
            "store",
            f"cannot write to the table {schema}.{table.name}: {error}; "
            f"grant the user DQL and DML on schema {schema}, and see that it is not read-only",
        ) from error
