"""What is read of an exported file, and how a line that cannot be is told."""

import asyncio
import copy
import json
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_server.backup.export_file import first_line, line_of_row, read
from idalloc_server.backup.exporter import export_lines
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.sequences.model import MAX_ID
from tests.support.fake_store import FakeClock, MemoryStore

HEAD = first_line().encode()
TENS = {"start": "10", "step": "10"}
DOWN = {"start": "100", "max_value": "100", "step": "-10"}
YEARLY = {"reset": "YEARLY", "format": "{year}-{value}"}
# What is no good in one field or another, such as what other writers of JSON make of floats.
ODD: list[Any] = [
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 2**63, 10**400, "", "x", "true", "1_000", " 1", "+1",
    "\ud800", "\u0661", "a\x1fb", [], ["x"], {}, {"x": "\ud800"}, {"\ud800": "x"}, "2026", "2026-13", str(-(2**63)),
]  # fmt: skip
JSON = st.recursive(
    st.sampled_from(ODD) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def line(settings: dict[str, Any] | None = None, **fields: object) -> dict[str, Any]:
    return {"sequence": "a", "last_value": "5", "generation": "1", "settings": settings or {}, **fields}


def period(**fields: object) -> dict[str, Any]:
    return {"sequence": "bills", "period": "2026", "last_value": "7", "generation": "1", **fields}


BILLS = line(YEARLY, sequence="bills", last_value="0")
SOUND = [
    line(),
    line(TENS, last_value="37"),
    line(DOWN, last_value="37", deleted=True),
    line({"kind": "TIMESTAMP_MS", "ordering": "RISING", "labels": {"a": "b"}}, created_at=1.5, lease_ms="180000"),
    line({"format": "N{value:03d}", "max_value": "900", "min_lease_size": "5", "description": "x"}),
    BILLS,
    BILLS | {"settings": YEARLY | TENS},
    period(),
    period(period="2027", last_value=str(MAX_ID)),
    {"prefix": 7, "last_start": "1700000000"},
]


@st.composite
def lines_with_faults(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lines that are sound, but for a field or two."""
    lines = [copy.deepcopy(each) for each in draw(st.lists(st.sampled_from(SOUND), max_size=4))]
    settings = [each["settings"] for each in lines if "settings" in each]
    for where in draw(st.lists(st.sampled_from(lines + settings), max_size=2)) if lines else []:
        keys = sorted({key for each in (settings if where in settings else lines) for key in each})
        number = st.integers(-50, 50) | st.integers(-(2**63), 2**63)
        where[draw(st.sampled_from(keys or ["more"]))] = draw(number.map(str) | JSON)
    return lines


def problem_of(*contents: object) -> str:
    """Reads lines of which the last one is at fault, and returns what is told of it."""
    (problem,) = read([HEAD, *(json.dumps(content).encode() for content in contents)]).problems
    assert problem.line == 1 + len(contents)
    return problem.why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\xff", ""),
        (b"[" * 100_000, "too deep"),
        (b'{"sequence": ' + b"[" * 100_000, "too deep"),
        (b'{"sequence": "a", "last_value": ' + b"9" * 5_000 + b"}", "digits"),
    ],
)
def test_what_is_no_object_is_named(content: bytes, why: str) -> None:
    (problem,) = read([HEAD, b"", content]).problems
    assert problem.line == 3
    assert why in problem.why


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (line({"step": "0"}), "step"),
        (line({"stp": "1"}), "no field 'stp'"),
        (line({"kind": "X"}), "kind"),
        (line({"kind": ["x"]}), "kind"),
        (line({"kind": None}), "kind"),
        (line({"description": "\ud800"}), "description"),
        (line({"labels": {"k": "\ud800"}}), "labels"),
        (line({"labels": {"\ud800": "v"}}), "labels"),
        (line({"labels": {"k": 1}}), "labels"),
        (line(sequence=""), "sequence"),
        (line(sequence="\ud800"), "sequence"),
        (line(last_value=1.5), "last_value"),
        (line(last_value=True), "last_value"),
        (line(last_value="1_000"), "last_value"),
        (line(last_value=" 1"), "last_value"),
        (line(last_value="9" * 5_000), "last_value"),
        (line(last_value="\u0661"), "last_value"),
        (line(last_value="9223372036854775807"), "last_value"),
        (line(generation="0"), "generation"),
        (line(generation=str(2**63 - 2)), "generation"),
        (line(lease_ms=str(2**62)), "lease_ms"),
        (line(created_at=float("nan")), "created_at"),
        (line(created_at=float("inf")), "created_at"),
        (line(created_at=10**400), "created_at"),
        (line(created_at=True), "created_at"),
        (line(changed_at=-1), "changed_at"),
        (line(deleted="true"), "deleted"),
        (line(deletd=True), "no field 'deletd'"),
        ({"prefix": 65536, "last_start": "1"}, "prefix"),
        ({"prefix": 1, "last_start": str(2**32)}, "last_start"),
        ({"prefix": 1, "last_start": "1", "period": "2026"}, "no field 'period'"),
    ],
)
def test_the_field_of_a_broken_line_is_named(content: dict[str, object], why: str) -> None:
    assert why in problem_of(line(sequence="sound"), content)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"period": "2026-11"}, 'like "2026"'),
        ({"period": "20x6"}, 'like "2026"'),
        ({"period": "2026\ud800"}, "period"),
        ({"period": ""}, "period"),
        ({"period": 2026}, "period"),
        ({"sequence": "b"}, "not in the file"),
        ({"last_value": None}, "last_value"),
        ({"generation": str(2**63 - 2)}, "generation"),
        ({"settings": {}}, "no field 'settings'"),
    ],
)
def test_a_line_of_a_period_must_be_one_of_its_sequence(fields: dict[str, object], why: str) -> None:
    assert why in problem_of(BILLS, period(**fields))


def test_a_sequence_without_a_reset_has_no_period() -> None:
    assert "no reset" in problem_of(line(), period(sequence="a"))


def test_nothing_is_said_twice() -> None:
    assert "in line 2 already" in problem_of(line(), line())
    assert "in line 3 already" in problem_of(BILLS, period(), period())


@pytest.mark.parametrize(
    ("settings", "last_value", "why"),
    [
        ({"start": "1000", "min_value": "1000"}, 2, "at least 999"),
        ({"format": "N{value:03d}"}, -10, "at least 0"),
        ({"start": "100", "max_value": "100", "step": "-1"}, 102, "at most 101"),
    ],
)
def test_a_counter_before_the_start_is_refused(settings: dict[str, Any], last_value: int, why: str) -> None:
    assert why in problem_of(line(settings, last_value=str(last_value)))


@pytest.mark.parametrize(
    ("settings", "last_value"),
    [
        ({"kind": "TIMESTAMP_MS"}, 2**62),
        ({"kind": "TIMESTAMP_US"}, 253_402_300_800_000_000),
        ({"kind": "TIMESTAMP_MS", "max_value": str(2**53 - 1)}, 2**53),
    ],
)
def test_a_time_that_no_clock_showed_is_refused(settings: dict[str, Any], last_value: int) -> None:
    assert "last_value" in problem_of(line(settings, last_value=str(last_value)))


@pytest.mark.parametrize(
    ("settings", "last_value", "counter"),
    [
        ({}, 41, 41),  # as of the recipe of CrateDB's guide
        (TENS, 0, 0),
        (TENS, 37, 40),
        (TENS, 40, 40),
        (DOWN, 110, 110),
        (DOWN, 37, 30),
        ({"step": "-1"}, 500, 500),
        ({"max_value": "100"}, 500, 500),  # exhausted
        (TENS, MAX_ID, MAX_ID),  # no point of the lattice is left that a store could hold
        ({"step": "-10", "min_value": str(-(2**62))}, -(2**63) + 1, -(2**63) + 1),
    ],
)
def test_a_counter_is_on_the_lattice(settings: dict[str, Any], last_value: int, counter: int) -> None:
    content = json.dumps(line(settings, last_value=str(last_value))).encode()
    file = read([HEAD, content])
    assert file.problems == []
    assert file.items[0].row.last_value == counter
    # What was written of it is read as the same.
    assert read([HEAD, line_of_row(file.items[0].row).encode()]).items[0].row == file.items[0].row


def test_a_counter_of_a_period_is_on_the_lattice_and_not_before_the_start() -> None:
    numbers = enumerate((-5, 37, MAX_ID))
    periods = [period(period=str(2020 + at), last_value=str(last_value)) for at, last_value in numbers]
    lines = [BILLS | {"settings": YEARLY | TENS}, *periods]
    file = read([HEAD, *(json.dumps(each).encode() for each in lines)])
    assert file.problems == []
    assert [period.last_value for period in file.items[0].periods] == [0, 40, MAX_ID]


def test_only_what_was_exported_is_read() -> None:
    assert read([]).problems
    assert read([json.dumps({"idalloc_export": 2}).encode()]).problems


@given(st.lists(st.binary() | JSON.map(lambda content: json.dumps(content).encode()), max_size=3), st.booleans())
@example([b"[" * 100_000], False)
@example([b'{"idalloc_export": ' + b"9" * 5_000], False)
def test_any_bytes_are_read_or_named(lines: list[bytes], with_head: bool) -> None:
    for problem in read([HEAD, *lines] if with_head else lines).problems:
        assert problem.why.isprintable()
        assert len(problem.why) < 1_000


@given(lines_with_faults())
@example([line(TENS, last_value="37")])
@example([BILLS | {"settings": YEARLY | TENS}, period(last_value=str(MAX_ID))])
def test_what_is_read_is_brought_and_counts_on_its_lattice(contents: Many[object]) -> None:
    async def bring() -> None:
        file = read([HEAD, *(json.dumps(content).encode() for content in contents)])
        store = MemoryStore(FakeClock())
        done = Importer(store, FakeClock())
        await done.run(file)
        assert [problem.why for problem in done.problems if "has no last_value" not in problem.why] == []
        for name, row in store.rows.items():
            name.encode()
            grant = None if row.deleted else await store.grant(name, 1, 0)
            if grant is not None and grant.granted:
                assert (grant.last_value - row.sequence.start) % row.sequence.step == 0
                assert row.sequence.min_value <= grant.last_value <= row.sequence.max_value
        written = [text.encode() async for text in export_lines(store)]
        again = Importer(MemoryStore(FakeClock()), FakeClock())
        await again.run(read(written))
        assert (again.problems, again.created) == ([], done.created)

    asyncio.run(bring())


UNSAFE = "a\x1b[2J\x7f\u202eb"


def test_unsafe_texts_are_replaced_and_reported() -> None:
    """Number 4: an import brings the counter, and no control character or bidirectional mark in a description."""
    settings = {"description": UNSAFE, "labels": {UNSAFE: UNSAFE, "k": "v"}}
    found = read([HEAD, json.dumps(line(settings)).encode(), json.dumps(line(sequence="b")).encode()])
    sequence = found.items[0].row.sequence
    clean = "a\ufffd[2J\ufffd\ufffdb"
    assert (sequence.description, dict(sequence.labels)) == (clean, {clean: clean, "k": "v"})
    assert not found.problems
    assert [(note.line, note.why.partition(":")[0]) for note in found.notes] == [(2, "description"), (2, "labels")]


def test_names_and_formats_are_imported_as_they_are() -> None:
    """A move to another store changes no name and no text of an id, also where a new one would be refused."""
    settings = {"format": "\u200f{value}"}
    found = read([HEAD, json.dumps(line(settings, sequence="\u200fb")).encode()])
    [item] = found.items
    assert (item.row.name, item.row.sequence.format) == ("\u200fb", "\u200f{value}")
    assert not found.problems
    assert not found.notes


def test_an_exported_line_is_safe_to_print() -> None:
    """The export of stored text escapes what would change the terminal, and reads back as it was."""
    row = read([HEAD, json.dumps(line()).encode()]).items[0].row
    written = line_of_row(row._replace(name="\u202e\x9b", sequence=replace(row.sequence, description=UNSAFE)))
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written)["settings"]["description"] == UNSAFE
