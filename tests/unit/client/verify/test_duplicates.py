"""`idalloc verify` finds ids that were issued twice, and accepts retries."""

from tests.support.planted_logs import Planted
from tests.support.verify_command import VerifyCommand, counter

REQUEST = "11111111-2222-4333-8444-555555555555"
DOCS = "00006b017bcf"
NODE, OTHER_NODE = 2**32 + 1_700_000_000, 2**32 + 1_700_000_001


def test_duplicate_in_one_log_is_found(verifier: VerifyCommand) -> None:
    """P1: two records of one log with the same id are a finding, with both records and times."""
    log = verifier.log(Planted(1, 10, 0), Planted(10, 5, 7), Planted(15, 5))
    report = verifier.finds(
        "orders: 10 was issued twice", f"1…10 in {log}", f"10…14 in {log}", "000000007Z", duplicates=1
    )
    assert report["ids"] == 19
    assert report["records"] == 3


def test_duplicate_across_logs_is_found(verifier: VerifyCommand) -> None:
    """P1: records of two logs with the same ids are a finding."""
    one, other = verifier.log(Planted(1, 10), Planted(11, 10)), verifier.log(Planted(21, 5), Planted(4, 2))
    verifier.finds("orders: 4 was issued twice", f"1…10 in {one}", f"4…5 in {other}", duplicates=2)


def test_copy_of_a_log_is_a_duplicate(verifier: VerifyCommand) -> None:
    """P1: a copy of a log repeats all its ids."""
    for _ in range(2):
        verifier.log(Planted(1, 10), Planted(11, 10))
    assert len(verifier.finds(duplicates=20)["messages"]) >= 1


def test_same_file_twice_is_read_once(verifier: VerifyCommand) -> None:
    """One file under two paths is read once."""
    log = verifier.log(Planted(1, 10))
    (verifier.folder / "link").symlink_to(log)
    verifier.files += [log, verifier.folder / "link"]
    assert verifier.passes()["logs"] == 1


def test_duplicate_across_steps_is_found(verifier: VerifyCommand) -> None:
    """P1: two ranges of different steps that share an id are a finding."""
    verifier.log(Planted(1, 10, step=3), Planted(8, 3, step=5, generation=1))  # 1, 4, 7, 10, 13 … and 8, 13, 18
    verifier.finds("orders: 13 was issued twice", "in steps of 3", "in steps of 5", duplicates=1)


def test_duplicate_across_large_steps_is_found(verifier: VerifyCommand) -> None:
    """P1: a shared id is found even if the steps' product exceeds 64 bits."""
    one, other = 2**33 + 1, 2**33 + 3
    verifier.log(Planted(7, 2**20, step=one), Planted(7 + one * 2**19 - other * 5, 10, step=other))
    verifier.finds(f"orders: {7 + one * 2**19} was issued twice", duplicates=1)


def test_duplicate_doc_id_is_found(verifier: VerifyCommand) -> None:
    """P1: two records with the same document id are a finding."""
    verifier.log(Planted(1, 10, 0, doc_ids=DOCS), Planted(11, 10, 5, doc_ids=DOCS))
    verifier.log(Planted(10, 10, 0, 9, step=10, doc_ids=DOCS))
    report = verifier.finds(f"document id {DOCS}000000000000000a was issued twice", duplicates=2)
    assert report["docIds"] == report["ids"] == 28


def test_retry_with_another_range_is_a_duplicate(verifier: VerifyCommand) -> None:
    """P7: a retry must get the same range; another one that shares ids is a duplicate."""
    verifier.log(Planted(1, 10, request_id=REQUEST), Planted(1, 12, request_id=REQUEST))
    verifier.finds("orders: 1 was issued twice", duplicates=10)


def test_same_range_for_another_request_is_found(verifier: VerifyCommand) -> None:
    """P1: the same range for two request ids is a duplicate."""
    verifier.log(Planted(1, 3, request_id=REQUEST), Planted(1, 3, request_id=REQUEST.replace("1", "2")))
    verifier.finds(duplicates=3)


def test_five_findings_of_a_kind_have_a_message(verifier: VerifyCommand) -> None:
    """All findings are counted, and the first five of each kind have a message."""
    verifier.log(*(Planted(number, 1, 0, 1) for number in [*range(0, 40, 2)] * 2), Planted(50, 0))
    assert len(verifier.finds(duplicates=20, malformed=1)["messages"]) == 6


def test_retry_is_not_a_duplicate(verifier: VerifyCommand) -> None:
    """P7: the same range once more for the same request id is no duplicate."""
    verifier.log(Planted(1, 10, 0, request_id=REQUEST, node=NODE), Planted(11, 10, 3, node=NODE))
    verifier.log(*(Planted(1, 10, time, request_id=REQUEST, node=node) for time in (7, 9) for node in (NODE, 5)))
    assert verifier.passes()["ids"] == 20


def test_periods_have_independent_ids(verifier: VerifyCommand) -> None:
    """P1: ids are unique within a period; each period counts from its start."""
    verifier.log(*(Planted(1, 10, 5 * year, period=f"{2026 + year}", node=NODE) for year in range(3)))
    report = verifier.passes()
    assert [(each["sequence"], each["period"], each["ids"]) for each in report["sequences"]] == [
        ("orders", "2026", 10),
        ("orders", "2027", 10),
        ("orders", "2028", 10),
    ]


def test_remainders_of_one_step_are_all_counted(verifier: VerifyCommand) -> None:
    """Ids of all remainders of a step are counted; none of them is missing."""
    for offset in (1, 2):
        verifier.log(*(Planted(offset + 20 * number, 10, 5 * number, step=2) for number in range(9)))
    verifier.export(counter("orders", 180))
    (stats,) = verifier.passes()["sequences"]
    assert (stats["ids"], stats["missing"]) == (180, 0)


def test_disjoint_lattices_share_no_id(verifier: VerifyCommand) -> None:
    """Steps and remainders without a common id are no finding."""
    verifier.log(Planted(1, 100, step=4), Planted(4, 60, step=6))
    verifier.passes()


def test_largest_and_smallest_ids_are_checked(verifier: VerifyCommand) -> None:
    """Ids at both ends of 64 bits do not overflow."""
    verifier.log(Planted(2**63 - 5, 4, 0, node=NODE), Planted(-(2**63), 2, 0, node=OTHER_NODE))
    verifier.log(Planted(2**64 - 2, 2, 0, doc_ids=DOCS), Planted(0, 1, 0, doc_ids="ffffffffffff"))
    assert verifier.passes()["ids"] == 9
