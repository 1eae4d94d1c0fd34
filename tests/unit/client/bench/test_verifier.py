"""The checker of a bench's ids: duplicates, order, and memory that does not grow with the ids."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from idalloc.bench._issued import IssuedIds
from idalloc.bench._verifier import LastIds, Verifier
from idalloc.v1 import id_allocator_pb2 as pb

RISING, PER_NODE = pb.ORDERING_RISING, pb.ORDERING_RISING_PER_NODE
ONE, OTHER = 7 << 32 | 1_800_000_000, 7 << 32 | 1_800_000_001


def reply(first: int, count: int = 1, step: int = 1, **more: Any) -> pb.AllocateRangeResponse:
    ids = pb.IdRange(first_id=first, last_id=first + (count - 1) * step, step=step, id_count=count)
    return pb.AllocateRangeResponse(range=ids, **{"ordering": PER_NODE, "node_id": ONE, **more})


def runs(*runs: tuple[str, int, int]) -> pb.GenerateDocIdResponse:
    return pb.GenerateDocIdResponse(
        runs=[pb.DocIdRun(first_doc_id=first, step=step, id_count=count) for first, step, count in runs]
    )


class Caller:
    """A caller whose calls begin and end at once."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier, self.last_ids = verifier, LastIds()

    def receive(self, answer: pb.AllocateRangeResponse) -> None:
        self.verifier.check_range(answer, self.verifier.high_water_mark(), self.last_ids)

    def receive_doc_ids(self, answer: pb.GenerateDocIdResponse) -> None:
        self.verifier.check_doc_ids(answer, self.last_ids)


def findings(verifier: Verifier) -> tuple[int, int, int]:
    return verifier.twice, verifier.disordered, verifier.malformed


def test_memory_is_bounded_by_calls_in_flight() -> None:
    """Ids in any order of arrival form no more intervals than calls in flight."""
    issued, rng, most_intervals = IssuedIds(), random.Random(5), 0
    for begin in range(0, 1_000_000, 1_000):  # 1,000 calls in flight
        arrivals = list(range(begin, begin + 1_000))
        rng.shuffle(arrivals)
        for number in arrivals:
            assert issued.add(number * 7 + 1, number * 7 + 7, 1) is None
            most_intervals = max(most_intervals, len(issued))
        assert len(issued) == 1
    assert most_intervals <= 501
    assert issued.add(7_000_000, 7_000_000, 1) == 7_000_000
    assert issued.add(7_000_001, 7_000_001, 1) is None
    assert len(issued) == 1


def test_ranges_of_one_step_merge_to_one_interval() -> None:
    """Adjacent ranges of one step become one interval, in any order."""
    issued, arrivals = IssuedIds(), list(range(20_000))
    random.Random(6).shuffle(arrivals)
    for number in arrivals:
        assert issued.add(-100 * number, -100 * number - 90, -10) is None
    assert len(issued) == 1
    assert issued.add(-105, -105, -10) is None  # an id between two of the lattice


ranges = st.tuples(st.integers(-60, 60), st.integers(1, 8), st.sampled_from([-6, -4, -1, 1, 2, 3, 5, 6]))


@given(st.lists(ranges, max_size=40))
def test_duplicate_is_found_exactly_if_present(given_ranges: list[tuple[int, int, int]]) -> None:
    """P1: add returns a duplicate if and only if one of the ids was added before, in any steps."""
    issued, seen = IssuedIds(), set[int]()
    for first, count, step in given_ranges:
        ids = set(range(first, first + count * step, step))
        duplicate = issued.add(first, first + (count - 1) * step, step)
        assert (duplicate in ids & seen) if ids & seen else duplicate is None
        seen |= ids


def test_duplicate_across_generations_is_found() -> None:
    """P1: an id that two generations issue is a duplicate."""
    verifier = Verifier()
    Caller(verifier).receive(reply(1, 100, generation=1))
    Caller(verifier).receive(reply(100, generation=2))
    assert findings(verifier) == (1, 0, 0)
    assert "100 was issued twice" in verifier.messages[0]
    assert verifier.ids == 101


def test_same_id_in_another_period_is_no_duplicate() -> None:
    """P1: ids are unique within a period; another period has its own."""
    verifier = Verifier()
    caller = Caller(verifier)
    caller.receive(reply(1, 100, period="2026"))
    caller.receive(reply(1, 100, period="2027"))
    caller.receive(reply(100, period="2026", ordering=RISING))
    assert findings(verifier) == (1, 0, 0)


def test_ranges_of_one_caller_follow_the_step() -> None:
    """A caller's next range must follow its last one in the direction of the step."""
    verifier = Verifier()
    up, down = Caller(verifier), Caller(verifier)
    up.receive(reply(100, 10))
    up.receive(reply(110, 10))
    down.receive(reply(-100, 10, -1))
    down.receive(reply(-110, 10, -1))
    Caller(verifier).receive(reply(50, 10))  # another caller: its reply may be older
    assert findings(verifier) == (0, 0, 0)
    up.receive(reply(60, 10))
    assert findings(verifier) == (0, 1, 0)
    down.receive(reply(-99, step=-1))
    assert findings(verifier) == (0, 2, 0)


def test_order_is_checked_per_node() -> None:
    """Each node's ranges have an order of their own, whichever node answers."""
    verifier = Verifier()
    caller = Caller(verifier)
    for answer in (reply(100), reply(50, node_id=OTHER), reply(101), reply(51, node_id=OTHER)):
        caller.receive(answer)
    assert findings(verifier) == (0, 0, 0)
    caller.receive(reply(49, node_id=OTHER))
    assert findings(verifier) == (0, 1, 0)
    assert verifier.messages == ["49 is out of order after 51"]
    caller.receive(reply(99))
    assert findings(verifier) == (0, 2, 0)


