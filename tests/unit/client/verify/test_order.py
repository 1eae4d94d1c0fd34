"""`idalloc verify` finds ids out of order, per node, over all nodes and by generation."""

from tests.support.planted_logs import BOOT_TIME, Planted
from tests.support.verify_command import VerifyCommand

DOCS = "00006b017bcf"
NODE, OTHER_NODE = 2**32 + 1_700_000_000, 2**32 + 1_700_000_001
LATER = "it was asked for after the same or a later id was answered: "


def test_falling_ids_of_one_node_are_found(verifier: VerifyCommand) -> None:
    """A node's range must follow those answered before it was asked for."""
    early = verifier.log(Planted(11, 10, 0, 1, node=NODE))
    late = verifier.log(Planted(1, 10, 2, 3, node=NODE), boot_time=BOOT_TIME - 10**15)
    verifier.finds(f"1…10 in {late}", f"11…20 in {early}", outOfOrder=1)


def test_rising_ids_with_negative_step_are_found(verifier: VerifyCommand) -> None:
    """With a negative step, a node's ids must fall."""
    verifier.log(Planted(-11, 10, 0, 1, node=NODE, step=-1), Planted(-1, 10, 2, 3, node=NODE, step=-1))
    verifier.finds(f"orders: -1 is out of order: {LATER}", "-11…-20", outOfOrder=1)


def test_falling_doc_ids_are_found(verifier: VerifyCommand) -> None:
    """P6: document ids of one process must rise."""
    verifier.log(Planted(11, 10, 0, 1, doc_ids=DOCS), Planted(2, 3, 2, 3, doc_ids=DOCS))
    verifier.finds(f"document id {DOCS}0000000000000002 is out of order: {LATER}", outOfOrder=1)


def test_rising_sequence_is_ordered_across_nodes(verifier: VerifyCommand) -> None:
    """A sequence that rises over all nodes must rise from any node to any other."""
    verifier.log(Planted(11, 10, 0, 1, node=NODE, rising=True))
    verifier.log(Planted(1, 10, 2, 3, node=OTHER_NODE, rising=True))
    verifier.finds(f"orders: 1 is out of order: {LATER}", "11…20", outOfOrder=1)


def test_falling_generation_is_found(verifier: VerifyCommand) -> None:
    """P5: ids of a newer generation must follow those of an older one."""
    verifier.log(Planted(1, 10, generation=3), Planted(11, 10, generation=2), Planted(31, 2, generation=3))
    verifier.finds("orders: 1 of generation 3 is out of order: generation 2 has 20", outOfOrder=1)


def test_generation_at_last_id_of_older_one_is_found(verifier: VerifyCommand) -> None:
    """P5: a generation that begins with the last id of an older one is a finding."""
    verifier.log(Planted(1, 10), Planted(10, 10, generation=2))
    verifier.finds("orders: 10 of generation 2 is out of order: generation 1 has 10", duplicates=1, outOfOrder=1)


def test_generations_with_negative_step_are_ordered(verifier: VerifyCommand) -> None:
    """P5: with a negative step, ids of a newer generation must be lower."""
    verifier.log(Planted(-1, 10, generation=2, step=-1), Planted(-11, 10, generation=1, step=-1))
    verifier.finds("orders: -1 of generation 2 is out of order: generation 1 has -20", outOfOrder=1)


def test_interleaved_nodes_are_valid(verifier: VerifyCommand) -> None:
    """Nodes that take turns are no finding, and leave no id missing."""
    for node, log in ((NODE, range(0, 100, 2)), (OTHER_NODE, range(1, 100, 2))):
        verifier.log(*(Planted(number * 10 + 1, 10, number // 2 * 5, node=node) for number in log))
    report = verifier.passes()
    assert report["ids"] == 1_000
    assert report["sequences"] == [
        {
            "sequence": "orders",
            "period": "",
            "ids": 1_000,
            "ranges": 100,
            "first": 1,
            "last": 1_000,
            "lastValue": None,
            "missing": 0,
            "burned": {},
            "unattributed": 0,
        }
    ]


def test_concurrent_calls_of_one_node_have_no_order(verifier: VerifyCommand) -> None:
    """Calls that overlap in time may get their ranges in any order."""
    verifier.log(Planted(11, 10, 0, 5, node=NODE), Planted(1, 10, 5, 6, node=NODE))
    verifier.passes()


def test_order_is_checked_per_node(verifier: VerifyCommand) -> None:
    """Ranges of different nodes, or without a node id, have no order."""
    verifier.log(Planted(11, 10, 0, 1, node=NODE), Planted(1, 10, 2, 3, node=OTHER_NODE))
    verifier.log(Planted(31, 10, 4, 5), Planted(21, 10, 6, 7))  # without a node id
    verifier.passes()


def test_times_of_different_boots_are_not_compared(verifier: VerifyCommand) -> None:
    """Times of different machines or boots are not compared."""
    verifier.log(Planted(11, 10, 0, 1, node=NODE, rising=True))
    verifier.log(Planted(1, 10, 2, 3, node=NODE, rising=True), boot_id="another")
    verifier.passes()


def test_times_of_unknown_boots_are_not_compared(verifier: VerifyCommand) -> None:
    """Times of logs without a boot id are not compared."""
    verifier.log(Planted(11, 10, 0, 1, node=NODE), boot_id="")
    verifier.log(Planted(1, 10, 2, 3, node=NODE), boot_id="")
    verifier.passes()


def test_longest_stall_is_within_one_log(verifier: VerifyCommand) -> None:
    """The longest stall is between consecutive replies of one log."""
    second = 10**9
    verifier.log(*(Planted(number, 1, 0, time * second) for number, time in enumerate([1, 5, 3, 6, 9])))
    verifier.log(*(Planted(number, 1, 0, time * second) for number, time in enumerate([100, 102], start=50)))
    assert verifier.passes()["longestStallSeconds"] == 3
