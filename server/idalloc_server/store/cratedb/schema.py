"""Makes idalloc's tables in CrateDB, adopts those that are there, and refuses what cannot be counted on.

Every step looks first and does only what is missing, so that any number of processes may start at once, and a user
without the privilege for DDL will do where the tables are complete.
"""

import re
from collections.abc import Mapping

from idalloc_server.domain.errors import StartRefused, StoreFailure, StoreOutcomeUnknown, StoreRefused, StoreRejected
from idalloc_server.store.cratedb import checks
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.tables import ALLOCATIONS, SEQUENCES, STARTS, Table

# Before it, updates could get stuck or be retried on a changed request; 6.0.0 loses defaults.
_OLDEST = (5, 10, 12)
_BROKEN = (6, 0, 0)
_WORKS = "5.10.12 or newer, but not 6.0.0"
_ROUNDS = 3


async def set_up(http: CrateHttp, schema: str) -> None:
    """Checks the cluster and makes what is missing.

    Raises:
        StartRefused: The version, a table, its settings or the user's privileges will not do.
        StoreFailure: The cluster cannot be reached, or fails.
    """
    try:
        check_version(await http.version())
    except (StoreRejected, StoreRefused) as error:
        if error.http_status is not None and error.http_status >= 500:
            raise
        raise StartRefused("store", f"check the host, the user and the password or jwt of the URL: {error}") from error
    nodes = await _nodes(http)
    for table in (SEQUENCES, STARTS, ALLOCATIONS):
        if await _columns(http, schema, table):
            await checks.check(http, schema, table, nodes)
        await _ensure(http, schema, table)
        await checks.check_privileges(http, schema, table)
    # Each node answers it alone, from what it knows of the cluster's tables.
    http.require(checks.KEY, schema, SEQUENCES.name)


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
    except (StoreRejected, StoreRefused) as error:
        if error.http_status is not None and error.http_status >= 500:
            raise
        return None
    for (version,) in rows:
        check_version(str(version))
    return len(rows)


async def _ensure(http: CrateHttp, schema: str, table: Table) -> None:
    """Makes a table, or the columns that it lacks."""
    failure: StoreFailure | None = None
    # Another process that starts just now makes the same table or columns: the one that comes second is refused, and
    # sees them when it looks again.
    for _ in range(_ROUNDS):
        missing = _missing(schema, table, await _columns(http, schema, table))
        if not missing:
            return
        for statement in missing:
            try:
                await http.write(statement)
            except (StoreRejected, StoreRefused, StoreOutcomeUnknown) as error:
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
