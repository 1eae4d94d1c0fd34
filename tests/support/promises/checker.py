"""A model of the promises P1 to P9, which checks every reply of a simulated node."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.document_ids.generator import DocIdRun
from idalloc_server.domain.errors import Refusal, RequestIdBurned, StoreWentBackwards
from idalloc_server.domain.sequences.sequence import Kind, Reset, Sequence, name_of_period
from tests.support.memory_rows import Row
from tests.support.promises.effects import EffectiveAdvance, EffectiveChange
from tests.support.simulation.node import CONFIG, EPOCH_WALL, REQUEST_ID_WINDOW, Node

_EPSILON = 1e-6


class Issued(NamedTuple):
    """Ids of a reply."""

    node: Node  # the node that replied
    ids: range  # the ids, in the order of the sequence
    generation: int  # the generation in the reply
    answered: int  # the number of the event
    era: int  # the number of restores and repairs before the reply
    requested: bool  # whether the call had a request id: another node may have taken the ids
    began: int  # the number of the call
    waited: bool  # whether the call waited for the store


class Request(NamedTuple):
    """A call, and the number of its event."""

    number: int
    at: float
    node: Node
    sequence: str
    id_count: int
    request_id: str = ""


class Stop(NamedTuple):
    """A refusal because the store went backwards: its event, and the node's newest generation."""

    number: int
    generation: int


class RecordedReply(NamedTuple):
    """The first reply to a request id."""

    at: float
    identity: tuple[str, int, str, int, int]


