"""Fakes for unit tests: a store in memory that fails on command, and a clock that tests set.

store = MemoryStore(clock)
store.next("grant", lost_reply())     # the next grant is applied, and its answer lost
gate = store.hold("claim_start")      # the next claim waits until gate.set()
store.down = True                     # from now on the store is unreachable
store.gate = asyncio.Event()          # from now on all calls wait for the event
store.latency = 0.005                 # from now on each call takes 5 ms
store.rows["orders"].last_value = 5   # as after a restore from a backup
store.calls_of("grant")               # the calls, in order
"""

import asyncio
import copy
from collections import defaultdict, deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    Refusal,
    SequenceDeleted,
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreUnreachable,
)
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Kind, Reset, Sequence
from idalloc_server.domain.store.identity import (
    ALLOCATIONS,
    IDENTITY,
    SEQUENCES,
    START_TIMESTAMPS,
    Opening,
    Part,
    check_parts,
    check_place,
    identity_row,
    listed,
    new_name,
)
from idalloc_server.domain.store.records import (
    Claim,
    Demand,
    Grant,
    Mark,
    RecordedAllocation,
    RecordedEnd,
    RowChange,
    RowVersion,
    ids_left,
)
from idalloc_server.domain.store.records import Row as StoredRow
from idalloc_server.domain.store.retention import RecordPosition, Retention
from idalloc_server.domain.store.retirement import RETIREMENT, raise_if_retired, retirement_blocks
from idalloc_server.store.bounds import advance_counter, timestamp_grant
from idalloc_server.store.stored_rows import pack_demand, unpack_demand
from tests.support.forwarding_store import ForwardingStore, Rows
from tests.support.memory_rows import PrefixRow, RecordedRow, Row
from tests.support.waiting import hold_for_async

K = TypeVar("K")
R = TypeVar("R")
Backup = tuple[dict[str, Row], dict[int, PrefixRow], dict[str, RecordedRow], dict[str, str]]


class FakeClock:
    """A ``Clock`` that only ``advance`` and assignments move."""

    def __init__(self, boot: float = 1_000.0, wall: float = 1_700_000_000.0) -> None:
        self.boot_seconds = boot
        self.wall_seconds = wall

    def boot(self) -> float:
        return self.boot_seconds

    def wall(self) -> float:
        return self.wall_seconds

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self.boot_seconds += seconds
        self.wall_seconds += seconds


@dataclass(eq=False)
class Fault:
    """The fault of one store call."""

    applied: int = 1  # how often the call is applied; the answer is the last one
    error: Refusal | None = None  # raised in place of the answer
    # Awaited before the call is applied. The call hangs if it is never set.
    before: asyncio.Event | None = None
    after: asyncio.Event | None = None  # awaited after the call was applied, before the answer
    delay: float = 0.0  # seconds to sleep before the call is applied


def unreachable() -> Fault:
    """The store cannot be reached; nothing is applied."""
    return Fault(applied=0, error=StoreUnreachable("the store cannot be reached"))


def rejected(code: int = 5000, http_status: int = 500) -> Fault:
    """The store answers with an error; nothing is applied."""
    error = StoreAnsweredError("the store rejected the statement", code=code, http_status=http_status)
    return Fault(applied=0, error=error)


def lost_request() -> Fault:
    """The request is lost: not applied, but the caller cannot know."""
    return Fault(applied=0, error=StoreOutcomeUnknown("the connection was reset"))


def lost_reply() -> Fault:
    """The reply is lost: applied, but the caller cannot know."""
    return Fault(applied=1, error=StoreOutcomeUnknown("the connection was reset"))


def twice() -> Fault:
    """The call is applied twice, as by CrateDB's own replays; the second answer arrives."""
    return Fault(applied=2)


class Call(NamedTuple):
    """One call of the store."""

    method: str
    arguments: tuple[object, ...]


