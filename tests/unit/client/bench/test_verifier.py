"""What looks at the ids of a bench: no id twice, in order, and in memory that the number of ids does not move."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from idalloc.bench._issued import IssuedIds
from idalloc.bench._verifier import Trail, Verifier
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
    """A caller whose calls begin and are answered at once, unless told otherwise."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier, self.trail = verifier, Trail()

    def gets(self, answer: pb.AllocateRangeResponse) -> None:
        self.verifier.check_range(answer, self.verifier.mark(), self.trail)

    def gets_doc_ids(self, answer: pb.GenerateDocIdResponse) -> None:
        self.verifier.check_doc_ids(answer, self.trail)


def found(verifier: Verifier) -> tuple[int, int, int]:
    return verifier.twice, verifier.disordered, verifier.malformed


def test_a_million_ranges_in_the_order_of_their_arrival_take_no_more_than_those_under_way() -> None:
    issued, chance, most = IssuedIds(), random.Random(5), 0
    for begin in range(0, 1_000_000, 1_000):  # so many are under way at a time
        arrivals = list(range(begin, begin + 1_000))
        chance.shuffle(arrivals)
        for number in arrivals:
            assert issued.add(number * 7 + 1, number * 7 + 7, 1) is None
            most = max(most, len(issued))
        assert len(issued) == 1
    assert most <= 501
    assert issued.add(7_000_000, 7_000_000, 1) == 7_000_000
    assert issued.add(7_000_001, 7_000_001, 1) is None
    assert len(issued) == 1


def test_ranges_in_any_order_and_step_become_one_interval() -> None:
    issued, arrivals = IssuedIds(), list(range(20_000))
    random.Random(6).shuffle(arrivals)
    for number in arrivals:
        assert issued.add(-100 * number, -100 * number - 90, -10) is None
    assert len(issued) == 1
    assert issued.add(-105, -105, -10) is None  # between two of them


ranges = st.tuples(st.integers(-60, 60), st.integers(1, 8), st.sampled_from([-6, -4, -1, 1, 2, 3, 5, 6]))


@given(st.lists(ranges, max_size=40))
def test_an_id_is_found_exactly_when_it_was_there(given_ranges: list[tuple[int, int, int]]) -> None:
    issued, seen = IssuedIds(), set[int]()
    for first, count, step in given_ranges:
        ids = set(range(first, first + count * step, step))
        again = issued.add(first, first + (count - 1) * step, step)
        assert (again in ids & seen) if ids & seen else again is None
        seen |= ids


def test_an_id_that_comes_twice_is_found_in_whatever_generation() -> None:
    verifier = Verifier()
    Caller(verifier).gets(reply(1, 100, generation=1))
    Caller(verifier).gets(reply(100, generation=2))
    assert found(verifier) == (1, 0, 0)
    assert "100 came twice" in verifier.told[0]
    assert verifier.ids == 101


def test_the_same_ids_in_another_period_are_others() -> None:
    verifier = Verifier()
    caller = Caller(verifier)
    caller.gets(reply(1, 100, period="2026"))
    caller.gets(reply(1, 100, period="2027"))
    caller.gets(reply(100, period="2026", ordering=RISING))
    assert found(verifier) == (1, 0, 0)


def test_a_callers_next_range_lies_behind_in_the_direction_of_the_step() -> None:
    verifier = Verifier()
    up, down = Caller(verifier), Caller(verifier)
    up.gets(reply(100, 10))
    up.gets(reply(110, 10))
    down.gets(reply(-100, 10, -1))
    down.gets(reply(-110, 10, -1))
    Caller(verifier).gets(reply(50, 10))  # another caller: its call may have been answered before
    assert found(verifier) == (0, 0, 0)
    up.gets(reply(60, 10))
    assert found(verifier) == (0, 1, 0)
    down.gets(reply(-99, step=-1))
    assert found(verifier) == (0, 2, 0)


def test_ranges_of_each_node_rise_for_themselves_whichever_answers() -> None:
    verifier = Verifier()
    caller = Caller(verifier)
    for answer in (reply(100), reply(50, node_id=OTHER), reply(101), reply(51, node_id=OTHER)):
        caller.gets(answer)
    assert found(verifier) == (0, 0, 0)
    caller.gets(reply(49, node_id=OTHER))
    assert found(verifier) == (0, 1, 0)
    assert verifier.told == ["49 came after 51"]
    caller.gets(reply(99))
    assert found(verifier) == (0, 2, 0)


def test_of_ranges_that_do_not_tell_their_node_only_what_rises_over_all_has_an_order() -> None:
    verifier = Verifier()
    caller = Caller(verifier)
    caller.gets(reply(100, node_id=0))
    caller.gets(reply(50, node_id=0))
    assert found(verifier) == (0, 0, 0)
    caller.gets(reply(200, node_id=0, ordering=RISING))
    caller.gets(reply(150, node_id=0, ordering=RISING))
    assert found(verifier) == (0, 1, 0)