class PromiseChecker:
    """Records all events, and asserts that no reply breaks a promise."""

    def __init__(self) -> None:
        # Whether the store was restored and not repaired yet. Until then ids may be repeated, but
        # not by a node that has seen them.
        self.restored = False
        self.children: set[Node] = set()  # nodes that became the child of a fork
        # Replies, by sequence and period.
        self.issued: dict[tuple[str, str], list[Issued]] = defaultdict(list)
        self._numbers = count()
        self._nodes: list[Node] = []
        # The order of calls and replies of all nodes, for sequences whose ids rise over all nodes.
        self._order: list[tuple[str, bool]] = []
        self._has_rising = False
        self._era = 0
        self._leases_end = 0.0
        self._restored_at = -1
        self._changes: dict[str, list[EffectiveChange]] = defaultdict(list)
        self._advances: dict[tuple[str, str], list[EffectiveAdvance]] = defaultdict(list)
        self._repaired: dict[tuple[str, str], list[EffectiveAdvance]] = defaultdict(list)
        self._stops: dict[tuple[Node, str], Stop] = {}
        self._asked_to_change: set[tuple[Node, str]] = set()
        self._requests: dict[str, RecordedReply] = {}
        self._identities: dict[str, list[tuple[str, int, str, int, int]]] = defaultdict(list)
        self._first_requests: dict[str, float] = {}
        self._starts: dict[tuple[int, int], Node] = {}
        self._last_doc_id: dict[tuple[Node, int], tuple[int, int]] = {}
        # By node, its prefix after the last change; None during one.
        self._prefixes: dict[Node, tuple[int, int | None]] = {}
        # By node, how many ids were skipped for larger calls.
        self._skipped: dict[Node, int] = defaultdict(int)
        # By sequence and generation, the settings that decide which ids are issued.
        self._settings: dict[tuple[str, int], tuple[Any, ...]] = {}
        # By node and sequence, the generation of the last change that the node answered.
        self._own_changes: dict[tuple[Node, str], tuple[int, int]] = {}

    def record_request(self, node: Node, sequence: str, id_count: int, now: float, request_id: str = "") -> Request:
        """Record a call."""
        if node not in self._nodes:
            self._nodes.append(node)
        if request_id:
            self._first_requests.setdefault(request_id, now)
        self._order.append((node.name, False))
        return Request(next(self._numbers), now, node, sequence, id_count, request_id)

    def record_reply(self, request: Request, taken: IdRange, now: float, *, waited: bool = False) -> None:
        """Record and check the reply to a call, when the caller gets it."""
        node, name = request.node, request.sequence
        assert taken.id_count == request.id_count, f"{request} got {taken}"
        ids = range(taken.first_id, taken.last_id + taken.step, taken.step)
        assert len(ids) == request.id_count, f"{request} got {ids}"
        assert node not in self.children, f"{ids} of {name!r} are issued by a forked child (P8)"
        period = taken.period if taken.sequence.reset != Reset.NEVER else ""
        repeated = self._check_request(request, taken, now) if request.request_id else False
        self._check_lease(node, name, period, taken, now, foreign=bool(request.request_id))
        self._check_changes(request, period, ids, taken, now)
        self.record_settings(name, taken.generation, taken.sequence)
        self._check_stopped(request, period, taken)
        node.issued_count += request.id_count
        self._order.append((node.name, True))
        self._has_rising = self._has_rising or taken.sequence.is_rising
        if repeated:
            return
        _check_settings(ids, taken.sequence)
        if not request.request_id:
            _check_timestamps(ids, taken.sequence, now + node.clock.highest)
        # A reply to a request id may be another node's.
        sources = self._nodes if request.request_id else [node]
        granted = [each for source in sources for each in source.connection.ledger.ranges[row_name(name, period)]]
        assert _cover(granted, ids), f"{node.name} was not granted {ids} of {name!r} {period} (P1)"
        for behind in node.connection.ledger.behind[row_name(name, period)]:
            # A reply to a request id may be another node's, which has seen less.
            assert request.request_id or not _overlap(behind, ids), (
                f"{ids} of {name!r} were granted by a store that had gone back (P3)"
            )
        exempt = self.restored or any(
            now < repaired.at and repaired.covers(ids[0]) for repaired in self._repaired[name, period]
        )
        for other in self.issued[name, period]:
            if not exempt:
                assert not _overlap(other.ids, ids), f"{ids} of {name!r} {period} came twice: {other} (P1)"
            if other.answered < request.number and not request.request_id:
                of_all = taken.sequence.is_rising and other.era == self._era and not exempt
                comparable = other.era == self._era or not (period or self.restored)
                of_node = other.node is node and not other.requested and comparable
                if (of_node or of_all) and ids.step * other.ids.step > 0:
                    assert (ids[0] - other.ids[-1]) * ids.step > 0, f"{ids} of {name!r} do not rise: {other}"
            queued = waited and other.waited and other.node is node and not period and self._restored_at < 0
            if queued and ids.step * other.ids.step > 0:
                in_order = (other.began < request.number) == ((ids[0] - other.ids[0]) * ids.step > 0)
                assert in_order, f"{ids} of {name!r} are not served in the order of their callers: {other}"
            if other.era == self._era and not exempt and ids.step * other.ids.step > 0:
                behind_other = (ids[0] - other.ids[-1]) * ids.step > 0
                falls = taken.generation < other.generation if behind_other else taken.generation > other.generation
                assert not falls, f"the generation falls along the ids of {name!r}: {ids} {taken.generation}, {other}"
        self.issued[name, period].append(
            Issued(
                node,
                ids,
                taken.generation,
                next(self._numbers),
                self._era,
                bool(request.request_id),
                request.number,
                waited,
            )
        )

    def record_refusal(self, request: Request, refusal: Refusal) -> None:
        """Check that refusals follow a store that went backwards (P3), or a change (P7)."""
        if isinstance(refusal, StoreWentBackwards):
            node, name = request.node, request.sequence
            assert self._restored_at >= 0, f"{node.name}: {refusal} (P3, but the store was not restored)"
            self._stops[node, name] = Stop(next(self._numbers), node.connection.ledger.newest_generation(name))
        before = self._requests.get(request.request_id)
        if isinstance(refusal, RequestIdBurned) and before is not None and self._restored_at < 0:
            name, generation, *_ = before.identity
            ledger = request.node.connection.ledger
            newer = any(counter == name and seen > generation for counter, seen in ledger.proofs)
            assert newer or name in ledger.deleted, f"{before} is burned without a newer generation (P7)"

    def record_change_call(self, node: Node, name: str) -> None:
        """Record that a node is asked to change a sequence: it may use it again afterwards."""
        self._asked_to_change.add((node, name))

    def record_change(self, name: str, at: float, generation: int, node: Node | None = None) -> None:
        """Record a change, and when it is effective; at once for later calls of its node."""
        if not self.restored:
            self._changes[name].append(EffectiveChange(max(at, self._leases_end), generation))
            if node is not None:
                self._own_changes[node, name] = next(self._numbers), generation

    def record_settings(self, name: str, generation: int, sequence: Sequence) -> None:
        """Check that all ids of a generation have the same settings (P5)."""
        if self._restored_at < 0:
            settings = (sequence.step, sequence.min_value, sequence.max_value, int(sequence.ordering), sequence.format)
            known = self._settings.setdefault((name, generation), settings)
            assert settings == known, (
                f"generation {generation} of {name!r} has the settings {known} and {settings} (P5)"
            )

    def record_advance(self, name: str, period: str, at: float, past: int, step: int) -> None:
        """Record an advance, and the time at which it is effective."""
        if not self.restored:
            self._advances[name, period].append(EffectiveAdvance(max(at, self._leases_end), past, step))

    def record_restore(self, *, is_noticed: bool = False) -> None:
        """Record a restore of an older copy, which loses later changes and recorded replies.

        ``is_noticed``: whether every node must notice it, so that no id is repeated all the same.
        """
        self.restored = not is_noticed
        self._restored_at = next(self._numbers)
        self._era += 1
        if not is_noticed:
            self._changes.clear()
            self._advances.clear()
            self._own_changes.clear()
            self._repaired.clear()
        # The times of first calls stay: a recorded reply in the copy is not older.
        self._requests.clear()
        self._identities.clear()

    def record_repair(self, values: dict[tuple[str, str], tuple[int, int]], now: float) -> None:
        """Record that all sequences were advanced past these values.

        Args:
            values: The value and the step of each sequence and period.
            now: The time; earlier leases end within ``lease_ttl`` from now.
        """
        self.restored = False
        self._era += 1
        # A restored store does not know how long earlier leases live.
        self._leases_end = now + CONFIG.lease_ttl + 1.0
        for key, (value, step) in values.items():
            self._repaired[key].append(EffectiveAdvance(self._leases_end, value, step))

    def record_start(self, node: Node) -> None:
        """Record and check the start timestamp of a node."""
        assert node.doc_ids
        self._claim(node, node.doc_ids.prefix, node.doc_ids.start_timestamp)

    def prefix(self, node: Node) -> tuple[int, int | None]:
        """Return a node's prefix after its last change, and that event; None if unknown."""
        return self._prefixes.get(node, (-1, None))

    def record_prefix(self, node: Node, prefix: int | None) -> None:
        """Record the prefix after a change, and None when one begins."""
        self._prefixes[node] = next(self._numbers), prefix

    def record_doc_ids(self, node: Node, runs: list[DocIdRun], id_count: int, prefix: tuple[int, int | None]) -> None:
        """Record and check the document ids of a reply to a call that began under a prefix."""
        assert sum(run.id_count for run in runs) == id_count, f"{runs} are not {id_count} document ids"
        assert node not in self.children, f"{runs} are issued by a forked child (P8)"
        for run in runs:
            self._claim(node, run.prefix, run.timestamp)
            if prefix[1] is not None and prefix == self.prefix(node):
                assert run.prefix == prefix[1], f"{run} has another prefix than was set: {prefix[1]} (P6)"
            last = self._last_doc_id.get((node, run.prefix), (-1, 0))
            assert (run.timestamp, run.first) > last, "document ids of a process do not rise (P6)"
            self._last_doc_id[node, run.prefix] = (run.timestamp, run.last)

    def state(self) -> tuple[Any, ...]:
        """Return what later checks depend on: equal states end equally after equal events."""
        issued = [(key, sorted(_state_of(each) for each in replies)) for key, replies in sorted(self.issued.items())]
        effective = [sorted(each.items()) for each in (self._changes, self._advances, self._repaired, self._settings)]
        requests = (
            sorted(self._requests.items()),
            sorted(self._identities.items()),
            sorted(self._first_requests.items()),
        )
        doc_ids = sorted((start, node.name) for start, node in self._starts.items())
        order = self._order if self._has_rising else []
        stops = sorted((node.name, name, stop.generation) for (node, name), stop in self._stops.items())
        return (
            repr((issued, effective, requests, doc_ids, order, stops)),
            self.restored,
            self._era,
            len(self.children),
        )

    def check_balance(self, node: Node) -> None:
        """Check P9 without pending calls: granted ids are issued, held, returned, or burned."""
        ledger = node.connection.ledger
        taken = ledger.granted + ledger.unknown
        burned = node.allocator.burned.by_cause
        known = node.issued_count + node.allocator.held_ids + burned.total() + ledger.returned
        # A repeated reply to a request id was counted before.
        balanced = taken <= known if node.took_requests else taken == known
        assert balanced, f"{node.name} took {taken} ids and accounts for {known}: {burned} (P9)"

    def check_last_ids(self, node: Node) -> None:
        """Check that no ids are skipped for a larger call if the store has none left."""
        skipped = node.allocator.burned.by_cause[BurnCause.LEFTOVER]
        if skipped > self._skipped[node]:
            self._skipped[node] = skipped
            left = [grant.remaining for grant in node.connection.ledger.last.values()]
            assert any(left), f"{node.name} skips the last ids of a sequence"

    def _claim(self, node: Node, prefix: int, timestamp: int) -> None:
        other = self._starts.setdefault((prefix, timestamp), node)
        assert other is node or self.restored, f"{node.name} and {other.name} share a prefix and a timestamp (P6)"

    def _check_lease(self, node: Node, name: str, period: str, taken: IdRange, now: float, *, foreign: bool) -> None:
        """Check P4, by the node's expiry time, and by the time of its last write."""
        assert node.clock.boot() < taken.expires_at, f"ids of {name!r} are issued after their lease (P4)"
        # A reply to a request id may be another node's; then only the sequence's own generation is
        # proved.
        counters = {name} if foreign else {name, row_name(name, period)}
        for counter in counters:
            sent = node.connection.ledger.proofs.get((counter, taken.generation))
            assert sent is not None, f"no write returned generation {taken.generation} of {counter!r}"
            assert now < sent + CONFIG.lease_ttl + _EPSILON, f"ids of {counter!r} are issued too late (P4)"
            left = taken.expires_at - node.clock.boot()
            assert now + left < sent + CONFIG.lease_ttl + _EPSILON, f"ids of {counter!r} live too long (P4)"

    def _check_changes(self, request: Request, period: str, ids: range, taken: IdRange, now: float) -> None:
        """Check P5."""
        name = request.sequence
        answered, generation = self._own_changes.get((request.node, name), (0, 0))
        # A reply to a request id may be that of an earlier call.
        assert request.request_id or request.number < answered or taken.generation >= generation, (
            f"{request.node.name} changed {name!r} to generation {generation}, and issues {taken.generation} (P5)"
        )
        for change in self._changes[name]:
            assert not change.forbids(taken.generation, now), (
                f"ids of {name!r} are of generation {taken.generation}: {change}, {now} (P5)"
            )
        for advance in [*self._advances[name, period], *self._repaired[name, period]]:
            assert not advance.forbids(ids, now), f"{ids} of {name!r} {period} are issued after {advance}, {now} (P5)"

    def _check_stopped(self, request: Request, period: str, taken: IdRange) -> None:
        """Check that a node that refused a call stays stopped until a newer generation (P3)."""
        key = request.node, request.sequence
        stop = self._stops.get(key)
        # A reply to a request id was recorded before; each period stops by itself.
        if stop and stop.number < request.number and not (request.request_id or period or key in self._asked_to_change):
            again = f"{request.node.name} issues ids of {request.sequence!r} again, which nobody has changed (P3)"
            assert taken.generation > stop.generation, again

    def _check_request(self, request: Request, taken: IdRange, now: float) -> bool:
        """Check P7, and return whether the reply repeats an earlier one."""
        identity = (request.sequence, taken.generation, taken.period, taken.first_id, taken.id_count)
        before = self._requests.get(request.request_id)
        if identity in self._identities[request.request_id]:
            return True  # also an earlier answer that another node had read before it was removed
        if request.number < self._restored_at:
            return False  # recorded in the store that was replaced
        late = before is not None and now - self._first_requests[request.request_id] >= REQUEST_ID_WINDOW
        assert before is None or late, f"{before} is answered with {identity} (P7)"
        self._requests[request.request_id] = RecordedReply(now, identity)
        self._identities[request.request_id].append(identity)
        if late:
            self._first_requests[request.request_id] = request.at
        return False


