"""The store in an OpenSearch cluster: counters, start timestamps and recorded allocations."""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from idalloc_server.domain.errors import SequenceInvalid, StartRefused, StoreOutcomeUnknown, StoreRefused
from idalloc_server.domain.sequences.model import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.identity import IDENTITY, REPAIR, Opening, Part
from idalloc_server.domain.store.records import (
    Claim,
    Demand,
    Grant,
    GrantFloor,
    RecordedAllocation,
    RecordedEnd,
    Revision,
    Row,
    RowVersion,
)
from idalloc_server.domain.store.retention import RecordPosition, Retention
from idalloc_server.domain.store.retirement import RETIREMENT
from idalloc_server.store import packed_settings
from idalloc_server.store.bounds import advance_counter, lattice
from idalloc_server.store.cluster import rows
from idalloc_server.store.cluster.base import COUNTERS, TIMESTAMPS, ClusterStore
from idalloc_server.store.cluster.connections import Request, WrongAnswer
from idalloc_server.store.cluster.joined_writes import JoinedWrites
from idalloc_server.store.opensearch import setup
from idalloc_server.store.opensearch.http import CHECK_PROXY, OpenSearchHttp, RowInvalid
from idalloc_server.store.opensearch.indices import ALLOCATIONS, INDICES, SEQUENCES, START_TIMESTAMPS
from idalloc_server.store.opensearch.requests import Requests, RowUpdate
from idalloc_server.store.opensearch.results import Hit, Outcome, Source, Written, WrongItems

_INTEGERS = ("last_value", "step", "min_value", "max_value", "generation", "lease_ms", "writes", "rev")
_TIMES = ("created_at", "changed_at")

_T = TypeVar("_T")