def test_ranges_without_node_id_need_rising_order() -> None:
    """Without a node id, only ranges that rise over all nodes have an order."""
    verifier = Verifier()
    caller = Caller(verifier)
    caller.receive(reply(100, node_id=0))
    caller.receive(reply(50, node_id=0))
    assert findings(verifier) == (0, 0, 0)
    caller.receive(reply(200, node_id=0, ordering=RISING))
    caller.receive(reply(150, node_id=0, ordering=RISING))
    assert findings(verifier) == (0, 1, 0)


def test_chunks_of_a_stream_are_in_order() -> None:
    """The chunks of one stream must rise, too."""
    verifier = Verifier()
    for ordering in (PER_NODE, RISING):
        start, last_ids = verifier.high_water_mark(), LastIds()
        for first in (100, 110, 105):
            verifier.check_range(reply(first + 1_000 * ordering, 5, ordering=ordering), start, last_ids)
    assert findings(verifier) == (0, 2, 0)


def test_rising_sequence_rises_over_all_callers() -> None:
    """A sequence that rises over all nodes rises from any reply to calls that begin later."""
    verifier = Verifier()
    one, other = Caller(verifier), Caller(verifier)
    early = verifier.high_water_mark()
    one.receive(reply(100, ordering=RISING))
    verifier.check_range(reply(90, ordering=RISING), early, other.last_ids)  # this call began before that reply
    assert findings(verifier) == (0, 0, 0)
    Caller(verifier).receive(reply(95, ordering=RISING))
    assert findings(verifier) == (0, 1, 0)
    one.receive(reply(99, ordering=RISING, node_id=OTHER))
    assert findings(verifier) == (0, 2, 0)
    other.receive(reply(101, ordering=RISING))
    assert findings(verifier) == (0, 2, 0)


def test_order_is_checked_per_period() -> None:
    """A late reply of an ended period is in order."""
    verifier = Verifier()
    late = verifier.high_water_mark()
    Caller(verifier).receive(reply(100, period="2026", ordering=RISING))
    Caller(verifier).receive(reply(1, period="2027", ordering=RISING))
    verifier.check_range(reply(101, period="2026", ordering=RISING), late, LastIds())
    assert findings(verifier) == (0, 0, 0)
    Caller(verifier).receive(reply(3, period="2027", ordering=RISING))
    Caller(verifier).receive(reply(2, period="2027", ordering=RISING))
    assert findings(verifier) == (0, 1, 0)


def test_negative_step_falls_over_all_callers() -> None:
    """With a negative step, the ids of all callers must fall."""
    verifier = Verifier()
    Caller(verifier).receive(reply(-5, step=-1, ordering=RISING))
    Caller(verifier).receive(reply(-6, step=-1, ordering=RISING))
    assert findings(verifier) == (0, 0, 0)
    Caller(verifier).receive(reply(-4, step=-1, ordering=RISING))
    assert findings(verifier) == (0, 1, 0)


def test_invalid_reply_is_a_finding() -> None:
    """An invalid reply counts as malformed, and its reason is among the messages."""
    verifier = Verifier()
    verifier.count_malformed("range.step is 0")
    assert (findings(verifier), verifier.ids, verifier.messages) == ((0, 0, 1), 0, ["range.step is 0"])


def test_document_ids_are_checked_by_serial() -> None:
    """P1: document ids are compared by their shared part and their serial."""
    verifier = Verifier()
    caller = Caller(verifier)
    caller.receive_doc_ids(runs(("0007653f100f0000000000000001", 1, 100)))
    caller.receive_doc_ids(runs(("0007653f100f0000000000000065", 3, 10), ("0007653f1010000000000000000a", 1, 5)))
    assert (findings(verifier), verifier.ids) == ((0, 0, 0), 115)
    Caller(verifier).receive_doc_ids(runs(("0007653f100f0000000000000068", 1, 1)))
    assert findings(verifier) == (1, 0, 0)
    assert "0007653f100f0000000000000068" in verifier.messages[0]
    caller.receive_doc_ids(runs(("0007653f100f0000000000000067", 1, 1)))
    assert findings(verifier) == (1, 1, 0)


def test_document_ids_rise_within_each_process() -> None:
    """P6: document ids rise within a process; each process has its own order."""
    verifier = Verifier()
    caller = Caller(verifier)
    caller.receive_doc_ids(runs(("0007653f100f0000000000000065", 1, 100)))
    caller.receive_doc_ids(runs(("0003653f100f0000000000000001", 1, 1)))  # the node's prefix was changed
    caller.receive_doc_ids(runs(("0007653f100e0000000000000001", 1, 10)))  # another process, which started earlier
    caller.receive_doc_ids(runs(("0007653f100f00000000000000c9", 1, 1)))
    caller.receive_doc_ids(runs(("0007653f100e000000000000000b", 1, 10)))
    assert findings(verifier) == (0, 0, 0)
    caller.receive_doc_ids(runs(("0007653f100f0000000000000002", 1, 1)))
    assert findings(verifier) == (0, 1, 0)
    assert "0007653f100f0000000000000002 is out of order after 0007653f100f00000000000000c9" in verifier.messages[0]


def test_five_findings_have_a_message() -> None:
    """All findings are counted, and the first five have a message."""
    verifier = Verifier()
    for _ in range(1_000):
        Caller(verifier).receive(reply(1))
    assert verifier.findings == verifier.twice == 999
    assert len(verifier.messages) == 5