def counters(rows: Mapping[str, Row]) -> dict[str, tuple[int, Sequence]]:
    """Return the counters of a store, and their settings."""
    return {name: (row.last_value or 0, row.sequence) for name, row in rows.items()}


def moved_back(before: Mapping[str, tuple[int, Sequence]], rows: Mapping[str, Row], method: str) -> list[str]:
    """Return the counters that a call moved back although it returned no tail (P2).

    Args:
        before: ``counters`` before the call.
        rows: The rows after it.
        method: The method of the store.
    """
    if method == "give_back":
        return []
    return [
        f"the counter {name!r} moved back from {value} to {rows[name].last_value} (P2)"
        for name, (value, sequence) in before.items()
        if name in rows and ((rows[name].last_value or 0) - value) * sequence.step < 0
    ]


def passed_bounds(before: Mapping[str, tuple[int, Sequence]], rows: Mapping[str, Row]) -> list[str]:
    """Return the sequences for which a call set a bound that the counter had passed (P5)."""
    return [
        f"{name!r} gets the bound {after.bound}, and its counter is at {value} (P5)"
        for name, (value, sequence) in before.items()
        if name in rows
        and (after := rows[name].sequence).bound != sequence.bound
        and after.reset == Reset.NEVER
        and after.is_past(value, after.bound)
    ]


