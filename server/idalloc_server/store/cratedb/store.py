"""The store in a CrateDB cluster: counters, start timestamps and recorded allocations."""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from idalloc_server.domain.errors import (
    GrantLost,
    StoreAnsweredError,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreWentBackwards,
)
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.identity import (
    ALLOCATIONS,
    IDENTITY,
    NAME_COLUMN,
    SEQUENCES,
    START_TIMESTAMPS,
    Opening,
    Part,
    copy_of,
)
from idalloc_server.domain.store.records import (
    Claim,
    Demand,
    Grant,
    RecordedAllocation,
    RecordedEnd,
    Row,
    RowChange,
    RowVersion,
)
from idalloc_server.domain.store.retention import RecordPosition, Retention
from idalloc_server.store import stored_rows
from idalloc_server.store.bounds import advance_counter, lattice
from idalloc_server.store.cluster.base import COUNTERS, TIMESTAMPS, ClusterStore
from idalloc_server.store.cluster.joined_writes import JoinedWrites
from idalloc_server.store.cratedb import statements
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.schema import check_cluster, inspect, set_up
from idalloc_server.store.cratedb.tables import TABLES
from idalloc_server.store.stored_rows import columns_of, generation_of, milliseconds, parse_grant, parse_row

# The most names whose grants may share an UPDATE; then those of all go alone once.
_MAX_JOINING = 100_000


class _Grant(NamedTuple):
    """The arguments of a grant, in the order of its statement."""

    wanted: int
    lease_ms: int
    name: str
    generation: int
    least: int
    most: int
    demand: str | None


