"""The rules by which a store that was lost in part is refused (P3)."""

from dataclasses import replace

import pytest

from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.identity import (
    ALLOCATIONS,
    SEQUENCES,
    START_TIMESTAMPS,
    Opening,
    Part,
    check_parts,
    check_place,
    identity_row,
    listed,
    name_in,
)

USED = [
    Part(SEQUENCES, "the sequences", ["name", "step"], has_rows=True),
    Part(START_TIMESTAMPS, "the start timestamps", ["prefix"], store="us", has_rows=True),
    Part(ALLOCATIONS, "the allocations", ["request_id"], store="us"),
]


def settings(parts: list[Part] = USED) -> Sequence:
    """Return the settings in the row of the name, once the parts are listed."""
    change = listed(identity_row("us"), "us", parts)
    assert change is not None
    return change.sequence


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        (0, {"lacks": ["step"]}, "the sequences lost its columns step"),
        (1, {"store": ""}, "the start timestamps was lost or exchanged: it has no name of a store"),
        (1, {"store": "them"}, "the start timestamps was lost or exchanged: it belongs to the store them"),
        (1, {"has_rows": False}, "the start timestamps was emptied"),
        (2, {"store": "", "lacks": ["request_id"]}, "the allocations was lost or exchanged: it is missing"),
    ],
)
def test_a_listed_part_keeps_its_copy(part: int, change: dict[str, object], why: str) -> None:
    """P3: what the list names must be there; the error names both parts and the next steps."""
    parts = list(USED)
    parts[part] = parts[part]._replace(**change)  # type: ignore[arg-type]
    assert check_parts(USED, settings(), Opening()) == "us"
    with pytest.raises(StartRefused, match=why) as caught:
        check_parts(parts, settings(), Opening())
    assert "idalloc store repair" in str(caught.value)
    if part:
        assert check_parts(parts, settings(), Opening(repairs=True)) == "us"
    else:
        with pytest.raises(StartRefused, match=r"lost the values of step; restore the table, or drop it"):
            check_parts(parts, settings(), Opening(repairs=True))


def test_a_part_that_is_not_listed_may_lack_the_copy() -> None:
    """P3: a user without DDL cannot add it, and a start may have ended before."""
    parts = [USED[0], USED[1]._replace(store=""), USED[2]]
    assert check_parts(parts, settings(parts), Opening()) == "us"
    assert check_parts(parts, Sequence(description="us"), Opening()) == "us"


def test_the_name_of_lost_sequences_is_in_the_other_parts() -> None:
    """P3: sequences without the name, beside a part that has it, were lost or exchanged."""
    with pytest.raises(StartRefused, match="the sequences was lost or exchanged"):
        check_parts(USED, None, Opening())
    assert check_parts(USED, None, Opening(repairs=True)) == "us"


def test_the_list_only_grows_and_is_written_once() -> None:
    """P3: a column that a newer version has listed stays, and a complete list is no change."""
    newer = replace(settings(), labels={**settings().labels, SEQUENCES: "new_column"})
    change = listed(identity_row("us")._replace(sequence=newer), "us", USED)
    assert change is not None
    assert change.sequence.labels[SEQUENCES] == "name new_column step"
    assert listed(identity_row("us")._replace(sequence=settings()), "us", USED) is None


def test_lost_parts_are_named_before_the_witness() -> None:
    """P3: the marks of a witness are the last memory of the ids: forgetting them comes last."""
    for identity in (None, Sequence(description="them")):
        with pytest.raises(StartRefused, match="was lost or exchanged"):
            check_parts(USED, identity, Opening(witness="us"))
    with pytest.raises(StartRefused, match=r"put that store back.*run `idalloc store repair`.*gone for good"):
        check_parts(USED, settings(), Opening(witness="them"))
    assert check_parts(USED, settings(), Opening(witness="them", repairs=True)) == "them"


def test_only_a_name_marks_a_column() -> None:
    """P3: a column of another program that begins alike is no name of a store."""
    assert name_in({"store_feed", f"store_{'a' * 32}", "prefix"}) == "a" * 32
    assert name_in({"store_feed", "prefix"}) == ""


def test_another_place_is_refused_by_name() -> None:
    """P3: the error says what differs from what the first worker opened."""
    check_place(Opening(expected={"name": "us"}), {"name": "us"})
    check_place(Opening(), {"name": "us"})
    with pytest.raises(StartRefused, match="its file was 1:2, and is now missing"):
        check_place(Opening(expected={"name": "us", "file": "1:2"}), {"name": "us"})
