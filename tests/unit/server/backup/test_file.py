"""Export files: parsing, and the errors of invalid lines."""

import asyncio
import copy
import json
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from idalloc_server.backup.export_file import header_line, read_export, row_line
from idalloc_server.backup.exporter import export_lines
from idalloc_server.backup.importer import Importer
from idalloc_server.domain.sequences.sequence import MAX_ID
from tests.support.fake_store import FakeClock, MemoryStore

HEAD = header_line().encode()
TENS = {"start": "10", "step": "10"}
DOWN = {"start": "100", "max_value": "100", "step": "-10"}
YEARLY = {"reset": "YEARLY", "format": "{year}-{value}"}
# Values that are invalid in some field.
INVALID: list[Any] = [
    None, True, 0, -1, 1.5, float("nan"), float("inf"), 2**63, 10**400, "", "x", "true", "1_000", " 1", "+1",
    "\ud800", "\u0661", "a\x1fb", [], ["x"], {}, {"x": "\ud800"}, {"\ud800": "x"}, "2026", "2026-13", str(-(2**63)),
]  # fmt: skip
JSON = st.recursive(
    st.sampled_from(INVALID) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def line(settings: dict[str, Any] | None = None, **fields: object) -> dict[str, Any]:
    return {"sequence": "a", "last_value": "5", "generation": "1", "settings": settings or {}, **fields}


def period(**fields: object) -> dict[str, Any]:
    return {"sequence": "bills", "period": "2026", "last_value": "7", "generation": "1", **fields}


BILLS = line(YEARLY, sequence="bills", last_value="0")
VALID_LINES = [
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
    """Draw valid lines in which one or two fields are replaced."""
    lines = [copy.deepcopy(each) for each in draw(st.lists(st.sampled_from(VALID_LINES), max_size=4))]
    settings = [each["settings"] for each in lines if "settings" in each]
    for where in draw(st.lists(st.sampled_from(lines + settings), max_size=2)) if lines else []:
        keys = sorted({key for each in (settings if where in settings else lines) for key in each})
        number = st.integers(-50, 50) | st.integers(-(2**63), 2**63)
        where[draw(st.sampled_from(keys or ["more"]))] = draw(number.map(str) | JSON)
    return lines


def problem_of(*contents: object) -> str:
    """Read lines of which only the last is invalid, and return its message."""
    (problem,) = read_export([HEAD, *(json.dumps(content).encode() for content in contents)]).problems
    assert problem.line == 1 + len(contents)
    return problem.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\xff", ""),
        (b"[" * 100_000, "too deep"),
        (b'{"sequence": ' + b"[" * 100_000, "too deep"),
        (b'{"sequence": "a", "last_value": ' + b"9" * 5_000 + b"}", "digits"),
    ],
)
def test_a_line_that_is_no_json_object_is_reported(content: bytes, message: str) -> None:
    """A line that is not a JSON object is reported with its number."""
    (problem,) = read_export([HEAD, b"", content]).problems
    assert problem.line == 3
    assert message in problem.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line({"step": "0"}), "step"),
        (line({"stp": "1"}), "unknown field 'stp'"),
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
        (line(lease_ms="86400001"), "lease_ms"),
        (line(created_at=float("nan")), "created_at"),
        (line(created_at=float("inf")), "created_at"),
        (line(created_at=10**400), "created_at"),
        (line(created_at=True), "created_at"),
        (line(changed_at=-1), "changed_at"),
        (line(deleted="true"), "deleted"),
        (line(deletd=True), "unknown field 'deletd'"),
        ({"prefix": 65536, "last_start": "1"}, "prefix"),
        ({"prefix": 1, "last_start": str(2**32)}, "last_start"),
        ({"prefix": 1, "last_start": "1", "period": "2026"}, "unknown field 'period'"),
    ],
)
def test_an_invalid_line_is_reported_with_its_field(content: dict[str, object], message: str) -> None:
    """An invalid line is reported with its field."""
    assert message in problem_of(line(sequence="valid"), content)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"period": "2026-11"}, 'like "2026"'),
        ({"period": "20x6"}, 'like "2026"'),
        ({"period": "2026\ud800"}, "period"),
        ({"period": ""}, "period"),
        ({"period": 2026}, "period"),
        ({"sequence": "b"}, "not in the file"),
        ({"last_value": None}, "last_value"),
        ({"generation": str(2**63 - 2)}, "generation"),
        ({"settings": {}}, "unknown field 'settings'"),
    ],
)
def test_an_invalid_period_is_reported(fields: dict[str, object], message: str) -> None:
    """The line of a period must match its sequence."""
    assert message in problem_of(BILLS, period(**fields))