@dataclass(eq=False)
class CrateStore(ClusterStore):
    """A store in a CrateDB cluster; see ``Store``."""

    http: CrateHttp
    schema: str  # of the tables; letters, digits, ``_`` and ``-``

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sql = statements.Statements(self.schema)
        self._grant_sql = self._sql.grant
        self._arguments = slice(None)  # those of ``_Grant`` that the statement has
        self._copy = ""  # the name of the store in the recorded allocations
        self._joining: set[str] = set()  # the names whose last grant was complete, and not of RISING ids
        self._grants = JoinedWrites(self._send_grant, self._send_grants)

    async def _inspect(self, opening: Opening) -> tuple[list[Part], Sequence | None]:
        nodes = await check_cluster(self.http)
        parts = [await inspect(self.http, self.schema, table, nodes) for table in TABLES.values()]
        if "sequence" not in parts[2].lacks:
            copies = await self.http.read(self._sql.store_name, IDENTITY)
            self._copy = copies[0][0] if copies else ""
        parts[2] = parts[2]._replace(store=self._copy)
        rows = [] if "settings" in parts[0].lacks else await self.http.read(self._sql.settings, IDENTITY)
        return parts, stored_rows.unpack(IDENTITY, {"settings": rows[0][0]}) if rows else None

    async def _set_up(self, part: str, store: str, *, creates: bool) -> str:
        table = TABLES[part]
        if part == START_TIMESTAMPS and creates:
            table = replace(table, optional={f"{NAME_COLUMN}{store}": "TEXT"})
        is_complete = await set_up(self.http, self.schema, table, creates=creates)
        if part == SEQUENCES and not is_complete:
            self._grant_sql = self._sql.grant_without_demand
            self._arguments = slice(-1)
        if part == ALLOCATIONS and creates and self._copy != store:
            is_complete = bool(await self.http.write(self._sql.keep_copy, *copy_of(store)))
        return store if is_complete else ""

    def _places(self) -> Mapping[str, str]:
        tables = {f"OID of {reference}": str(table.oid) for reference, table in self.http.tables.items()}
        return {"cluster id": self.http.cluster, **tables}

    async def _grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mapping[str, int], demand: Demand | None
    ) -> Grant | None:
        request = _Grant(
            wanted=wanted,
            lease_ms=lease_ms,
            name=name,
            **floor,
            demand=stored_rows.pack_demand(demand),
        )
        rows = await (self._send_grant(request) if self._is_alone(name) else self._grants.write(request))
        grant = _parse_grant(name, rows, COUNTERS)
        if len(self._joining) >= _MAX_JOINING:
            self._joining.clear()
        if grant and not grant.sequence.is_rising:
            self._joining.add(name)
        else:
            self._joining.discard(name)
        return grant

    def _is_alone(self, name: str) -> bool:
        """Whether a grant shares no UPDATE: of RISING ids, of a new name, or after a lost one."""
        return name not in self._joining

    async def _send_grant(self, grant: _Grant) -> list[list[Any]]:
        return await self.http.write(self._grant_sql, *list(grant)[self._arguments])

    async def _send_grants(self, grants: Many[_Grant]) -> list[list[list[Any]] | StoreFailure]:
        """Send grants of different names. A refused UPDATE may have changed some of the rows."""
        columns = [*zip(*grants, strict=True)][self._arguments]
        why = "CrateDB returned no row"
        try:
            rows = await self.http.write(statements.joined(self._grant_sql), *columns)
        except (StoreRefused, StoreAnsweredError) as error:
            if isinstance(error, StoreWentBackwards):
                raise
            rows = []
            why = str(error)
        found = {name: [row] for name, *row in rows}
        self._joining.difference_update(grant.name for grant in grants if grant.name not in found)
        return [found.get(grant.name) or GrantLost(grant.name, why) for grant in grants]

    async def _grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mapping[str, int]
    ) -> Grant | None:
        arguments = (wanted, lease_ms, name, now, ahead, *floor.values())
        return _parse_grant(name, await self.http.write(self._sql.grant_timestamps, *arguments), TIMESTAMPS)

    async def _create(self, row: Row) -> Row:
        columns = columns_of(row)
        rows = await self.http.write(self._sql.create, *(columns[name] for name in statements.ROW_COLUMNS))
        if not rows:
            raise StoreOutcomeUnknown(f"CrateDB returned no row for the create of sequence {row.name!r}")
        return _parse_row(rows[0])

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        columns = {
            "name": name,
            "last_value": advance_counter(sequence.before_start, at_least, sequence),
            **stored_rows.columns(name, sequence, deleted=False),
            "generation": generation,
        }
        values = (columns[column] for column in statements.PERIOD_COLUMNS)
        await self.http.write(self._sql.open_period[sequence.step > 0], *values, *lattice(sequence))

    async def get(self, name: str) -> Row | None:
        rows = await self.http.read(self._sql.get, name)
        return _parse_row(rows[0]) if rows else None

    async def list(self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool) -> list[Row]:
        await self.http.read(self._sql.refresh_sequences)
        arguments = [after, statements.like(prefix), limit, *([] if with_periods else [statements.PERIODS])]
        rows = await self.http.read(self._sql.list(with_deleted=with_deleted, with_periods=with_periods), *arguments)
        return [_parse_row(row) for row in rows]

    async def _revise(self, name: str, revision: int, change: RowChange, limit: int, at_least: int) -> Row | None:
        sequence = change.sequence
        size, offset = lattice(sequence)
        columns = stored_rows.columns(name, sequence, deleted=change.deleted)
        values = {
            "name": name,
            "revision": revision,
            "limit": limit,
            "at_least": at_least,
            "size": size,
            "offset": offset,
            **columns,
            "mode": columns["mode"] or "",
            "ends_leases": int(change.ends_leases),
            "generation": change.generation,
            "by": change.by,
            "at": milliseconds(change.at),
        }
        arguments = (values[parameter] for parameter in statements.REVISE)
        rows = await self.http.write(self._sql.revise[sequence.step > 0], *arguments, may_fail_over=False)
        return _parse_row(rows[0]) if rows else None

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        values = [value for allocation in allocations for value in allocation]
        rows = await self.http.write(self._sql.record(len(allocations)), *values)
        # If one of several rows fails, CrateDB reports no error; the row is missing.
        return {row[0]: RecordedAllocation._make(row) for row in rows}

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        rows = await self.http.read(self._sql.recorded, request_id)
        return RecordedAllocation._make(rows[0]) if rows else None

    async def newest_recorded(self) -> RecordPosition | None:
        # Without a refresh, two copies of the table could answer with positions that go back.
        await self.http.read(self._sql.refresh_allocations)
        [(seq_no, primary_term, written_at)] = await self.http.read(self._sql.newest_allocation)
        return RecordPosition(seq_no, primary_term, written_at / 1000) if written_at else None

    async def recorded_ends(self) -> Many[RecordedEnd]:
        await self.http.read(self._sql.refresh_allocations)
        rows = await self.http.read(self._sql.recorded_ends)
        return [RecordedEnd(sequence, period, step, last_id) for sequence, period, step, last_id in rows]

    async def count_recorded(self, limit: int) -> int:
        [(count,)] = await self.http.read(self._sql.count_allocations)
        return int(count)

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        # Without a refresh, rows that were just removed would be found again.
        await self.http.read(self._sql.refresh_allocations)
        rows = await self.http.read(self._sql.oldest_allocations, milliseconds(retention.last.written_at), limit)
        expired = [row[:3] for row in rows if retention.is_over(*row[1:])]
        if expired:
            # On a busy machine 4,300 rows a second, in place of 53 with a request for each row.
            return await self.http.write_each(self._sql.forget_allocation, expired)
        return 0

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        rows = await self.http.write(self._sql.give_back, count, name, *version, may_fail_over=False)
        return bool(rows) and generation_of({"generation": rows[0][0]}) == version[2]

    async def _claim_start(self, prefix: int, at_least: int, holder: str, stale_after_ms: int) -> Claim:
        arguments = (prefix, at_least, holder, stale_after_ms)
        [(last_start, held_by, seen_at)] = await self.http.write(self._sql.claim, *arguments)
        return Claim(last_start, held_by, seen_at / 1000)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        await self.http.write(self._sql.keep, prefix, holder, milliseconds(stale_after))

    async def release_prefix(self, prefix: int, holder: str) -> None:
        await self.http.write(self._sql.release, prefix, holder)

    async def claimed_starts(self) -> dict[int, int]:
        await self.http.read(self._sql.refresh_starts)
        rows = await self.http.read(self._sql.claimed)
        return {prefix: last_start for prefix, last_start in rows if last_start is not None}

    async def raise_start(self, prefix: int, last_start: int) -> None:
        await self.http.write(self._sql.raise_start, prefix, last_start)

    async def now(self) -> float | None:
        rows = await self.http.read("SELECT CURRENT_TIMESTAMP")
        return float(rows[0][0]) / 1000


def _parse_grant(name: str, rows: Many[Many[Any]], modes: Many[str | None]) -> Grant | None:
    if not rows:
        return None
    source = dict(zip(statements.RESULT, rows[0], strict=False))  # without its last column, if demand is not kept
    return parse_grant(name, source, (source["_seq_no"], source["_primary_term"]), modes)


def _parse_row(row: Many[Any]) -> Row:
    source = dict(zip(statements.ROW_COLUMNS, row, strict=True))
    return parse_row(source["name"], source)
