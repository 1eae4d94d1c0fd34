"""`idalloc verify` with exports and logs of nodes: ids beyond a counter, missing and burned ids."""

from typing import Any

import pytest

from tests.support.planted_logs import Planted
from tests.support.verify_command import VerifyCommand, counter

DOCS = "00006b017bcf"
NODE, OTHER_NODE = 2**32 + 1_700_000_000, 2**32 + 1_700_000_001


def test_id_beyond_the_exported_counter_is_found(verifier: VerifyCommand) -> None:
    """P2: an id past the exported counter is a finding."""
    log = verifier.log(Planted(1, 10), Planted(11, 10), Planted(21, 1))
    verifier.export(counter("orders", 15), counter("others", 100))
    report = verifier.finds(f"orders: 20 is beyond the exported last value, 15: 11…20 in {log}", beyondExport=2)
    assert report["sequences"][0]["lastValue"] == 15


def test_id_below_a_descending_counter_is_found(verifier: VerifyCommand) -> None:
    """P2: with a negative step, an id below the exported counter is a finding."""
    verifier.log(Planted(100, 10, step=-2), Planted(80, 2, step=-2))
    verifier.export(counter("orders", 80))
    verifier.finds("orders: 78 is beyond the exported last value, 80", beyondExport=1)


def test_id_beyond_its_periods_counter_is_found(verifier: VerifyCommand) -> None:
    """P2: each period has a counter of its own in the export."""
    verifier.log(Planted(1, 10, period="2026"), Planted(1, 5, period="2027"))
    verifier.export(counter("orders", 0), counter("orders", 9, period="2026"), counter("orders", 10, period="2027"))
    verifier.finds("orders of 2026: 10 is beyond the exported last value, 9", beyondExport=1)


@pytest.mark.parametrize("rows", [[], [counter("orders", None)], [counter("orders", 9, period="2026")]])
def test_id_without_exported_counter_is_found(verifier: VerifyCommand, rows: list[dict[str, Any]]) -> None:
    """P2: an id of a sequence without an exported counter is a finding."""
    verifier.log(Planted(1, 1))
    verifier.export(*rows)
    verifier.finds("orders: 1 is beyond the export, which has no counter for it: 1", beyondExport=1)


@pytest.mark.parametrize("claims", [[], [(0, 0x6B017BCE)], [(1, 0x7B017BCE)]])
def test_doc_ids_without_a_claim_are_found(verifier: VerifyCommand, claims: list[tuple[int, int]]) -> None:
    """P6: document ids of a start timestamp that the export does not claim are a finding."""
    verifier.log(Planted(1, 10, doc_ids=DOCS))
    verifier.export(*({"prefix": prefix, "last_start": str(start)} for prefix, start in claims))
    verifier.finds(f"document id {DOCS}000000000000000a is beyond", beyondExport=1)


def test_skipped_ids_of_an_advance_are_missing(verifier: VerifyCommand) -> None:
    """P5: ids that an advance skips are missing, not a finding."""
    verifier.log(Planted(1, 10, 0, node=NODE), Planted(1_001, 10, 5, node=NODE, generation=2))
    verifier.log(Planted(11, 10, 3, generation=1, node=OTHER_NODE))
    verifier.export(counter("orders", 1_010))
    assert verifier.passes()["sequences"][0]["missing"] == 980


def test_descending_sequence_is_counted(verifier: VerifyCommand) -> None:
    """First, last and missing ids follow a negative step."""
    verifier.log(*(Planted(100 - 9 * number, 3, 5 * number, step=-3, node=NODE) for number in range(9)))
    verifier.export(counter("orders", 16))
    (stats,) = verifier.passes()["sequences"]
    assert (stats["first"], stats["last"], stats["missing"]) == (100, 22, 2)


def test_ids_within_the_export_are_valid(verifier: VerifyCommand) -> None:
    """P2: ids up to the exported counters and claims are no finding."""
    verifier.log(Planted(1, 10), Planted(1, 10, period="2026"), Planted(1, 10, doc_ids=DOCS))
    claim = {"prefix": 0, "last_start": str(int(DOCS[4:], 16))}
    verifier.export(counter("orders", 10), counter("orders", 10, period="2026"), claim)
    verifier.passes()


def test_missing_ids_are_attributed_to_causes(verifier: VerifyCommand) -> None:
    """P9: missing ids are attributed to the causes in the nodes' logs, the rest is unattributed."""
    verifier.log(Planted(1, 10), Planted(21, 10))
    verifier.export(counter("orders", 50))
    verifier.node_log(
        {"event": "burned", "sequence": "orders", "cause": "expired", "ids": 7},
        {"event": "burned", "sequence": "orders", "cause": "cancelled", "ids": 2},
        {"event": "burned", "sequence": "orders", "period": "2026", "cause": "cancelled", "ids": 99},
        {"event": "burned", "sequence": "others", "cause": "cancelled", "ids": 99},
    )
    verifier.node_log({"event": "burned", "sequence": "orders", "cause": "cancelled", "ids": 5})
    (stats,) = verifier.passes()["sequences"]
    assert stats["missing"] == 30
    assert stats["burned"] == {"cancelled": 7, "expired": 7}
    assert stats["unattributed"] == 16


def test_unattributed_ids_are_never_negative(verifier: VerifyCommand) -> None:
    """P9: more burned than missing ids leave 0 unattributed."""
    verifier.log(Planted(1, 10), Planted(12, 10))
    verifier.node_log({"event": "burned", "sequence": "orders", "cause": "unknown_outcome", "ids": 50})
    (stats,) = verifier.passes()["sequences"]
    assert (stats["missing"], stats["unattributed"]) == (1, 0)


def test_skipped_timestamps_are_not_missing(verifier: VerifyCommand) -> None:
    """Timestamps that no one asked for are not missing."""
    verifier.log(Planted(1_700_000_000_000), Planted(1_700_000_900_000))
    verifier.export(counter("orders", 1_700_000_900_000, settings={"kind": "TIMESTAMP_MS", "step": "1"}))
    assert verifier.passes()["sequences"][0]["missing"] == 0