def test_a_period_without_a_reset_is_reported() -> None:
    """A sequence without a reset has no periods."""
    assert "no reset" in problem_of(line(), period(sequence="a"))


def test_duplicate_lines_are_reported() -> None:
    """A sequence or period may occur only once."""
    assert "in line 2 already" in problem_of(line(), line())
    assert "in line 3 already" in problem_of(BILLS, period(), period())


@pytest.mark.parametrize(
    ("settings", "last_value", "message"),
    [
        ({"start": "1000", "min_value": "1000"}, 2, "at least 999"),
        ({"format": "N{value:03d}"}, -10, "at least 0"),
        ({"start": "100", "max_value": "100", "step": "-1"}, 102, "at most 101"),
    ],
)
def test_a_counter_before_the_start_is_reported(settings: dict[str, Any], last_value: int, message: str) -> None:
    """P1: a counter more than one step before the start is rejected."""
    assert message in problem_of(line(settings, last_value=str(last_value)))


@pytest.mark.parametrize(
    ("settings", "last_value"),
    [
        ({"kind": "TIMESTAMP_MS"}, 2**62),
        ({"kind": "TIMESTAMP_US"}, 253_402_300_800_000_000),
        ({"kind": "TIMESTAMP_MS", "max_value": str(2**53 - 1)}, 2**53),
    ],
)
def test_a_timestamp_out_of_range_is_reported(settings: dict[str, Any], last_value: int) -> None:
    """A timestamp that no clock can have issued is rejected."""
    assert "last_value" in problem_of(line(settings, last_value=str(last_value)))


@pytest.mark.parametrize(
    ("settings", "last_value", "counter"),
    [
        ({}, 41, 41),  # as in CrateDB's guide
        (TENS, 0, 0),
        (TENS, 37, 40),
        (TENS, 40, 40),
        (DOWN, 110, 110),
        (DOWN, 37, 30),
        ({"step": "-1"}, 500, 500),
        ({"max_value": "100"}, 500, 500),  # exhausted
        (TENS, MAX_ID, MAX_ID),  # no further lattice value fits in the store
        ({"step": "-10", "min_value": str(-(2**62))}, -(2**63) + 1, -(2**63) + 1),
    ],
)
def test_a_counter_is_aligned_to_the_lattice(settings: dict[str, Any], last_value: int, counter: int) -> None:
    """P1: a counter is aligned in the direction of the step, and exports to the same line."""
    content = json.dumps(line(settings, last_value=str(last_value))).encode()
    file = read_export([HEAD, content])
    assert file.problems == []
    assert file.items[0].row.last_value == counter
    # An exported line reads back as the same row.
    assert read_export([HEAD, row_line(file.items[0].row).encode()]).items[0].row == file.items[0].row


def test_a_period_counter_is_aligned_to_the_lattice() -> None:
    """P1: a period's counter is aligned to the lattice, and is not before the start."""
    numbers = enumerate((-5, 37, MAX_ID))
    periods = [period(period=str(2020 + at), last_value=str(last_value)) for at, last_value in numbers]
    lines = [BILLS | {"settings": YEARLY | TENS}, *periods]
    file = read_export([HEAD, *(json.dumps(each).encode() for each in lines)])
    assert file.problems == []
    assert [period.last_value for period in file.items[0].periods.values()] == [0, 40, MAX_ID]


def test_other_files_are_reported() -> None:
    """An empty file, or one of another version, is rejected."""
    assert read_export([]).problems
    assert read_export([json.dumps({"idalloc_export": 2}).encode()]).problems


