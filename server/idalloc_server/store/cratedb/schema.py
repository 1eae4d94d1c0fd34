"""Creates idalloc's tables in CrateDB, adopts existing ones, refuses an unsafe cluster or table.

Every step reads first and creates only what is missing. Any number of processes may start at once,
and a user without the privilege DDL can start if the tables are complete, or lack optional columns
only.
"""

# ruff: noqa: S608 - only constants and the validated schema name are inserted into statements

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from idalloc_server.domain.errors import (
    StartRefused,
    StoreAnsweredError,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
)
from idalloc_server.domain.store.identity import IDENTITY, Part, name_in
from idalloc_server.store import stored_rows
from idalloc_server.store.cluster.http_transport import raise_if_server_failed
from idalloc_server.store.cratedb.http import CrateHttp, quoted
from idalloc_server.store.cratedb.tables import Table

_log = structlog.get_logger(__name__)

# The oldest that the contract tests ran on. Those before 5.10.12 may block an update, or retry it
# on a changed request; 6.0.0 loses defaults.
_MIN_VERSION = (5, 10, 16)
_BROKEN_VERSION = (6, 0, 0)
_SUPPORTED = "5.10.16 or newer, but not 6.0.0"
_MAX_ATTEMPTS = 3

KEY_COLUMNS = "SELECT column_name FROM information_schema.key_column_usage WHERE table_schema = ? AND table_name = ?"
_COLUMNS = (
    "SELECT column_name, is_nullable, column_default, is_generated, ordinal_position FROM information_schema.columns"
    " WHERE table_schema = ? AND table_name = ?"
)
_SETTINGS = (
    "SELECT number_of_replicas, settings['translog']['durability'], partitioned_by FROM information_schema.tables"
    " WHERE table_schema = ? AND table_name = ?"
)
# ``is_nullable`` of a column that is NOT NULL, in CrateDB 6 and in 5.10.
_NOT_NULL = ("NO", False)


class _Column(NamedTuple):
    """A column in information_schema, as ``_COLUMNS`` has it; constraints name its position."""

    name: str
    is_nullable: str | bool
    default: str | None
    is_generated: str
    position: int


async def _has_rows(http: CrateHttp, schema: str, table: Table) -> bool:
    """Return whether a table has rows, apart from that of the store's name."""
    reference = table.reference(schema)
    try:
        await http.read(f"REFRESH TABLE {reference}")
        found = await http.read(f"SELECT {table.key} FROM {reference} LIMIT 2")
    except StoreRefused as error:
        raise _refused(schema, table, f"it cannot be used: {error}") from error
    return any(key != IDENTITY for (key,) in found)


async def _check_privileges(http: CrateHttp, schema: str, table: Table) -> None:
    """Check the privileges DQL and DML by a write and a read of a row that does not exist."""
    missing_key: object = "" if table.columns[table.key] == "TEXT" else -1
    reference = table.reference(schema)
    column = list(table.columns)[-1]
    # A column of the key cannot be updated.
    write = f"DELETE FROM {reference}" if column == table.key else f"UPDATE {reference} SET {column} = {column}"
    try:
        # The write first: it waits for the shard of a new table, where a read fails.
        await http.write(f"{write} WHERE {table.key} = ?", missing_key)
        await http.read(f"SELECT {column} FROM {reference} WHERE {table.key} = ?", missing_key)
    except StoreRefused as error:
        raise _refused(schema, table, f"it cannot be used: {error}") from error


def _refused(schema: str, table: Table, message: str) -> StartRefused:
    return StartRefused("store", f"the table {schema}.{table.name}: {message}")


def _problems_of_settings(
    schema: str, table: Table, rows: Sequence[Sequence[Any]], columns: Sequence[_Column]
) -> Iterator[str]:
    reference = table.reference(schema)
    _, durability, partitioned_by = rows[0] if rows else (None, None, None)
    if str(durability).upper() == "ASYNC":
        yield (
            f"a crash loses acknowledged writes, as its durability is ASYNC: run ALTER TABLE {reference} SET"
            """ ("translog.durability" = 'REQUEST')"""
        )
    if partitioned_by:
        copy = replace(table, name=f"{table.name}_unpartitioned")
        names = ", ".join(column.name for column in columns if column.name in table.all_columns)
        yield (
            f"it is PARTITIONED BY ({', '.join(partitioned_by)}), and each row would make a partition; stop all "
            f"writers, then run {copy.definition(schema)}; INSERT INTO {copy.reference(schema)} ({names}) SELECT "
            f"{names} FROM {reference}; ALTER CLUSTER SWAP TABLE {copy.reference(schema)} TO {reference}"
        )