@dataclass(eq=False)
class OpenSearchStore(ClusterStore):
    """A store in a cluster of OpenSearch, or of Elasticsearch (not tested); see ``Store``.

    A read by id is confirmed by no other copy: a node that was cut off answers it for as long as
    that lasts. So ``get`` and ``recorded`` write the row unchanged.
    """

    http: OpenSearchHttp
    prefix: str  # the beginning of the names of the aliases
    timeout: float  # of a call, in seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        self._requests = Requests(self.prefix, self.timeout)
        self._updates = JoinedWrites(self._send_update, self._send_updates)

    async def _inspect(self, opening: Opening) -> list[Part]:
        self._nodes = await setup.check_cluster(self.http)
        parts = [
            await setup.inspect(self.http, self._requests, self.prefix, index, self._nodes)
            for index in INDICES.values()
        ]
        # Servers of older versions created the sequences last, and without the name of the store.
        missing = next((part for part in parts if part.is_missing), None)
        if missing and not (parts[0].is_missing or parts[0].store or opening.repairs):
            raise StartRefused("store", f"{missing.what} is missing; {REPAIR}")
        return parts

    async def _identity(self, sequences: Part) -> Sequence | None:
        if sequences.is_missing:
            return None
        with setup.usable(SEQUENCES.alias(self.prefix)):
            row = await self.get(IDENTITY)
        return row.sequence if row else None

    async def _set_up(self, part: str, store: str, *, creates: bool) -> str:
        name = store if creates else None
        return await setup.set_up(self.http, self._requests, self.prefix, INDICES[part], self._nodes, name)

    def _places(self) -> Mapping[str, str]:
        self.http.set_identity_check(self._requests.opened.check_request())
        return self._requests.opened.found

    async def _grant(
        self, name: str, wanted: int, lease_ms: int, floor: GrantFloor, demand: Demand | None
    ) -> Grant | None:
        packed = packed_settings.pack_demand(demand)
        written = await self._join(self._requests.grant(name, wanted, lease_ms, floor, packed))
        return parse_grant(name, written, COUNTERS)

    async def _grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: GrantFloor
    ) -> Grant | None:
        update = self._requests.grant_timestamps(name, wanted, lease_ms, now, ahead, floor)
        return parse_grant(name, await self._join(update), TIMESTAMPS)

    async def _create(self, row: Row) -> Row:
        written = await self._write_row(row.name, self._requests.create(row_fields(row)))
        if written is None:
            raise StoreOutcomeUnknown(f"OpenSearch returned no row for the create of sequence {row.name!r}; try again")
        return parse_row(row.name, written.source)

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        size, offset = lattice(sequence)
        request = self._requests.open_period(
            name,
            row={"name": name, "period": True, **packed_settings.columns(name, sequence, deleted=False)},
            at_least=advance_counter(sequence.before_start, at_least, sequence),
            generation=generation,
            size=size,
            offset=offset,
        )
        await self._write_row(name, request)

    async def get(self, name: str) -> Row | None:
        if name == RETIREMENT:
            source, _ = await self.http.send_write(self._requests.retirement())
        else:
            written = await self._write_row(name, self._requests.get(name))
            source = None if written is None else written.source
        return None if source is None else parse_row(name, source)

    async def list(self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool) -> list[Row]:
        """See ``Store.list``.

        A row whose name is not its key would be left out of some lists: it fails all of them.
        """
        await self.http.send_read(self._requests.refresh(SEQUENCES))
        unnamed = await self.http.send_read(self._requests.unnamed())
        self._check_names(unnamed)
        rows: list[Row] = []
        while len(rows) < limit:
            size = min(limit - len(rows), self._requests.page(SEQUENCES))
            request = self._requests.list_rows(
                prefix, after, size, with_deleted=with_deleted, with_periods=with_periods
            )
            hits = await self.http.send_read(request)
            self._check_names(hits)
            found = [hit for hit in hits if hit.id.startswith(prefix)]
            rows += [parse_row(hit.id, hit.source) for hit in found if with_periods or PERIOD_SEPARATOR not in hit.id]
            if len(found) < size:
                break
            after = found[-1].id
        return rows

    def _check_names(self, hits: Many[Hit]) -> None:
        for hit in hits:
            if (name := hit.source.get("name")) != hit.id:
                why = f"its field name is {name!r}, not its key; run {self._requests.naming(hit.id)}"
                raise SequenceInvalid(hit.id, why)

    async def _revise(self, name: str, revision: int, change: Revision, limit: int, at_least: int) -> Row | None:
        size, offset = lattice(change.sequence)
        request = self._requests.revise(
            name,
            rev=revision,
            limit=limit,
            at_least=at_least,
            size=size,
            offset=offset,
            grows=int(change.ends_leases),
            generation=change.generation,
            row={
                **packed_settings.columns(name, change.sequence, deleted=change.deleted),
                "rev_by": change.by,
                "changed_at": rows.milliseconds(change.at),
            },
        )
        written = await self._write_row(name, request, may_fail_over=False)
        return None if written is None else parse_row(name, written.source)

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        rows = [allocation._asdict() for allocation in allocations]
        found = [_allocation(source) for source in await self.http.send_write(self._requests.record(rows)) if source]
        return {allocation.request_id: allocation for allocation in found}

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        written = await self.http.send_write(self._requests.recorded(request_id))
        return None if written is None else _allocation(written.source)

    async def newest_recorded(self) -> RecordPosition | None:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        newest = await self.http.send_read(self._requests.newest())
        if newest is None:
            return None
        hit, written_at = newest
        return RecordPosition(hit.seq_no, hit.term, written_at / 1000)

    async def recorded_ends(self) -> Many[RecordedEnd]:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        ends: dict[tuple[str, str], RecordedEnd] = {}
        after = -1
        while hits := await self.http.send_read(self._requests.recorded_after(after)):
            after = hits[-1].seq_no
            for allocation in (_allocation(hit.source) for hit in hits):
                key, step = (allocation.sequence, allocation.period), allocation.step
                last_id = allocation.first_id + (allocation.id_count - 1) * step
                if key not in ends or (last_id - ends[key].last_id) * step > 0:
                    ends[key] = RecordedEnd(*key, step, last_id)
        return [*ends.values()]

    async def count_recorded(self, limit: int) -> int:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        return await self.http.send_read(self._requests.count(ALLOCATIONS))

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        latest = round(retention.last.written_at * 1000)
        hits = await self.http.send_read(self._requests.oldest(latest, limit))
        expired = [hit for hit in hits if retention.is_over(hit.seq_no, hit.term, hit.source.get("window_ms"))]
        if not expired:
            return 0
        deleted = await self.http.send_write(self._requests.forget(expired), may_fail_over=False)
        return sum(source is not None for source in deleted)

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        try:
            written = await self.http.send_write(self._requests.give_back(name, count, version), may_fail_over=False)
        except RowInvalid:
            return False
        return written is not None and (written.source.get("generation") or 1) == version[2]

    async def _claim_start(self, prefix: int, at_least: int, holder: str, stale_after_ms: int) -> Claim:
        written = await self.http.send_write(self._requests.claim(prefix, at_least, holder, stale_after_ms))
        if written is None:
            raise StoreOutcomeUnknown(f"OpenSearch returned no row for the claim of prefix {prefix}; try again")
        row = written.source
        start, seen_at = (written_number(row, field) for field in ("last_start", "seen_at"))
        return Claim(start, str(row.get("holder")), seen_at / 1000)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        await self.http.send_write(self._requests.keep(prefix, holder, round(stale_after * 1000)))

    async def release_prefix(self, prefix: int, holder: str) -> None:
        await self.http.send_write(self._requests.release(prefix, holder))

    async def claimed_starts(self) -> dict[int, int]:
        await self.http.send_read(self._requests.refresh(START_TIMESTAMPS))
        found: dict[int, int] = {}
        after: int | None = None
        while True:
            hits = await self.http.send_read(self._requests.starts(after))
            for hit in hits:
                if str(after := hit.source.get("prefix")) != hit.id:
                    named = f"run {self._requests.naming(hit.id, START_TIMESTAMPS)}"
                    step = named if hit.id.isdecimal() else "delete it, since idalloc did not write it"
                    raise StoreRefused(f"the row {hit.id!r} of start timestamps has the prefix {after!r}; {step}")
                if hit.source.get("last_start") is not None:
                    found[int(hit.id)] = written_number(hit.source, "last_start")
            if len(hits) < self._requests.page(START_TIMESTAMPS):
                return found

    async def raise_start(self, prefix: int, last_start: int) -> None:
        await self.http.send_write(self._requests.raise_start(prefix, last_start))

    async def now(self) -> float | None:
        return await self.http.send_read(setup.CLOCK)

    async def close(self) -> None:
        await self.http.close()

    async def _write_row(self, name: str, request: Request[_T], *, may_fail_over: bool = True) -> _T:
        with _naming(name):
            return await self.http.send_write(request, may_fail_over=may_fail_over)

    async def _join(self, update: RowUpdate) -> Written | None:
        with _naming(update.name):
            return await self._updates.write(update)

    async def _send_update(self, update: RowUpdate) -> Written | None:
        return await self.http.send_write(self._requests.update_row(update))

    async def _send_updates(self, updates: Many[RowUpdate]) -> Many[Outcome]:
        try:
            return await self.http.send_write(self._requests.update_rows(updates))
        except StoreOutcomeUnknown as error:
            if not isinstance(error.__cause__, WrongItems):
                raise
            return [error if isinstance(each, WrongAnswer) else each for each in error.__cause__.outcomes]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise an error about a value in the row as one of its sequence."""
    try:
        yield
    except RowInvalid as error:
        raise SequenceInvalid(name, f"a number in its row was edited: {error}") from error


def _allocation(source: dict[str, Any]) -> RecordedAllocation:
    for field in ("first_id", "id_count", "step", "generation"):
        written_number(source, field)
    return RecordedAllocation._make(source.get(field) for field in RecordedAllocation._fields)


def row_fields(row: Row) -> Source:
    """Return the document of a new row."""
    fields = {
        "name": row.name,
        "last_value": row.last_value,
        **packed_settings.columns(row.name, row.sequence, deleted=row.deleted),
        "period": True if PERIOD_SEPARATOR in row.name else None,
        "generation": row.generation,
        "lease_ms": row.lease_ms,
        "rev": row.revision,
        "rev_by": row.revised_by,
        "created_at": rows.milliseconds(row.created_at),
        "changed_at": rows.milliseconds(row.changed_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


def parse_row(name: str, source: Mapping[str, Any]) -> Row:
    """Return the row of a document.

    Raises:
        SequenceInvalid: A field has another type, or the settings cannot be decoded.
    """
    _check_types(name, source)
    return rows.parse_row(name, source)


def parse_grant(name: str, written: Written | None, modes: Collection[str | None]) -> Grant | None:
    """Return the grant of an answer. A row of another mode has nothing left to grant.

    Raises:
        SequenceDeleted: The row is a tombstone.
        SequenceInvalid: The row has no last_value, or a field of another type.
    """
    if written is None:
        return None
    _check_types(name, written.source)
    return rows.parse_grant(name, written.source, (written.seq_no, written.term), modes, written_number)


def written_number(source: Mapping[str, Any], field: str) -> int:
    """Return a number that a script has just written into the row.

    Raises:
        StoreOutcomeUnknown: The answer has no such number.
    """
    if type(value := source.get(field)) is not int:
        raise StoreOutcomeUnknown(f"OpenSearch answered a write with {field} = {value!r}; {CHECK_PROXY}")
    return value


def _check_types(name: str, source: Mapping[str, Any]) -> None:
    for field in (*_INTEGERS, *_TIMES):
        if not isinstance(source.get(field), int | None) or isinstance(source.get(field), bool):
            raise SequenceInvalid(name, f"its field {field} must be an integer, not {source[field]!r}; write one")
