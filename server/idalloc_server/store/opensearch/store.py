"""The store in an OpenSearch cluster: counters, start timestamps and recorded allocations."""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from idalloc_server.domain.errors import SequenceInvalid, StartRefused, StoreOutcomeUnknown, StoreRefused
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.identity import IDENTITY, REPAIR, Opening, Part
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
from idalloc_server.domain.store.retirement import RETIREMENT
from idalloc_server.store import stored_rows
from idalloc_server.store.bounds import advance_counter, lattice
from idalloc_server.store.cluster.base import COUNTERS, TIMESTAMPS, ClusterStore
from idalloc_server.store.cluster.http_connections import WrongAnswer
from idalloc_server.store.cluster.joined_writes import JoinedWrites
from idalloc_server.store.opensearch import scripts, setup
from idalloc_server.store.opensearch.http import CHECK_PROXY, OpenSearchHttp, RowInvalid
from idalloc_server.store.opensearch.indices import ALLOCATIONS, INDICES, SEQUENCES, START_TIMESTAMPS, Index
from idalloc_server.store.opensearch.requests import CONFIRMATION, BulkItem, Requests, RowUpdate, script, upsert
from idalloc_server.store.opensearch.results import Hit, Outcome, Written, WrongItems, hits_of

_GRANT_FIELDS = "last_value,granted,step,min_value,max_value,settings,mode,generation,writes"
_LAST = 2**63 - 1
_INTEGERS = ("last_value", "step", "min_value", "max_value", "generation", "lease_ms", "writes", "rev")
_TIMES = ("created_at", "changed_at")


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

    async def _inspect(self, opening: Opening) -> tuple[list[Part], Sequence | None]:
        self._nodes = await setup.check_cluster(self.http)
        parts = [await setup.inspect(self.http, self._requests, index, nodes=self._nodes) for index in INDICES.values()]
        # Servers of older versions created the sequences last, and without the name of the store.
        missing = next((part for part in parts if part.is_missing), None)
        if missing and not (parts[0].is_missing or parts[0].store or opening.repairs):
            raise StartRefused("store", f"{missing.what} is missing; {REPAIR}")
        if parts[0].is_missing:
            return parts, None
        with setup.usable(SEQUENCES.alias(self.prefix)):
            row = await self.get(IDENTITY)
        return parts, row.sequence if row else None

    async def _set_up(self, part: str, store: str, *, creates: bool) -> str:
        index = INDICES[part]
        name = store if creates else None
        return await setup.set_up(self.http, self._requests, index, nodes=self._nodes, store=name)

    def _places(self) -> Mapping[str, str]:
        self.http.connections.identity_check = self._requests.identity_check()
        return {f"index behind {alias}": str(opened) for alias, opened in self._requests.opened.items()}

    async def _grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mapping[str, int], demand: Demand | None
    ) -> Grant | None:
        packed = stored_rows.pack_demand(demand) if self._requests.keeps_demand else None
        written = {"demand": packed} if packed else {}
        body = script(scripts.GRANT, wanted=wanted, lease_ms=lease_ms, **floor, **written)
        return await self._join(RowUpdate(name, body, f"{_GRANT_FIELDS},demand"), COUNTERS)

    async def _grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mapping[str, int]
    ) -> Grant | None:
        body = script(scripts.STAMPS, wanted=wanted, lease_ms=lease_ms, now=now, ahead=ahead, **floor)
        return await self._join(RowUpdate(name, body, _GRANT_FIELDS), TIMESTAMPS)

    async def _create(self, row: Row) -> Row:
        new = {name: value for name, value in stored_rows.columns_of(row).items() if value is not None}
        if PERIOD_SEPARATOR in row.name:
            new["period"] = True
        written = await self._write_row(row.name, {**script(scripts.TOUCH), "upsert": new})
        if written is None:
            raise StoreOutcomeUnknown(f"OpenSearch returned no row for the create of sequence {row.name!r}; try again")
        return parse_row(row.name, written.source)

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        size, offset = lattice(sequence)
        body = upsert(
            scripts.PERIOD,
            row={"name": name, "period": True, **stored_rows.columns(name, sequence, deleted=False)},
            at_least=advance_counter(sequence.before_start, at_least, sequence),
            generation=generation,
            size=size,
            offset=offset,
        )
        await self._write_row(name, body, "generation,last_value")

    async def get(self, name: str) -> Row | None:
        touch = script(scripts.TOUCH)
        if name == RETIREMENT:
            source, _ = await self.http.send_write(self._requests.touch_confirmed(SEQUENCES, [name], touch))
        else:
            written = await self._write_row(name, touch)
            source = None if written is None else written.source
        return None if source is None else parse_row(name, source)

    async def list(self, prefix: str, after: str, limit: int, *, with_deleted: bool, with_periods: bool) -> list[Row]:
        # A row whose name is not its key would be left out of some lists: it fails all of them.
        await self.http.send_read(self._requests.refresh(SEQUENCES))
        named = {"exists": {"field": "name"}}
        unnamed = {"bool": {"must_not": [named, {"ids": {"values": [CONFIRMATION]}}]}}
        self._check_names(await self._find(SEQUENCES, {"size": 1, "query": unnamed, "_source": ["name"]}))
        excluded: list[object] = [] if with_deleted else [{"term": {"mode": "deleted"}}]
        if not with_periods:
            excluded.append({"term": {"period": True}})
        found: list[Row] = []
        while len(found) < limit:
            size = min(limit - len(found), self._requests.page(SEQUENCES))
            body = {
                "size": size,
                "query": {"bool": {"filter": [named], "must_not": excluded}},
                "sort": [{"name": "asc"}, {"_seq_no": "asc"}],
                # ``search.allow_expensive_queries`` may forbid a range or a prefix of names.
                "search_after": [after, _LAST] if after and after.encode() >= prefix.encode() else [prefix, -1],
                "_source": True,
            }
            hits = await self._find(SEQUENCES, body)
            self._check_names(hits)
            hits = [hit for hit in hits if hit.id.startswith(prefix)]
            found += [parse_row(hit.id, hit.source) for hit in hits if with_periods or PERIOD_SEPARATOR not in hit.id]
            if len(hits) < size:
                break
            after = hits[-1].id
        return found

    def _check_names(self, hits: Many[Hit]) -> None:
        for hit in hits:
            if (name := hit.source.get("name")) != hit.id:
                why = f"its field name is {name!r}, not its key; run {self._requests.naming(hit.id)}"
                raise SequenceInvalid(hit.id, why)

    async def _revise(self, name: str, revision: int, change: RowChange, limit: int, at_least: int) -> Row | None:
        size, offset = lattice(change.sequence)
        body = script(
            scripts.REVISE,
            rev=revision,
            limit=limit,
            at_least=at_least,
            size=size,
            offset=offset,
            grows=int(change.ends_leases),
            generation=change.generation,
            row={
                **stored_rows.columns(name, change.sequence, deleted=change.deleted),
                "rev_by": change.by,
                "changed_at": stored_rows.milliseconds(change.at),
            },
        )
        written = await self._write_row(name, body, may_fail_over=False)
        return None if written is None else parse_row(name, written.source)

    async def record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        items = [BulkItem(each.request_id, upsert(scripts.RECORD, row=each._asdict())) for each in allocations]
        sources = await self.http.send_write(self._requests.bulk(ALLOCATIONS, items))
        found = [_allocation(source) for source in sources if source]
        return {allocation.request_id: allocation for allocation in found}

    async def recorded(self, request_id: str) -> RecordedAllocation | None:
        request = self._requests.update(ALLOCATIONS, request_id, script(scripts.RECORD, row={}))
        written = await self.http.send_write(request)
        return None if written is None else _allocation(written.source)

    async def newest_recorded(self) -> RecordPosition | None:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        body = {
            "size": 1,
            "sort": [{"_seq_no": "desc"}],
            "_source": False,
            "seq_no_primary_term": True,
            "aggs": {"written_at": {"max": {"field": "written_at"}}},
        }

        def newest(answer: Any) -> RecordPosition | None:
            hits = hits_of(answer)
            if not hits:
                return None
            written_at = int(answer["aggregations"]["written_at"]["value"])
            return RecordPosition(hits[0].seq_no, hits[0].term, written_at / 1000)

        return await self.http.send_read(self._requests.search(ALLOCATIONS, body, newest))

    async def recorded_ends(self) -> Many[RecordedEnd]:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        ends: dict[tuple[str, str], RecordedEnd] = {}
        body: dict[str, object] = {
            "size": self._requests.page(ALLOCATIONS),
            "query": {"match_all": {}},
            "sort": [{"_seq_no": "asc"}],
            "search_after": [-1],
            "seq_no_primary_term": True,
        }
        while hits := await self._find(ALLOCATIONS, body):
            body["search_after"] = [hits[-1].seq_no]
            for allocation in (_allocation(hit.source) for hit in hits):
                key = (allocation.sequence, allocation.period)
                step = allocation.step
                last_id = allocation.first_id + (allocation.id_count - 1) * step
                if key not in ends or (last_id - ends[key].last_id) * step > 0:
                    ends[key] = RecordedEnd(allocation.sequence, allocation.period, step, last_id)
        return [*ends.values()]

    async def count_recorded(self, limit: int) -> int:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        return await self.http.send_read(self._requests.count(ALLOCATIONS))

    async def forget_recorded(self, retention: Retention, limit: int) -> int:
        await self.http.send_read(self._requests.refresh(ALLOCATIONS))
        body = {
            "size": min(limit, self._requests.page(ALLOCATIONS)),
            "query": {"range": {"written_at": {"lte": round(retention.last.written_at * 1000)}}},
            "sort": [{"_seq_no": "asc"}],
            "_source": ["window_ms"],
            "seq_no_primary_term": True,
        }
        hits = await self._find(ALLOCATIONS, body)
        # One that was written since, or is gone, stays as it is.
        items = [
            BulkItem(hit.id, action="delete", options={"if_seq_no": hit.seq_no, "if_primary_term": hit.term})
            for hit in hits
            if retention.is_over(hit.seq_no, hit.term, hit.source.get("window_ms"))
        ]
        if not items:
            return 0
        deleted = await self.http.send_write(self._requests.bulk(ALLOCATIONS, items), may_fail_over=False)
        return sum(source is not None for source in deleted)

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        body = script(scripts.BACK, count=count, generation=version[2])
        request = self._requests.update(SEQUENCES, name, body, "generation,last_value", version=version)
        try:
            written = await self.http.send_write(request, may_fail_over=False)
        except RowInvalid:
            return False
        return written is not None and (written.source.get("generation") or 1) == version[2]

    async def _claim_start(self, prefix: int, at_least: int, holder: str, stale_after_ms: int) -> Claim:
        body = upsert(scripts.CLAIM, prefix=prefix, at_least=at_least, holder=holder, stale_ms=stale_after_ms)
        written = await self._write_start(prefix, body, "true")
        if written is None:
            raise StoreOutcomeUnknown(f"OpenSearch returned no row for the claim of prefix {prefix}; try again")
        row = written.source
        start = written_number(row, "last_start")
        return Claim(start, str(row.get("holder")), written_number(row, "seen_at") / 1000)

    async def keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        body = script(scripts.KEEP, holder=holder, stale_ms=round(stale_after * 1000))
        await self._write_start(prefix, body, "prefix")

    async def release_prefix(self, prefix: int, holder: str) -> None:
        await self._write_start(prefix, script(scripts.RELEASE, holder=holder), "prefix")

    async def claimed_starts(self) -> dict[int, int]:
        await self.http.send_read(self._requests.refresh(START_TIMESTAMPS))
        found: dict[int, int] = {}
        body: dict[str, object] = {
            "size": self._requests.page(START_TIMESTAMPS),
            "sort": [{"prefix": "asc"}],
            "_source": ["prefix", "last_start"],
            "query": {"match_all": {}},
        }
        while True:
            hits = await self._find(START_TIMESTAMPS, body)
            for hit in hits:
                prefix = hit.source.get("prefix")
                if str(prefix) != hit.id:
                    named = f"run {self._requests.naming(hit.id, START_TIMESTAMPS)}"
                    step = named if hit.id.isdecimal() else "delete it, since idalloc did not write it"
                    raise StoreRefused(f"the row {hit.id!r} of start timestamps has the prefix {prefix!r}; {step}")
                if hit.source.get("last_start") is not None:
                    found[int(hit.id)] = written_number(hit.source, "last_start")
                body["search_after"] = [prefix]
            if len(hits) < self._requests.page(START_TIMESTAMPS):
                return found

    async def raise_start(self, prefix: int, last_start: int) -> None:
        await self._write_start(prefix, upsert(scripts.RAISE, prefix=prefix, to=last_start), "last_start")

    async def now(self) -> float | None:
        return await self.http.send_read(setup.CLOCK)

    async def _find(self, index: Index, body: Mapping[str, object]) -> Many[Hit]:
        return await self.http.send_read(self._requests.search(index, body, hits_of))

    async def _write_start(self, prefix: int, body: dict[str, Any], fields: str) -> Written | None:
        return await self.http.send_write(self._requests.update(START_TIMESTAMPS, str(prefix), body, fields))

    async def _write_row(
        self, name: str, body: dict[str, Any], fields: str = "true", *, may_fail_over: bool = True
    ) -> Written | None:
        with _naming(name):
            request = self._requests.update(SEQUENCES, name, body, fields)
            return await self.http.send_write(request, may_fail_over=may_fail_over)

    async def _join(self, update: RowUpdate, modes: Collection[str | None]) -> Grant | None:
        """Return the grant of an update. A row of another mode has nothing left to grant."""
        with _naming(update.name):
            written = await self._updates.write(update)
        if written is None:
            return None
        _check_types(update.name, written.source)
        version = (written.seq_no, written.term)
        return stored_rows.parse_grant(update.name, written.source, version, modes=modes, written=written_number)

    async def _send_update(self, update: RowUpdate) -> Written | None:
        return await self.http.send_write(self._requests.update(SEQUENCES, *update))

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


def parse_row(name: str, source: Mapping[str, Any]) -> Row:
    """Return the row of a document.

    Raises:
        SequenceInvalid: A field has another type, or the settings cannot be decoded.
    """
    _check_types(name, source)
    return stored_rows.parse_row(name, source)


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
