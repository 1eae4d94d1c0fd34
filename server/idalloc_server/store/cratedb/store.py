"""The store in a CrateDB cluster: counters, start timestamps and recorded allocations."""

from collections.abc import Sequence as Many
from typing import Any

from idalloc_server.domain.errors import (
    NULL_LAST_VALUE,
    SequenceDeleted,
    SequenceInvalid,
    StoreOutcomeUnknown,
)
from idalloc_server.domain.sequences.model import MAX_ID, MAX_STEP, Sequence
from idalloc_server.domain.store.records import (
    NO_FLOOR,
    Claim,
    Demand,
    Grant,
    GrantFloor,
    RecordedAllocation,
    Revision,
    Row,
)
from idalloc_server.domain.store.retention import RecordPosition, Retention
from idalloc_server.domain.store.retirement import raise_if_retired, retirement_blocks
from idalloc_server.store import packed_settings
from idalloc_server.store.bounds import MIN_BIGINT, advance_counter, clamp_to_bigint, ids_left, lattice
from idalloc_server.store.cratedb import schema, statements
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.packed_settings import DEFAULT_GENERATION, DELETED, PERIOD, TIMESTAMP
from idalloc_server.store.retirement_checks import RetirementChecks


class CrateStore:
    """A store in a CrateDB cluster; see ``Store``.

    CrateDB has no transactions; ``RetirementChecks`` describes how a retired store refuses.

    Args:
        http: The transport.
        schema: The schema of the tables; letters, digits, ``_`` and ``-``.
        address: The address of the cluster for people, without secrets.
    """

    def __init__(self, http: CrateHttp, schema: str, address: str) -> None:
        self._http = http
        self._schema = schema
        self._address = address
        self._sql = statements.Statements(schema)
        self._keeps_demand = True
        self._retirement = RetirementChecks(self)

    @property
    def address(self) -> str:
        """See ``Store.address``."""
        return self._address

    async def open(self) -> None:
        """See ``Store.open``."""
        self._keeps_demand = await schema.set_up(self._http, self._schema)

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: GrantFloor = NO_FLOOR, demand: Demand | None = None
    ) -> Grant | None:
        """See ``Store.grant``."""
        wanted = wanted if wanted <= MAX_ID else 0  # more than any sequence has left, and than a BIGINT holds
        arguments = (wanted, lease_ms, name, *_floor_arguments(floor))
        if self._keeps_demand:
            rows = await self._http.write(self._sql.grant, *arguments, packed_settings.pack_demand(demand))
        else:
            rows = await self._http.write(self._sql.grant_without_demand, *arguments)
        return await self._accept_grant(name, rows)

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: GrantFloor = NO_FLOOR
    ) -> Grant | None:
        """See ``Store.grant_timestamps``."""
        rows = await self._http.write(
            self._sql.grant_timestamps,
            min(wanted, MAX_ID),
            lease_ms,
            name,
            clamp_to_bigint(now),
            min(ahead, MAX_STEP),
            *_floor_arguments(floor),
        )
        grant = await self._accept_grant(name, rows, modes=(TIMESTAMP,))
        # Timestamps between the counter and the clock are lost.
        if grant is not None and not grant.granted and grant.remaining:
            left = grant.sequence.max_value - max(grant.last_value, now - 1)
            return grant._replace(remaining=max(0, left))
        return grant

    async def create(self, row: Row) -> Row:
        """See ``Store.create``."""
        if retirement_blocks(row.name):
            await self._retirement.before_write(row.name)
        sequence = row.sequence
        rows = await self._http.write(
            self._sql.create,
            row.name,
            row.last_value,
            sequence.step,
            sequence.min_value,
            sequence.max_value,
            packed_settings.pack(sequence),
            packed_settings.mode(row.name, sequence, row.deleted),
            row.generation,
            row.lease_ms,
            row.revision,
            row.revised_by,
            _ms(row.created_at),
            _ms(row.changed_at),
        )
        if not rows:
            raise StoreOutcomeUnknown(f"CrateDB returned no row for the create of sequence {row.name!r}")
        return await self._retirement.end_created_if_retired(row, _parse_row(rows[0]))

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        """See ``Store.open_period``."""
        await self._http.write(
            self._sql.open_period(sequence),
            name,
            advance_counter(sequence.before_start, at_least, sequence),
            sequence.step,
            sequence.min_value,
            sequence.max_value,
            packed_settings.pack(sequence),
            packed_settings.mode(name, sequence, deleted=False),
            generation,
            *lattice(sequence),
        )

    async def get(self, name: str) -> Row | None:
        """See ``Store.get``."""
        rows = await self._http.read(self._sql.get, name)
        return _parse_row(rows[0]) if rows else None

    async def list(self, prefix: str, after: str, limit: int, *, deleted: bool, periods: bool) -> list[Row]:
        """See ``Store.list``."""
        await self._http.read(self._sql.refresh_sequences)
        arguments = [after, statements.like(prefix), limit, *([] if periods else [statements.PERIODS])]
        rows = await self._http.read(self._sql.list(deleted=deleted, periods=periods), *arguments)
        return [_parse_row(row) for row in rows]

    async def revise(self, name: str, revision: int, change: Revision) -> Row | None:
        """See ``Store.revise``."""
        if retirement_blocks(name, change):
            await self._retirement.before_write(name)
        sequence = change.sequence
        no_limit = MAX_ID if sequence.step > 0 else MIN_BIGINT
        before = sequence.before_start
        rows = await self._http.write(
            self._sql.revise(sequence),
            name,
            revision,
            no_limit if change.limit is None else clamp_to_bigint(change.limit),
            clamp_to_bigint(change.at_least if sequence.is_past(change.at_least, before) else before),
            *lattice(sequence),
            sequence.step,
            sequence.min_value,
            sequence.max_value,
            packed_settings.pack(sequence),
            packed_settings.mode(name, sequence, change.deleted) or "",
            int(change.ends_leases),
            change.generation,
            change.by,
            _ms(change.at),
            may_fail_over=False,
        )
        if not rows:
            return None
        row = _parse_row(rows[0])
        if row.last_value is None:
            raise SequenceInvalid(name, NULL_LAST_VALUE)
        return await self._retirement.end_if_retired(row)

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        """See ``Store.record``."""
        values = [value for allocation in allocations for value in allocation]
        rows = await self._http.write(self._sql.record(len(allocations)), *values)
        # If one of several rows fails, CrateDB reports no error; the row is missing.
        return {row[0]: RecordedAllocation(*row) for row in rows}

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        """See ``Store.recorded``."""
        rows = await self._http.read(self._sql.recorded, request_id)
        return RecordedAllocation(*rows[0]) if rows else None

    async def newest_recorded(self) -> RecordPosition | None:
        """See ``Store.newest_recorded``."""
        # Without a refresh, two copies of the table could answer with positions that go back.
        await self._http.read(self._sql.refresh_allocations)
        [(seq_no, primary_term, written_at)] = await self._http.read(self._sql.newest_allocation)
        return None if seq_no is None else RecordPosition(seq_no, primary_term, written_at / 1000)

    async def count_recorded(self, limit: int) -> int:
        """See ``Store.count_recorded``."""
        [(count,)] = await self._http.read(self._sql.count_allocations)
        return int(count)

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        """See ``Store.forget_recorded``."""
        # Without a refresh, rows that were just removed would be found again.
        await self._http.read(self._sql.refresh_allocations)
        rows = await self._http.read(self._sql.oldest_allocations, _ms(retention.last.written_at), limit)
        expired = [row[:3] for row in rows if retention.is_over(*row[1:])]
        if expired:
            # One request removes 4,300 rows a second on a busy machine; one request a row removes 53.
            return await self._http.write_each(self._sql.forget_allocation, expired)
        return 0

    async def give_back(self, name: str, count: int, version: tuple[int, int, int]) -> bool:
        """See ``Store.give_back``."""
        rows = await self._http.write(self._sql.give_back, count, name, *version, may_fail_over=False)
        return bool(rows) and _generation(rows[0][0]) == version[2]

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        """See ``Store.claim_start``."""
        await self._retirement.before_write()
        rows = await self._http.write(self._sql.claim, prefix, at_least, holder, _ms(stale_after))
        raise_if_retired(await self._retirement.after_write())
        last_start, held_by, seen_at = rows[0]
        return Claim(last_start, held_by, seen_at / 1000)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        """See ``Store.keep_prefix``."""
        await self._http.write(self._sql.keep, prefix, holder, _ms(stale_after))

    async def release_prefix(self, prefix: int, holder: str) -> None:
        """See ``Store.release_prefix``."""
        await self._http.write(self._sql.release, prefix, holder)

    async def claimed_starts(self) -> dict[int, int]:
        """See ``Store.claimed_starts``."""
        await self._http.read(self._sql.refresh_starts)
        rows = await self._http.read(self._sql.claimed)
        return {prefix: last_start for prefix, last_start in rows if last_start is not None}

    async def raise_start(self, prefix: int, last_start: int) -> None:
        """See ``Store.raise_start``."""
        await self._http.write(self._sql.raise_start, prefix, last_start)

    async def now(self) -> float | None:
        """See ``Store.now``."""
        rows = await self._http.read("SELECT CURRENT_TIMESTAMP")
        return float(rows[0][0]) / 1000

    async def close(self) -> None:
        """See ``Store.close``."""
        await self._http.close()

    async def _accept_grant(
        self, name: str, rows: Many[Many[Any]], modes: Many[str | None] = (None, PERIOD)
    ) -> Grant | None:
        """Returns the grant of an answer; see ``RetirementChecks.accept_grant``."""
        try:
            grant = _parse_grant(name, rows, modes)
        except SequenceDeleted:
            await self._retirement.before_write(name)
            raise
        return await self._retirement.accept_grant(name, grant)


