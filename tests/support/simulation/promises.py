"""What the service promises, as a model that knows nothing else: for ``test_state_machine``."""

from collections import defaultdict
from itertools import count
from typing import NamedTuple

from idalloc_server.domain.allocation.id_range import IdRange
from idalloc_server.domain.document_ids.generator import DocIdRun
from idalloc_server.domain.sequences.model import Kind, Reset, Sequence
from tests.support.simulation.world import CONFIG, REQUEST_ID_WINDOW, Node, counter_name

_EPSILON = 1e-6


class Issued(NamedTuple):
    """Ids that a caller got.

    Attributes:
        node: Who gave them.
        ids: The ids, in the order of the sequence.
        generation: The generation that they were told to be of.
        answered: When, as the number of the event.
        era: In which time between two restores of the store.
        requested: Whether under a request id: they may be ids that another node took.
    """

    node: Node
    ids: range
    generation: int
    answered: int
    era: int
    requested: bool


class LeaseEnd(NamedTuple):
    """From when on only ids of this generation, or newer ones, are issued."""

    at: float
    generation: int


class AdvanceEnd(NamedTuple):
    """From when on only ids past this value, in the direction of the step, are issued."""

    at: float
    value: int
    step: int

    def covers(self, value: int) -> bool:
        """Whether an id lies at the value or before it."""
        return (self.value - value) * self.step >= 0


class Request(NamedTuple):
    """A call: which event it was, and what it asks for."""

    number: int
    at: float
    node: Node
    sequence: str
    id_count: int
    request_id: str = ""


class RecordedReply(NamedTuple):
    """What a request id was answered with."""

    at: float
    identity: tuple[str, int, str, int, int]