def _problems_of_columns(schema: str, table: Table, columns: Sequence[_Column]) -> Iterator[str]:
    alter = f"ALTER TABLE {table.reference(schema)}"
    for column in columns:
        name = quoted(column.name)
        is_not_null = column.is_nullable in _NOT_NULL
        is_generated = column.is_generated == "ALWAYS"
        if is_generated and column.name in table.all_columns:
            problem = f"CrateDB generates its column {column.name}, which idalloc writes"
        elif is_not_null and column.name in table.nullable:
            problem = f"its column {column.name} is NOT NULL, and idalloc writes NULL into it"
        elif column.name not in table.columns and is_not_null and column.default is None and not is_generated:
            yield (
                f"its column {column.name} is NOT NULL without a default, and idalloc does not write it: run "
                f"{alter} ALTER COLUMN {name} SET DEFAULT with a value of yours, or {alter} DROP COLUMN {name}"
            )
            continue
        else:
            continue
        is_essential = column.name in list(table.columns)[:2]
        drop = f": run {alter} DROP COLUMN {name}; the next start adds it again"
        yield f"{problem}{'; choose another schema (?schema=…)' if is_essential else drop}"


async def _check_constraints(http: CrateHttp, schema: str, table: Table, columns: Sequence[_Column]) -> None:
    """Refuse a CHECK on a column that idalloc writes.

    Its new rows have NULL elsewhere, which passes a CHECK.
    """
    reference = table.reference(schema)
    expected = {column.position: column.name for column in columns if column.name in table.all_columns}
    for name, positions in await http.read(
        f"SELECT conname, conkey FROM pg_catalog.pg_constraint WHERE conrelid = '{reference}'::regclass"
        " AND contype = 'c'"
    ):
        checked = [expected[position] for position in positions or expected if position in expected]
        if checked:
            raise _refused(
                schema,
                table,
                f"idalloc's values may violate its CHECK constraint {name} of {', '.join(checked)}: run "
                f'ALTER TABLE {reference} DROP CONSTRAINT "{name}"',
            )


async def check_cluster(http: CrateHttp) -> int | None:
    """Check the versions of the cluster, and bind the later connections to it.

    Returns:
        The number of its nodes; None if the user may not see them.

    Raises:
        StartRefused: A version or the user is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    try:
        check_version(await http.send_read(http.ALIVE))
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        raise StartRefused("store", f"check the host, the user and the password or jwt of the URL: {error}") from error
    try:
        await http.open_cluster()
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)  # else the user may not see it
    try:
        rows = await http.read("SELECT version['number'] FROM sys.nodes")
    except (StoreAnsweredError, StoreRefused) as error:
        raise_if_server_failed(error)
        return None
    for (version,) in rows:
        if version is not None:  # NULL: the node does not answer the others, such as a paused one
            check_version(str(version))
    return len(rows)


async def inspect(http: CrateHttp, schema: str, table: Table, nodes: int | None) -> Part:
    """Check a table before columns are added, and return what it has of a store.

    A missing one has nothing. If ``nodes``, the number of nodes of the cluster, is known and above
    1, a table without replicas logs a warning.

    Raises:
        StartRefused: The table, or one of its settings, is unsuitable.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    found = await _column_types(http, schema, table)
    if found:
        _check_types(schema, table, found)
        where = (schema, table.name)
        # With another key every UPDATE would be an update by query, which reads an old snapshot.
        if await http.read(KEY_COLUMNS, *where) != [[table.key]]:
            why = f"its primary key must be {table.key} alone; choose another schema (?schema=…)"
            raise _refused(schema, table, why)
        columns = [_Column._make(row) for row in await http.read(_COLUMNS, *where)]
        settings = await http.read(_SETTINGS, *where)
        for problem in _problems_of_settings(schema, table, settings, columns):
            raise _refused(schema, table, problem)
        if nodes is not None and nodes > 1 and settings and str(settings[0][0]) in ("0", "0-0"):
            _log.warning(
                "table_without_replica",
                why="its rows are lost with its node",
                table=f"{schema}.{table.name}",
                next_step=f"ALTER TABLE {table.reference(schema)} SET (number_of_replicas = '0-2')",
            )
        for problem in _problems_of_columns(schema, table, columns):
            raise _refused(schema, table, problem)
        await _check_constraints(http, schema, table, columns)
    lacks = [name for name in table.columns if name not in found]
    return Part(
        table.name,
        f"the table {schema}.{table.name}",
        table.columns.keys(),
        lacks,
        store=name_in(found),
        has_rows=bool(found) and await _has_rows(http, schema, table),
    )


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
    await _check_privileges(http, schema, table)
    await http.open_table(schema, table.name)
    # A node answers this by itself, from its copy of the cluster state.
    http.serving = (KEY_COLUMNS, (schema, table.name))
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
        why = stored_rows.WITHOUT_DEMAND
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