def _state_of(reply: Issued) -> tuple[Any, ...]:
    return reply.node.name, reply.ids[0], reply.ids[-1], reply.generation, reply.era, reply.requested


def row_name(sequence: str, period: str) -> str:
    """Return the name of the row that has the counter of a sequence, or of its period."""
    return name_of_period(sequence, period) if period else sequence


def _check_settings(ids: range, sequence: Sequence) -> None:
    """Check bounds and alignment."""
    lowest, highest = sorted((ids[0], ids[-1]))
    in_bounds = sequence.min_value <= lowest and highest <= sequence.max_value
    assert in_bounds, f"{ids} are out of bounds of {sequence}"
    aligned = sequence.kind != Kind.COUNTER or (ids[0] - sequence.start) % sequence.step == 0
    assert aligned, f"{ids} do not fit {sequence}"
    assert ids.step == sequence.step, f"{ids} do not fit {sequence}"


def _check_timestamps(ids: range, sequence: Sequence, wall: float) -> None:
    """Check that timestamps are at most ``max_clock_skew`` ahead of the clock."""
    if sequence.kind != Kind.COUNTER:
        latest = (EPOCH_WALL + wall + CONFIG.max_clock_skew) * sequence.kind.per_second
        assert ids[-1] <= latest + _EPSILON, f"{ids} are too far ahead of the clock: {latest}"


def _cover(granted: list[range], ids: range) -> bool:
    """Whether the ids lie in the granted ranges; a reply may span adjacent ones."""
    while ids:
        grant = next((each for each in granted if each.step == ids.step and ids[0] in each), None)
        if grant is None:
            return False
        ids = ids[len(grant) - grant.index(ids[0]) :]
    return True


def _overlap(one: range, other: range) -> bool:
    """Whether two ranges share an id."""
    if max(min(one[0], one[-1]), min(other[0], other[-1])) > min(max(one[0], one[-1]), max(other[0], other[-1])):
        return False
    fewer, more = sorted((one, other), key=len)
    return any(each in more for each in fewer)