def _parse_grant(name: str, rows: Many[Many[Any]], modes: Many[str | None]) -> Grant | None:
    """Parses the answer to a grant. A row of another mode has nothing left to grant."""
    if not rows:
        return None
    last_value, granted, step, min_value, max_value, packed, mode, generation, *versions = rows[0]
    writes, seq_no, primary_term, *demand = versions
    if mode == DELETED:
        raise SequenceDeleted(name)
    if last_value is None:
        raise SequenceInvalid(name, NULL_LAST_VALUE)
    sequence = packed_settings.unpack(name, step, min_value, max_value, packed)
    generation = _generation(generation)
    return Grant(
        last_value=last_value,
        granted=granted,
        sequence=sequence,
        remaining=ids_left(last_value, sequence.step, min_value, max_value) if mode in modes else 0,
        generation=generation,
        version=(seq_no, primary_term, generation),
        writes=writes,
        demand=packed_settings.unpack_demand(demand[0]) if demand else None,
    )


def _parse_row(row: Many[Any]) -> Row:
    name, last_value, step, min_value, max_value, packed, mode, generation, lease_ms, rev, by, created, changed = row
    return Row(
        name=name,
        last_value=last_value,
        sequence=packed_settings.unpack(name, step, min_value, max_value, packed),
        generation=_generation(generation),
        lease_ms=lease_ms or 0,
        revision=rev or 0,
        revised_by=by or "",
        created_at=packed_settings.stored_time(name, "created_at", created, 1000),
        changed_at=packed_settings.stored_time(name, "changed_at", changed, 1000),
        deleted=mode == DELETED,
    )


def _generation(found: int | None) -> int:
    return DEFAULT_GENERATION if found is None else found


def _floor_arguments(floor: GrantFloor) -> tuple[int, int, int]:
    return floor.generation, clamp_to_bigint(floor.least), clamp_to_bigint(floor.most)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