@dataclass(kw_only=True)
class FailsOnCommand:
    """Runs each call with the fault that is set for it: a store or a witness in memory."""

    WHAT: ClassVar[str]

    down: bool = False  # while true every call raises ``StoreUnreachable``
    # Every call waits for it before it is applied; None for no wait.
    gate: asyncio.Event | None = None
    latency: float = 0.0  # how long each call takes, in seconds
    closed: bool = False
    calls: list[Call] = field(default_factory=list)  # all calls, including failed ones
    _faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))

    def next(self, method: str, *faults: Fault) -> None:
        """Set the faults of the next calls of a method, one for each call."""
        self._faults[method].extend(faults)

    def hold(self, method: str) -> asyncio.Event:
        """Make the next call of a method wait for the event before it is applied."""
        gate = asyncio.Event()
        self.next(method, Fault(before=gate))
        return gate

    def calls_of(self, method: str) -> list[Call]:
        """Return the calls of one method so far."""
        return [call for call in self.calls if call.method == method]

    @property
    def address(self) -> str:
        return "memory:"

    async def close(self) -> None:
        self.closed = True

    def apply(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Apply one call at once, and return its answer; ``down`` and faults do not count.

        Raises:
            Refusal: As the method that is called.
        """
        return getattr(self, f"_{method}")(*arguments)

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Run one call, with the fault that is set for it."""
        self.calls.append(Call(method, arguments))
        if self.closed or self.down:
            raise StoreUnreachable(f"the {self.WHAT} is {'closed' if self.closed else 'down'}")
        faults = self._faults[method]
        fault = faults.popleft() if faults else Fault()
        latency = self.latency + fault.delay
        await hold_for_async(latency, "the store's latency; also 0: a real store always yields to other tasks")
        if self.gate:
            await self.gate.wait()
        if fault.before:
            await fault.before.wait()
        answers = [self.apply(method, arguments) for _ in range(fault.applied)]
        if fault.after:
            await fault.after.wait()
        if fault.error:
            raise fault.error
        return answers[-1]


@dataclass
class MemoryStore(FailsOnCommand, ForwardingStore):
    """A ``Store`` in memory, which several nodes may share."""

    WHAT = "store"

    clock: Clock = field(default_factory=FakeClock)  # the store's clock
    has_clock: bool = True  # whether ``now`` returns the clock
    rows: dict[str, Row] = field(default_factory=dict)  # the sequences; tests may change them
    # The claims; tests may change them.
    prefixes: dict[int, PrefixRow] = field(default_factory=lambda: defaultdict(PrefixRow))
    # The recorded allocations by request id; tests may change them.
    allocations: dict[str, RecordedRow] = field(default_factory=dict)
    # The names of the store in the prefixes and in the allocations, by part.
    copies: dict[str, str] = field(default_factory=dict)
    place: int = 0  # how often the store was exchanged
    _counted: dict[str, Row] | None = None
    _version: int = 0
    _records: int = 0
    _restores: int = 0

    def back_up(self) -> Backup:
        """Return a copy of all rows."""
        return _copied(self.rows), _copied(self.prefixes), dict(self.allocations), dict(self.copies)

    def restore(self, backup: Backup) -> None:
        """Replace all rows by those of a copy, in newer versions, as a restored table of CrateDB
        has.
        """
        rows, prefixes, allocations, copies = backup
        self.rows, self.allocations, self.copies = _copied(rows), dict(allocations), dict(copies)
        self._restores += 1
        for row in self.rows.values():
            row.version += 10**6 * self._restores
        self.prefixes.clear()
        self.prefixes.update(_copied(prefixes))

    def exchange(self, *, whole: bool) -> None:
        """Put an empty store in the place of this one, or lose the rows of the sequences alone."""
        self.rows = {}
        self.place += 1
        if whole:
            self.prefixes.clear()
            self.allocations = {}
            self.copies = {}

    @property
    def last_write(self) -> int:
        """The number of the last write of a row, as ``_seq_no``."""
        return (
            self._version if self._counted is self.rows else max((row.version for row in self.rows.values()), default=0)
        )

    def _open(self, opening: Opening) -> dict[str, str]:
        identity = self._get(IDENTITY)
        parts = [
            Part(SEQUENCES, "the rows", ["name"], has_rows=bool(self.rows.keys() - {IDENTITY})),
            *(
                Part(part, f"the {part}", ["key"], store=self.copies.get(part, ""), has_rows=bool(rows))
                for part, rows in ((START_TIMESTAMPS, self.prefixes), (ALLOCATIONS, self.allocations))
            ),
        ]
        name = check_parts(parts, identity.sequence if identity else None, opening)
        if opening.creates:
            row = self._create(identity_row(name or new_name(parts, opening)))
            name = row.sequence.description
            self.copies = dict.fromkeys((START_TIMESTAMPS, ALLOCATIONS), name)
            if change := listed(row, name, [part._replace(store=name) for part in parts]):
                self._revise(IDENTITY, row.revision, change)
        opened = {"name": name, "place": str(self.place)}
        check_place(opening, opened)
        return opened

    def _now(self) -> float | None:
        return self.clock.wall() if self.has_clock else None

    def _write(self, row: Row) -> tuple[tuple[int, int, int], int]:
        """Count a write of a row. The version counts the writes of all rows, as in CrateDB."""
        if self._counted is not self.rows:  # a restored backup has its own count
            self._counted = self.rows
            self._version = max(each.version for each in self.rows.values())
        self._version += 1
        row.version = self._version
        row.writes += 1
        return (row.version, 1, row.generation), row.writes

    def _granting(self, name: str, lease_ms: int) -> Row | None:
        """Return the row of a grant, and set its lease TTL."""
        row = self.rows.get(name)
        if row is None:
            return None
        if row.deleted:
            raise_if_retired(self._get(RETIREMENT), name)
            raise SequenceDeleted(name)
        row.counter(name)
        row.lease_ms = max(row.lease_ms, lease_ms)
        return row

    def _grant(self, name: str, wanted: int, lease_ms: int, floor: Mark, demand: Demand | None = None) -> Grant | None:
        row = self._granting(name, lease_ms)
        if row is None:
            return None
        sequence, before = row.sequence, row.counter(name)
        plain = PERIOD_SEPARATOR in name or (sequence.reset == Reset.NEVER and sequence.kind == Kind.COUNTER)
        left = ids_left(before, sequence.step, sequence.min_value, sequence.max_value) if plain else 0
        granted = 0 if wanted > left or floor.is_ahead_of(row.generation, before) else wanted
        row.last_value = before + sequence.step * granted
        row.demand = unpack_demand(pack_demand(demand)) or row.demand
        return Grant(row.last_value, granted, sequence, left - granted, row.generation, *self._write(row), row.demand)

    def _grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark
    ) -> Grant | None:
        row = self._granting(name, lease_ms)
        if row is None:
            return None
        if row.sequence.kind == Kind.COUNTER or floor.is_ahead_of(row.generation, row.counter(name)):
            return Grant(row.counter(name), 0, row.sequence, 0, row.generation, *self._write(row))
        if self.has_clock:
            own = int(self.clock.wall() * row.sequence.kind.per_second)
            now = now if now <= own + ahead else own
        row.last_value, granted, left = timestamp_grant(row.counter(name), row.sequence.max_value, wanted, now, ahead)
        return Grant(row.last_value, granted, row.sequence, left, row.generation, *self._write(row))

    def _create(self, new: StoredRow) -> StoredRow:
        if retirement_blocks(new.name):
            raise_if_retired(self._get(RETIREMENT), new.name)
        if new.name not in self.rows:
            columns = new._asdict()
            name = columns.pop("name")
            self.rows[name] = row = Row(**columns)
            self._write(row)
            row.writes = 0  # as in the stores: the creation does not count
        return self.rows[new.name].stored(new.name)

    def _open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        row = self.rows.get(name)
        if row is None:
            row = self.rows[name] = Row(sequence, sequence.before_start, 0)
        if row.generation < generation:
            row.last_value = advance_counter(row.counter(name), at_least, sequence)
            row.sequence, row.generation = sequence, generation
            self._write(row)

    def _get(self, name: str) -> StoredRow | None:
        return self.rows[name].stored(name) if name in self.rows else None

    def _list(self, prefix: str, after: str, limit: int, with_deleted: bool, with_periods: bool) -> Rows:
        names = [
            name
            for name, row in sorted(self.rows.items(), key=lambda item: item[0].encode())
            if name.startswith(prefix)
            and name.encode() > after.encode()
            and (with_deleted or not row.deleted)
            and (with_periods or PERIOD_SEPARATOR not in name)
        ]
        return [self.rows[name].stored(name) for name in names[:limit]]

    def _revise(self, name: str, revision: int, change: RowChange) -> StoredRow | None:
        if retirement_blocks(name, change):
            raise_if_retired(self._get(RETIREMENT), name)
        row = self.rows.get(name)
        if row is None:
            return None
        counter = row.counter(name)
        too_far = change.limit is not None and change.sequence.is_past(counter, change.limit)
        if row.revision == revision and not too_far:
            row.last_value = advance_counter(counter, change.at_least, change.sequence)
            row.generation = max(row.generation + change.ends_leases, change.generation)
            row.sequence, row.deleted = change.sequence, change.deleted
            row.revision, row.revised_by, row.changed_at = revision + 1, change.by, change.at
            self._write(row)
        return row.stored(name)

    def _record(self, allocations: Many[RecordedAllocation]) -> dict[str, RecordedAllocation]:
        for allocation in allocations:
            self._records += 1
            self.allocations.setdefault(allocation.request_id, RecordedRow(allocation, self._records))
        return {each.request_id: self.allocations[each.request_id].allocation for each in allocations}

    def _recorded(self, request_id: str) -> RecordedAllocation | None:
        recorded = self.allocations.get(request_id)
        return recorded.allocation if recorded else None

    def _newest_recorded(self) -> RecordPosition | None:
        numbers = [recorded.number for recorded in self.allocations.values()]
        return RecordPosition(max(numbers)) if numbers else None

    def _recorded_ends(self) -> list[RecordedEnd]:
        ends: dict[tuple[str, str], RecordedEnd] = {}
        for each in (recorded.allocation for recorded in self.allocations.values()):
            key, last_id = (each.sequence, each.period), each.first_id + (each.id_count - 1) * each.step
            if key not in ends or (last_id - ends[key].last_id) * each.step > 0:
                ends[key] = RecordedEnd(*key, each.step, last_id)
        return [*ends.values()]

    def _count_recorded(self, limit: int) -> int:
        return len(self.allocations)

    def _forget_recorded(self, retention: Retention, limit: int) -> int:
        oldest = sorted(self.allocations.items(), key=lambda item: item[1].number)[:limit]
        over = [key for key, row in oldest if retention.is_over(row.number, 0, row.allocation.window_ms)]
        for request_id in over:
            del self.allocations[request_id]
        return len(over)

    def _give_back(self, name: str, count: int, version: RowVersion) -> bool:
        row = self.rows.get(name)
        if row is None or row.last_value is None or version != (row.version, 1, row.generation):
            return False
        row.last_value -= count * row.sequence.step
        self._write(row)
        return True

    def _hold(self, prefix: int, holder: str, stale_after: float) -> PrefixRow:
        row = self.prefixes[prefix]
        now = self.clock.wall()
        if row.holder in ("", holder) or now - row.seen_at >= stale_after:
            row.holder = holder
            row.seen_at = now
        return row

    def _keep_prefix(self, prefix: int, holder: str, stale_after: float) -> None:
        if prefix in self.prefixes:
            self._hold(prefix, holder, stale_after)

    def _claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        raise_if_retired(self._get(RETIREMENT))
        row = self._hold(prefix, holder, stale_after)
        row.last_start = max(row.last_start + 1, at_least)
        return Claim(row.last_start, row.holder, row.seen_at)

    def _release_prefix(self, prefix: int, holder: str) -> None:
        row = self.prefixes[prefix]
        if row.holder == holder:
            row.holder = ""

    def _claimed_starts(self) -> dict[int, int]:
        return {prefix: row.last_start for prefix, row in self.prefixes.items() if row.last_start >= 0}

    def _raise_start(self, prefix: int, last_start: int) -> None:
        row = self.prefixes[prefix]
        row.last_start = max(row.last_start, last_start)


def _copied(rows: dict[K, R]) -> dict[K, R]:
    return {key: copy.copy(row) for key, row in rows.items()}
