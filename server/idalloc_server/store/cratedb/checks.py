"""Refuses a table in CrateDB on which idalloc's statements would fail or lose ids.

Each error names the next step.
"""

# ruff: noqa: S608 - only constants and the validated schema name are inserted into statements

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import structlog

from idalloc_server.domain.errors import StartRefused, StoreRefused
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.store.cratedb.answers import quoted
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.tables import Table

_log = structlog.get_logger(__name__)

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
    """A column in information_schema; constraints refer to it by ``position``."""

    name: str
    is_nullable: str | bool
    default: str | None
    is_generated: str
    position: int


async def check(http: CrateHttp, schema: str, table: Table, nodes: int | None) -> None:
    """Check an existing table, before idalloc adds columns to it.

    If ``nodes``, the number of nodes of the cluster, is known and above 1, a table without replicas
    logs a warning.

    Raises:
        StartRefused: The table cannot be used.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    where = (schema, table.name)
    # With another key every UPDATE would be an update by query, which reads an old snapshot.
    if await http.read(KEY_COLUMNS, *where) != [[table.key]]:
        raise _refused(schema, table, f"its primary key must be {table.key} alone; choose another schema (?schema=…)")
    columns = [_Column(*row) for row in await http.read(_COLUMNS, *where)]
    _check_settings(schema, table, await http.read(_SETTINGS, *where), nodes, columns)
    _check_columns(schema, table, columns)
    await _check_constraints(http, schema, table, columns)


async def has_rows(http: CrateHttp, schema: str, table: Table) -> bool:
    """Return whether a table has rows, apart from that of the store's name.

    Raises:
        StartRefused: The user lacks a privilege, or the table is blocked or closed.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    reference = table.reference(schema)
    try:
        await http.read(f"REFRESH TABLE {reference}")
        found = await http.read(f"SELECT {table.key} FROM {reference} LIMIT 2")
    except StoreRefused as error:
        raise _refused(schema, table, f"it cannot be used: {error}") from error
    return any(key != IDENTITY for (key,) in found)


async def check_privileges(http: CrateHttp, schema: str, table: Table) -> None:
    """Check the privileges DQL and DML by a write and a read of a row that does not exist.

    Raises:
        StartRefused: The user lacks a privilege, or the table is blocked or closed.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    missing_key: object = "" if table.columns[table.key] == "TEXT" else -1
    reference, column = table.reference(schema), list(table.columns)[-1]
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


def _check_settings(
    schema: str, table: Table, rows: Sequence[Sequence[Any]], nodes: int | None, columns: Sequence[_Column]
) -> None:
    reference = table.reference(schema)
    replicas, durability, partitioned_by = rows[0] if rows else (None, None, None)
    if str(durability).upper() == "ASYNC":
        raise _refused(
            schema,
            table,
            f"a crash loses acknowledged writes, as its durability is ASYNC: run ALTER TABLE {reference} SET"
            """ ("translog.durability" = 'REQUEST')""",
        )
    if partitioned_by:
        copy = replace(table, name=f"{table.name}_unpartitioned")
        names = ", ".join(column.name for column in columns if column.name in table.all_columns)
        raise _refused(
            schema,
            table,
            f"it is PARTITIONED BY ({', '.join(partitioned_by)}), and each row would make a partition; stop all "
            f"writers, then run {copy.definition(schema)}; INSERT INTO {copy.reference(schema)} ({names}) SELECT "
            f"{names} FROM {reference}; ALTER CLUSTER SWAP TABLE {copy.reference(schema)} TO {reference}",
        )
    if nodes is not None and nodes > 1 and str(replicas) in ("0", "0-0"):
        _log.warning(
            "table_without_replica",
            why="its rows are lost with its node",
            table=f"{schema}.{table.name}",
            next_step=f"ALTER TABLE {reference} SET (number_of_replicas = '0-2')",
        )


def _check_columns(schema: str, table: Table, columns: Sequence[_Column]) -> None:
    for column in columns:
        alter = f"ALTER TABLE {table.reference(schema)}"
        name = quoted(column.name)
        is_expected = column.name in table.columns
        is_generated = column.is_generated == "ALWAYS"
        if is_generated and column.name in table.all_columns:
            problem = f"CrateDB generates its column {column.name}, which idalloc writes"
        elif is_expected and column.is_nullable in _NOT_NULL and column.name not in table.written:
            problem = f"its column {column.name} is NOT NULL, and idalloc writes NULL into it"
        elif not is_expected and column.is_nullable in _NOT_NULL and column.default is None and not is_generated:
            raise _refused(
                schema,
                table,
                f"its column {column.name} is NOT NULL without a default, and idalloc does not write it: run "
                f"{alter} ALTER COLUMN {name} SET DEFAULT with a value of yours, or {alter} DROP COLUMN {name}",
            )
        else:
            continue
        if column.name in list(table.columns)[:2]:
            raise _refused(schema, table, f"{problem}; choose another schema (?schema=…)")
        raise _refused(schema, table, f"{problem}: run {alter} DROP COLUMN {name}; the next start adds it again")


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
