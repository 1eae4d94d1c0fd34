"""Checks every id of every reply: none may be issued twice, and all must be in the promised order."""

from typing import NamedTuple

from idalloc.bench._issued import IssuedIds
from idalloc.v1 import id_allocator_pb2 as pb

Ranges = pb.AllocateRangeResponse | pb.StreamRangesResponse
DocIds = pb.GenerateDocIdResponse | pb.StreamDocIdsResponse

# The findings with a message; all are counted.
MAX_MESSAGES = 5


class HighWaterMark(NamedTuple):
    """The furthest id of a sequence that rises over all nodes, when a call began.

    Attributes:
        period: The period of that id.
        furthest: The id, the furthest in the direction of the step; None before the first reply.
    """

    period: str
    furthest: int | None


class LastIds:
    """The last ids that one caller received from each process: its next ids must follow them.

    Attributes:
        ranges: The period and the last id, by node id.
        doc_ids: The last serial, by the part that the document ids of a process share.
    """

    def __init__(self) -> None:
        self.ranges: dict[int, tuple[str, int]] = {}
        self.doc_ids: dict[str, int] = {}


class Verifier:
    """Checks valid replies in the order of their arrival. All ranges must be of one sequence.

    It checks the promised order: from a caller's reply to its next one of the same node; and, if the sequence rises
    over all nodes, from any reply to all calls that began after it.

    Attributes:
        ids: The number of checked ids.
        twice: The number of replies with an id that was issued before.
        disordered: The number of replies with ids out of order.
        malformed: The number of invalid replies: see `count_malformed`.
        messages: The messages of the first findings.
    """

    def __init__(self) -> None:
        self.ids = 0
        self.twice = 0
        self.disordered = 0
        self.malformed = 0
        self.messages: list[str] = []
        # By period, or by the shared part of document ids. Not by generation: ids are unique across generations.
        self._issued: dict[tuple[str, str], IssuedIds] = {}
        self._period = ""
        self._furthest: int | None = None

    @property
    def findings(self) -> int:
        """The number of findings."""
        return self.twice + self.disordered + self.malformed

    @property
    def intervals(self) -> int:
        """The number of intervals that the ids form, which determines the memory used."""
        return sum(map(len, self._issued.values()))

    def high_water_mark(self) -> HighWaterMark:
        """Return the present high-water mark, for a call that begins."""
        return HighWaterMark(self._period, self._furthest)

    def count_malformed(self, message: str) -> None:
        """Count a reply that breaks the contract. Its ids are not checked."""
        self.malformed += 1
        self._add_message(message)

    def check_range(self, reply: Ranges, mark: HighWaterMark, last_ids: LastIds) -> None:
        """Check a range of a sequence, and update the caller's last ids. The mark is that of the call's beginning."""
        ids, period = reply.range, reply.period
        first, last, step = ids.first_id, ids.last_id, ids.step
        self.ids += ids.id_count
        duplicate = self._issued_ids("period", period).add(first, last, step)
        if duplicate is not None:
            self.twice += 1
            self._add_message(f"{duplicate} was issued twice, the second time in {first} to {last}")
        rising = reply.ordering == pb.ORDERING_RISING
        earlier = []
        if reply.node_id or rising:  # without a node id, replies may be of several nodes
            earlier.append(last_ids.ranges.get(reply.node_id))
            last_ids.ranges[reply.node_id] = period, last
        if rising and mark.furthest is not None:
            earlier.append((mark.period, mark.furthest))
        passed = [each[1] for each in earlier if each and each[0] == period and (first - each[1]) * step <= 0]
        if passed:
            self.disordered += 1
            self._add_message(f"{first} is out of order after {passed[0]}")
        ahead = period > self._period or self._furthest is None or (last - self._furthest) * step > 0
        if rising and ahead and period >= self._period:
            self._period, self._furthest = period, last

    def check_doc_ids(self, reply: DocIds, last_ids: LastIds) -> None:
        """Check document ids in their compact form, and update the caller's last ids."""
        for run in reply.runs:
            self.ids += run.id_count
            doc_id = run.first_doc_id
            shared, first = doc_id[:12], int(doc_id[12:], 16)
            last = first + (run.id_count - 1) * run.step
            duplicate = self._issued_ids("document ids", shared).add(first, last, run.step)
            if duplicate is not None:
                self.twice += 1
                self._add_message(f"document id {shared}{duplicate:016x} was issued twice")
            before = last_ids.doc_ids.get(shared)
            if before is not None and first <= before:
                self.disordered += 1
                self._add_message(f"document id {doc_id} is out of order after {shared}{before:016x}")
            last_ids.doc_ids[shared] = last

    def _issued_ids(self, kind: str, part: str) -> IssuedIds:
        key = kind, part
        issued = self._issued.get(key)
        if issued is None:
            issued = self._issued[key] = IssuedIds()
        return issued

    def _add_message(self, message: str) -> None:
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(message)
