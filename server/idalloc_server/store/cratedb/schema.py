"""Creates idalloc's tables in CrateDB, adopts existing ones, refuses an unsafe cluster or table.

Every step reads first and creates only what is missing. Any number of processes may start at once,
and a user without the privilege DDL can start if the tables are complete, or lack optional columns
only.
"""

import re
from collections.abc import Mapping, Sequence

import structlog

from idalloc_server.domain.errors import (
    StartRefused,
    StoreAnsweredError,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
)
from idalloc_server.store import packed_settings
from idalloc_server.store.cluster.transport import raise_if_server_failed
from idalloc_server.store.cratedb import checks
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.tables import Table

_log = structlog.get_logger(__name__)

# The oldest that the contract tests ran on. Those before 5.10.12 may block an update, or retry it
# on a changed request; 6.0.0 loses defaults.
_MIN_VERSION = (5, 10, 16)
_BROKEN_VERSION = (6, 0, 0)
_SUPPORTED = "5.10.16 or newer, but not 6.0.0"
_MAX_ATTEMPTS = 3


async def set_up(http: CrateHttp, schema: str, tables: Sequence[Table]) -> bool:
    """Check the cluster and create the tables and columns that are missing.

    A host that does not know the first table gets no write.

    Returns:
        Whether the tables have their optional columns: the user may have no privilege to add them.

    Raises:
        StartRefused: The version, a table, a setting of a table or a privilege of the user is
            unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    try:
        check_version(await http.version())
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        raise StartRefused("store", f"check the host, the user and the password or jwt of the URL: {error}") from error
    nodes = await _count_nodes(http)
    is_complete = True
    for table in tables:
        if await _column_types(http, schema, table):
            await checks.check(http, schema, table, nodes)
        is_complete &= await _create_missing(http, schema, table)
        await checks.check_privileges(http, schema, table)
        await http.open_table(table.reference(schema))
    # A node answers this by itself, from its copy of the cluster state.
    http.set_probe(checks.KEY_COLUMNS, schema, tables[0].name)
    return is_complete


def check_version(version: str) -> None:
    """Refuse a version of CrateDB whose updates or defaults are broken.

    Raises:
        StartRefused: The version is unsupported or unknown.
    """
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    parts = tuple(int(part) for part in found.groups()) if found else (0, 0, 0)
    if parts < _MIN_VERSION or parts == _BROKEN_VERSION:
        raise StartRefused("store", f"CrateDB {version} cannot be used: upgrade the cluster to {_SUPPORTED}")


async def _count_nodes(http: CrateHttp) -> int | None:
    """Check all nodes' versions; return their number, or None if the user may not see them."""
    try:
        rows = await http.read("SELECT version['number'] FROM sys.nodes")
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        return None
    for (version,) in rows:
        check_version(str(version))
    return len(rows)


async def _create_missing(http: CrateHttp, schema: str, table: Table) -> bool:
    """Create a table, or the columns that it lacks; return whether it has the optional ones."""
    found: dict[str, str] = {}
    missing: list[str] = []
    failure: StoreFailure | None = None
    # Processes that start at the same time create the same table or columns. The later one is
    # refused, and finds them in the next attempt.
    for _ in range(_MAX_ATTEMPTS):
        found = await _column_types(http, schema, table)
        missing = _missing_statements(schema, table, found)
        if not missing:
            return True
        for statement in missing:
            try:
                await http.write(statement)
            except (StoreAnsweredError, StoreRefused, StoreOutcomeUnknown) as error:
                failure = error
    if isinstance(failure, StoreOutcomeUnknown):
        raise failure
    if table.columns.keys() <= found.keys():
        _log.warning(
            "demand_not_kept",
            why=packed_settings.WITHOUT_DEMAND,
            table=f"{schema}.{table.name}",
            error=str(failure),
            next_step=f"as a user with DDL, run {'; '.join(missing)}; then restart the servers",
        )
        return False
    raise StartRefused(
        "store",
        f"cannot create or complete the table {schema}.{table.name}: {failure}; "
        f"grant the user DDL, DQL and DML on schema {schema}, or create the table first",
    ) from failure


def _missing_statements(schema: str, table: Table, found: Mapping[str, str]) -> list[str]:
    """Return the statements that create the table, or its missing columns."""
    if not found:
        return [table.definition(schema)]
    essential = list(table.columns)[:2]
    for name, kind in table.columns.items():
        if found.get(name) != kind and (name in found or name in essential):
            wrong = f"{name} must be {kind}, not {found[name]}" if name in found else f"{name} ({kind}) is missing"
            raise StartRefused(
                "store",
                f"the table {schema}.{table.name} is not idalloc's: column {wrong}; choose another schema (?schema=…)",
            )
    return [
        f"ALTER TABLE {table.reference(schema)} ADD COLUMN {name} {kind}"
        for name, kind in table.all_columns.items()
        if found.get(name) != kind
    ]


async def _column_types(http: CrateHttp, schema: str, table: Table) -> dict[str, str]:
    rows = await http.read(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = ? AND table_name = ?",
        schema,
        table.name,
    )
    return {str(name): str(kind).upper() for name, kind in rows}