def test_the_chunks_of_a_stream_rise_though_all_are_of_one_call() -> None:
    verifier = Verifier()
    for ordering in (PER_NODE, RISING):
        begun, trail = verifier.mark(), Trail()
        for first in (100, 110, 105):
            verifier.check_range(reply(first + 1_000 * ordering, 5, ordering=ordering), begun, trail)
    assert found(verifier) == (0, 2, 0)


def test_a_rising_sequence_rises_over_all_callers_and_nodes() -> None:
    verifier = Verifier()
    one, other = Caller(verifier), Caller(verifier)
    early = verifier.mark()
    one.gets(reply(100, ordering=RISING))
    verifier.check_range(reply(90, ordering=RISING), early, other.trail)  # began before that was answered
    assert found(verifier) == (0, 0, 0)
    Caller(verifier).gets(reply(95, ordering=RISING))
    assert found(verifier) == (0, 1, 0)
    one.gets(reply(99, ordering=RISING, node_id=OTHER))
    assert found(verifier) == (0, 2, 0)
    other.gets(reply(101, ordering=RISING))
    assert found(verifier) == (0, 2, 0)


def test_a_period_that_ends_does_not_hold_the_next_one_up() -> None:
    verifier = Verifier()
    late = verifier.mark()
    Caller(verifier).gets(reply(100, period="2026", ordering=RISING))
    Caller(verifier).gets(reply(1, period="2027", ordering=RISING))
    verifier.check_range(reply(101, period="2026", ordering=RISING), late, Trail())
    assert found(verifier) == (0, 0, 0)
    Caller(verifier).gets(reply(3, period="2027", ordering=RISING))
    Caller(verifier).gets(reply(2, period="2027", ordering=RISING))
    assert found(verifier) == (0, 1, 0)


def test_a_falling_sequence_that_is_rising_falls_over_all_callers() -> None:
    verifier = Verifier()
    Caller(verifier).gets(reply(-5, step=-1, ordering=RISING))
    Caller(verifier).gets(reply(-6, step=-1, ordering=RISING))
    assert found(verifier) == (0, 0, 0)
    Caller(verifier).gets(reply(-4, step=-1, ordering=RISING))
    assert found(verifier) == (0, 1, 0)


def test_a_reply_that_breaks_the_contract_is_a_finding() -> None:
    """A refused reply counts as malformed, and its reason is among the findings."""
    verifier = Verifier()
    verifier.refuse("range.step is 0")
    assert (found(verifier), verifier.ids, verifier.told) == ((0, 0, 1), 0, ["range.step is 0"])


def test_document_ids_are_looked_at_by_what_they_share_and_their_serials() -> None:
    verifier = Verifier()
    caller = Caller(verifier)
    caller.gets_doc_ids(runs(("0007653f100f0000000000000001", 1, 100)))
    caller.gets_doc_ids(runs(("0007653f100f0000000000000065", 3, 10), ("0007653f1010000000000000000a", 1, 5)))
    assert (found(verifier), verifier.ids) == ((0, 0, 0), 115)
    Caller(verifier).gets_doc_ids(runs(("0007653f100f0000000000000068", 1, 1)))
    assert found(verifier) == (1, 0, 0)
    assert "0007653f100f0000000000000068" in verifier.told[0]
    caller.gets_doc_ids(runs(("0007653f100f0000000000000067", 1, 1)))
    assert found(verifier) == (1, 1, 0)


def test_document_ids_of_each_process_rise_for_themselves() -> None:
    verifier = Verifier()
    caller = Caller(verifier)
    caller.gets_doc_ids(runs(("0007653f100f0000000000000065", 1, 100)))
    caller.gets_doc_ids(runs(("0003653f100f0000000000000001", 1, 1)))  # the node was given another prefix
    caller.gets_doc_ids(runs(("0007653f100e0000000000000001", 1, 10)))  # another process, which started before
    caller.gets_doc_ids(runs(("0007653f100f00000000000000c9", 1, 1)))
    caller.gets_doc_ids(runs(("0007653f100e000000000000000b", 1, 10)))
    assert found(verifier) == (0, 0, 0)
    caller.gets_doc_ids(runs(("0007653f100f0000000000000002", 1, 1)))
    assert found(verifier) == (0, 1, 0)
    assert "0007653f100f0000000000000002 came after 0007653f100f00000000000000c9" in verifier.told[0]


def test_few_findings_are_told_and_all_are_counted() -> None:
    verifier = Verifier()
    for _ in range(1_000):
        Caller(verifier).gets(reply(1))
    assert verifier.findings == verifier.twice == 999
    assert len(verifier.told) == 5
