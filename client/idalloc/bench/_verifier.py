"""Looks at every id of every reply: none may come twice, and they must come in the order that was promised."""

from typing import NamedTuple

from idalloc.bench._issued import IssuedIds
from idalloc.v1 import id_allocator_pb2 as pb

Ranges = pb.AllocateRangeResponse | pb.StreamRangesResponse
DocIds = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse

# So many findings are told in words; all are counted.
MOST_TOLD = 5


class Mark(NamedTuple):
    """How far ids had come when a call began.

    Attributes:
        period: The period of the furthest id.
        furthest: The furthest id that had been answered with, of a sequence that rises over all nodes.
    """

    period: str
    furthest: int | None


class Trail:
    """What one caller got last: the next of the same process is to lie behind it.

    Attributes:
        ranges: By node, the period and the last id.
        doc_ids: By what a process's document ids share, the last serial.
    """

    def __init__(self) -> None:
        self.ranges: dict[int, tuple[str, int]] = {}
        self.doc_ids: dict[str, int] = {}


class Verifier:
    """Looks at replies that the contract allows, in the order in which they arrive. All ranges are of one sequence.

    Order is looked at where one was promised: from one caller's reply to its next of the same node; and, of a sequence
    that rises over all nodes, from any reply to all calls that began after it.

    Attributes:
        ids: How many ids were looked at.
        twice: How many replies brought an id that was there before.
        disordered: How many brought ids out of order.
        malformed: How many replies broke the contract: see ``refuse``.
        told: The first findings, in words.
    """

    def __init__(self) -> None:
        self.ids = 0
        self.twice = 0
        self.disordered = 0
        self.malformed = 0
        self.told: list[str] = []
        # By period, or by the part of document ids that they share. Not by generation: no id comes again
        # in a later one.
        self._issued: dict[tuple[str, str], IssuedIds] = {}
        self._period = ""
        self._furthest: int | None = None

    @property
    def findings(self) -> int:
        """How many there are."""
        return self.twice + self.disordered + self.malformed

    @property
    def intervals(self) -> int:
        """How many pieces the ids form: what is kept of them."""
        return sum(map(len, self._issued.values()))

    def mark(self) -> Mark:
        """Notes how far ids have come, as a call begins."""
        return Mark(self._period, self._furthest)

    def refuse(self, why: str) -> None:
        """Counts a reply that breaks the contract, of which no id is looked at."""
        self.malformed += 1
        self._tell(why)

    def check_range(self, reply: Ranges, mark: Mark, trail: Trail) -> None:
        """Looks at a range of a sequence.

        Args:
            reply: The reply.
            mark: What ``mark`` said when the call began.
            trail: What the caller got before.
        """
        ids, period = reply.range, reply.period
        first, last, step = ids.first_id, ids.last_id, ids.step
        self.ids += ids.id_count
        again = self._of("period", period).add(first, last, step)
        if again is not None:
            self.twice += 1
            self._tell(f"{again} came twice, the second time in {first} to {last}")
        rising = reply.ordering == pb.ORDERING_RISING
        passed = []
        if reply.node_id or rising:  # a server that does not tell its node may be any
            passed.append(trail.ranges.get(reply.node_id))
            trail.ranges[reply.node_id] = period, last
        if rising and mark.furthest is not None:
            passed.append((mark.period, mark.furthest))
        behind = [before[1] for before in passed if before and before[0] == period and (first - before[1]) * step <= 0]
        if behind:
            self.disordered += 1
            self._tell(f"{first} came after {behind[0]}")
        ahead = period > self._period or self._furthest is None or (last - self._furthest) * step > 0
        if rising and ahead and period >= self._period:
            self._period, self._furthest = period, last

    def check_doc_ids(self, reply: DocIds, trail: Trail) -> None:
        """Looks at document ids in their compact form; the arguments are those of ``check_range``."""
        for run in reply.runs:
            self.ids += run.id_count
            doc_id = run.first_doc_id
            shared, first = doc_id[:12], int(doc_id[12:], 16)
            last = first + (run.id_count - 1) * run.step
            again = self._of("document ids", shared).add(first, last, run.step)
            if again is not None:
                self.twice += 1
                self._tell(f"document id {shared}{again:016x} came twice")
            before = trail.doc_ids.get(shared)
            if before is not None and first <= before:
                self.disordered += 1
                self._tell(f"document id {doc_id} came after {shared}{before:016x}")
            trail.doc_ids[shared] = last

    def _of(self, kind: str, part: str) -> IssuedIds:
        key = kind, part
        issued = self._issued.get(key)
        if issued is None:
            issued = self._issued[key] = IssuedIds()
        return issued

    def _tell(self, finding: str) -> None:
        if len(self.told) < MOST_TOLD:
            self.told.append(finding)