@given(st.lists(st.binary() | JSON.map(lambda content: json.dumps(content).encode()), max_size=3), st.booleans())
@example([b"[" * 100_000], False)
@example([b'{"idalloc_export": ' + b"9" * 5_000], False)
def test_any_bytes_are_parsed_or_reported(lines: list[bytes], with_head: bool) -> None:
    """Any bytes are parsed, or reported in a short, printable message."""
    for problem in read_export([HEAD, *lines] if with_head else lines).problems:
        assert problem.message.isprintable()
        assert len(problem.message) < 1_000


@given(lines_with_faults())
@example([line(TENS, last_value="37")])
@example([BILLS | {"settings": YEARLY | TENS}, period(last_value=str(MAX_ID))])
def test_valid_lines_are_imported_and_stay_on_the_lattice(contents: Many[object]) -> None:
    """P1: what is parsed can be imported, issues ids on its lattice, and exports again."""

    async def import_and_export() -> None:
        file = read_export([HEAD, *(json.dumps(content).encode() for content in contents)])
        store = MemoryStore(FakeClock())
        importer = Importer(store, FakeClock())
        await importer.run(file)
        assert [problem.message for problem in importer.problems if "has no last_value" not in problem.message] == []
        for name, row in store.rows.items():
            name.encode()
            grant = None if row.deleted else await store.grant(name, 1, 0)
            if grant is not None and grant.granted:
                assert (grant.last_value - row.sequence.start) % row.sequence.step == 0
                assert row.sequence.min_value <= grant.last_value <= row.sequence.max_value
        written = [text.encode() async for text in export_lines(store)]
        again = Importer(MemoryStore(FakeClock()), FakeClock())
        await again.run(read_export(written))
        assert (again.problems, again.created) == ([], importer.created)

    asyncio.run(import_and_export())


UNSAFE = "a\x1b[2J\x7f\u202eb"


def test_unsafe_texts_are_replaced_and_reported() -> None:
    """Unsafe characters in descriptions and labels are replaced, and the line is imported."""
    settings = {"description": UNSAFE, "labels": {UNSAFE: UNSAFE, "k": "v"}}
    found = read_export([HEAD, json.dumps(line(settings)).encode(), json.dumps(line(sequence="b")).encode()])
    sequence = found.items[0].row.sequence
    clean = "a\ufffd[2J\ufffd\ufffdb"
    assert (sequence.description, dict(sequence.labels)) == (clean, {clean: clean, "k": "v"})
    assert not found.problems
    assert [(note.line, note.message.partition(":")[0]) for note in found.notes] == [(2, "description"), (2, "labels")]


def test_names_and_formats_are_imported_unchanged() -> None:
    """Names and formats are imported unchanged, even if create would reject them."""
    settings = {"format": "\u200f{value}"}
    found = read_export([HEAD, json.dumps(line(settings, sequence="\u200fb")).encode()])
    [item] = found.items
    assert (item.row.name, item.row.sequence.format) == ("\u200fb", "\u200f{value}")
    assert not found.problems
    assert not found.notes


def test_an_exported_line_is_safe_to_print() -> None:
    """Unsafe characters are escaped in exported lines, and read back unchanged."""
    row = read_export([HEAD, json.dumps(line()).encode()]).items[0].row
    written = row_line(row._replace(name="\u202e\x9b", sequence=replace(row.sequence, description=UNSAFE)))
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written)["settings"]["description"] == UNSAFE


@pytest.mark.parametrize("store", ["A b; x", "store", "e" * 31, "E" * 32, None, 7])
def test_only_a_name_of_a_store_is_read(store: object) -> None:
    """P3: the name in an export becomes that of a column; anything else is an error of line 1."""
    file = read_export([json.dumps({"idalloc_export": 1, "store": store}).encode()])
    assert [(each.line, "32 hexadecimal digits" in each.message) for each in file.problems] == [(1, True)]
    assert read_export([header_line("e" * 32).encode()]).store == "e" * 32