class PromiseChecker:
    """Remembers all that was issued, and refuses what breaks a promise.

    Attributes:
        restored: Whether the store is behind what it was, and has not been repaired yet: ids may come twice then, but
            never from a node that saw them.
    """

    def __init__(self) -> None:
        self.restored = False
        self.issued: dict[tuple[str, str], list[Issued]] = defaultdict(list)
        self._numbers = count()
        self._era = 0
        self._leases_end = 0.0
        self._restored_at = -1
        self._ended: dict[str, list[LeaseEnd]] = defaultdict(list)
        self._past: dict[tuple[str, str], list[AdvanceEnd]] = defaultdict(list)
        self._repaired: dict[tuple[str, str], list[AdvanceEnd]] = defaultdict(list)
        self._requests: dict[str, RecordedReply] = {}
        self._first_asks: dict[str, float] = {}
        self._starts: dict[tuple[int, int], Node] = {}
        self._last_doc_id: dict[Node, tuple[int, int, int]] = {}
        self._doc_ids: dict[tuple[int, int], int] = {}

    def ask(self, node: Node, sequence: str, id_count: int, now: float, request_id: str = "") -> Request:
        """Notes a call."""
        if request_id:
            self._first_asks.setdefault(request_id, now)
        return Request(next(self._numbers), now, node, sequence, id_count, request_id)

    def answer(self, ask: Request, taken: IdRange, now: float) -> None:
        """Notes its answer, the moment that the caller gets it."""
        node, name = ask.node, ask.sequence
        assert taken.id_count == ask.id_count
        ids = range(taken.first_id, taken.last_id + taken.step, taken.step)
        assert len(ids) == ask.id_count
        period = taken.period if taken.sequence.reset != Reset.NEVER else ""
        repeated = self._check_request(ask, taken, now) if ask.request_id else False
        self._check_lease(node, name, period, taken, now, foreign=bool(ask.request_id))
        self._check_changes(name, period, ids, taken, now)
        node.issued_count += ask.id_count
        if repeated:
            return
        _check_settings(ids, taken.sequence)
        for behind in node.link.ledger.behind[counter_name(name, period)]:
            # Under a request id they may be another node's, which saw less.
            assert ask.request_id or not _overlap(behind, ids), (
                f"{ids} of {name!r} were granted by a store that had gone back (P3)"
            )
        exempt = self.restored or any(
            now < repaired.at and repaired.covers(ids[0]) for repaired in self._repaired[name, period]
        )
        for other in self.issued[name, period]:
            if not exempt:
                assert not _overlap(other.ids, ids), f"{ids} of {name!r} {period} came twice: {other} (P1)"
            if other.answered < ask.number and not ask.request_id:
                of_all = taken.sequence.is_rising and other.era == self._era and not exempt
                comparable = other.era == self._era or not (period or self.restored)
                of_node = other.node is node and not other.requested and comparable
                if (of_node or of_all) and ids.step * other.ids.step > 0:
                    assert (ids[0] - other.ids[-1]) * ids.step > 0, f"{ids} of {name!r} do not rise: {other}"
            if other.era == self._era and not exempt and ids.step * other.ids.step > 0:
                behind_other = (ids[0] - other.ids[-1]) * ids.step > 0
                falls = taken.generation < other.generation if behind_other else taken.generation > other.generation
                assert not falls, f"the generation falls along the ids of {name!r}: {ids} {taken.generation}, {other}"
        self.issued[name, period].append(
            Issued(node, ids, taken.generation, next(self._numbers), self._era, bool(ask.request_id))
        )

    def ended(self, name: str, at: float, generation: int) -> None:
        """Notes that a change is effective at a time."""
        if not self.restored:
            self._ended[name].append(LeaseEnd(max(at, self._leases_end), generation))

    def advanced(self, name: str, period: str, at: float, past: int, step: int) -> None:
        """Notes an advance that is effective at a time."""
        if not self.restored:
            self._past[name, period].append(AdvanceEnd(max(at, self._leases_end), past, step))

    def store_restored(self) -> None:
        """Notes that the store is an older copy: what was promised since is lost, and so is what was written down."""
        self.restored = True
        self._restored_at = next(self._numbers)
        self._era += 1
        self._ended.clear()
        self._past.clear()
        self._repaired.clear()
        # When it was first asked stays: what the older copy has of it is as old as that.
        self._requests.clear()

    def store_repaired(self, values: dict[tuple[str, str], tuple[int, int]], now: float) -> None:
        """Notes that all sequences were advanced past these values, of these steps.

        Leases from before have ended when theirs is over.
        """
        self.restored = False
        self._era += 1
        # A store that was restored does not know how long the leases of before may live.
        self._leases_end = now + CONFIG.lease_ttl + 1.0
        for key, (value, step) in values.items():
            self._repaired[key].append(AdvanceEnd(self._leases_end, value, step))

    def start(self, node: Node) -> None:
        """Notes the start timestamp of a node."""
        assert node.doc_ids
        self._claim(node, node.doc_ids.prefix, node.doc_ids.start_timestamp)

    def doc_ids(self, node: Node, runs: list[DocIdRun], id_count: int) -> None:
        """Notes document ids that a caller got."""
        assert sum(run.id_count for run in runs) == id_count
        for run in runs:
            self._claim(node, run.prefix, run.timestamp)
            last = self._last_doc_id.get(node, (run.prefix, -1, 0))
            first = (run.prefix, run.timestamp, run.first)
            assert run.prefix != last[0] or first > last, "document ids of a process do not rise (P6)"
            self._last_doc_id[node] = (run.prefix, run.timestamp, run.last)

    def _claim(self, node: Node, prefix: int, timestamp: int) -> None:
        other = self._starts.setdefault((prefix, timestamp), node)
        assert other is node or self.restored, f"{node.name} and {other.name} share a prefix and a timestamp (P6)"

    def _check_lease(self, node: Node, name: str, period: str, taken: IdRange, now: float, *, foreign: bool) -> None:
        """P4, by what the node says, and by when it asked the store."""
        assert node.clock.boot() < taken.expires_at, f"ids of {name!r} are issued after their lease (P4)"
        # Under a request id they may be another node's, which only the sequence's own generation vouches for.
        counters = {name} if foreign else {name, counter_name(name, period)}
        for counter in counters:
            sent = node.link.ledger.proofs.get((counter, taken.generation))
            assert sent is not None, f"no write told of generation {taken.generation} of {counter!r}"
            assert now < sent + CONFIG.lease_ttl + _EPSILON, f"ids of {counter!r} are issued too late (P4)"

    def _check_changes(self, name: str, period: str, ids: range, taken: IdRange, now: float) -> None:
        """P5."""
        for ended in self._ended[name]:
            late = now >= ended.at and taken.generation < ended.generation
            assert not late, f"ids of {name!r} are of generation {taken.generation}: {ended}, {now} (P5)"
        for past in [*self._past[name, period], *self._repaired[name, period]]:
            late = now >= past.at and past.covers(ids[0])
            assert not late, f"{ids} of {name!r} {period} are issued after {past}, {now} (P5)"

    def _check_request(self, ask: Request, taken: IdRange, now: float) -> bool:
        """P7. Returns whether the answer was given before."""
        identity = (ask.sequence, taken.generation, taken.period, taken.first_id, taken.id_count)
        before = self._requests.get(ask.request_id)
        if before is not None and before.identity == identity:
            return True
        if ask.number < self._restored_at:
            return False  # It was written down in the store that is gone.
        late = before is not None and now - self._first_asks[ask.request_id] >= REQUEST_ID_WINDOW
        assert before is None or late, f"{before} is answered with {identity} (P7)"
        self._requests[ask.request_id] = RecordedReply(now, identity)
        if late:
            self._first_asks[ask.request_id] = ask.at
        return False


def _check_settings(ids: range, sequence: Sequence) -> None:
    """Bounds and lattice."""
    assert sequence.min_value <= min(ids[0], ids[-1])
    assert max(ids[0], ids[-1]) <= sequence.max_value
    assert sequence.kind != Kind.COUNTER or (ids[0] - sequence.start) % sequence.step == 0
    assert ids.step == sequence.step


def _overlap(one: range, other: range) -> bool:
    """Whether two ranges share an id."""
    if max(min(one[0], one[-1]), min(other[0], other[-1])) > min(max(one[0], one[-1]), max(other[0], other[-1])):
        return False
    fewer, more = sorted((one, other), key=len)
    return any(each in more for each in fewer)
