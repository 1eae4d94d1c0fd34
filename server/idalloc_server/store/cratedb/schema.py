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
from idalloc_server.domain.store.identity import Part, name_in
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


async def check_cluster(http: CrateHttp) -> int | None:
    """Check the versions of the cluster, and bind the later connections to it.

    Returns:
        The number of its nodes; None if the user may not see them.

    Raises:
        StartRefused: A version or the user is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    try:
        check_version(await http.version())
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        raise StartRefused("store", f"check the host, the user and the password or jwt of the URL: {error}") from error
    try:
        await http.open_cluster()
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)  # else the user may not see it
    return await _count_nodes(http)


async def inspect(http: CrateHttp, schema: str, table: Table, nodes: int | None) -> Part:
    """Check a table, and return what it has of a store. A missing one has nothing.

    Raises:
        StartRefused: The table, or one of its settings, is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    found = await _column_types(http, schema, table)
    if found:
        _check_types(schema, table, found)
        await checks.check(http, schema, table, nodes)
    has_rows = bool(found) and await checks.has_rows(http, schema, table)
    lacks = [name for name in table.columns if name not in found]
    return Part(table.name, f"the table {schema}.{table.name}", table.columns.keys(), lacks, name_in(found), has_rows)


async def set_up(http: CrateHttp, schema: str, table: Table, *, creates: bool = True) -> bool:
    """Create a table, or the columns that it lacks, if ``creates`` is true.

    A host that does not know the table later gets no write.

    Returns:
        Whether the table has its optional columns: the user may have no privilege to add them.

    Raises:
        StartRefused: The table cannot be created, or a privilege of the user is missing.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    if creates:
        is_complete = await _create_missing(http, schema, table)
    else:
        is_complete = not _missing_statements(schema, table, await _column_types(http, schema, table))
    await checks.check_privileges(http, schema, table)
    await http.open_table(schema, table.name)
    # A node answers this by itself, from its copy of the cluster state.
    http.set_probe(checks.KEY_COLUMNS, schema, table.name)
    return is_complete


async def set_up_all(http: CrateHttp, schema: str, tables: Sequence[Table]) -> None:
    """Check the cluster and tables of another use, create what is missing, and keep their identity.

    Raises:
        StartRefused, StoreFailure: As ``check_cluster``, ``inspect`` and ``set_up``.
    """
    nodes = await check_cluster(http)
    for table in tables:
        await inspect(http, schema, table, nodes)
        await set_up(http, schema, table)


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
        event = "demand_not_kept"
        why = packed_settings.WITHOUT_DEMAND
        if "demand" not in table.optional:
            event = "store_name_not_kept"
            why = "an exchange of this table for another one is not noticed by a start"
        _log.warning(
            event,
            why=why,
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
    _check_types(schema, table, found)
    alter = f"ALTER TABLE {table.reference(schema)}"
    added = [f"{alter} ADD COLUMN {name} {kind}" for name, kind in table.all_columns.items() if found.get(name) != kind]
    # The names of other stores, before a repair.
    others = [name for name in found if name_in([name]) and name not in table.optional]
    return added + [f"{alter} DROP COLUMN {name}" for name in others]


def _check_types(schema: str, table: Table, found: Mapping[str, str]) -> None:
    essential = list(table.columns)[:2]
    for name, kind in table.columns.items():
        if found.get(name) != kind and (name in found or name in essential):
            wrong = f"{name} must be {kind}, not {found[name]}" if name in found else f"{name} ({kind}) is missing"
            raise StartRefused(
                "store",
                f"the table {schema}.{table.name} is not idalloc's: column {wrong}; choose another schema (?schema=…)",
            )


async def _column_types(http: CrateHttp, schema: str, table: Table) -> dict[str, str]:
    rows = await http.read(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = ? AND table_name = ?",
        schema,
        table.name,
    )
    return {str(name): str(kind).upper() for name, kind in rows}
