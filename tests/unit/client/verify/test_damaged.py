"""`idalloc verify` on damaged and hostile logs: no traceback, and no wrong proof."""

import json
from pathlib import Path
from typing import Any

import pytest

from idalloc.verify._logs import InvalidFile
from idalloc.verify._verdict import verify
from tests.support.planted_logs import Planted, PlantedLog, checked, row
from tests.support.verify_command import findings_of, messages_of

REQUEST = "11111111-2222-4333-8444-555555555555"
DOCS = "00006b017bcf"
RECORD = Planted(1, 10)


def valid_log(folder: Path) -> Path:
    return PlantedLog([RECORD]).write(folder / "good.log")


def log_with_lines(folder: Path, *more: bytes) -> Path:
    return PlantedLog([RECORD], more=b"".join(more)).write(folder / "damaged.jsonl")


def json_line(**fields: Any) -> bytes:
    record = json.loads(PlantedLog([Planted(11, 5)]).lines().splitlines()[1])
    return json.dumps(record | fields).encode() + b"\n"


@pytest.mark.parametrize(
    "damaged",
    [
        json_line(first=float("nan")),
        json_line(first=float("inf")),
        json_line(first=True),
        json_line(first=11.0),
        json_line(count=10**30),
        json_line(rising=1),
        json_line(rising=float("inf")),
        json_line(node=None),
        json_line(node=False),
        json_line(generation="1"),
        json_line(asked=-(2**63), answered=2**63),
        json_line(sequence=""),
        json_line(sequence="a\x00b"),
        json_line(sequence="orders\x1f2026"),
        json_line(sequence="x" * 256),
        json_line(sequence="\ud800"),
        json_line(sequence=["orders"]),
        json_line(period="26"),
        json_line(period=2026),
        json_line(perid="2026"),
        json_line(doc_id="0" * 28),
        json_line(request_id="{11111111-2222-4333-8444-555555555555}"),
        json_line(request_id="0" * 32),
        json_line(request_id="00000000-0000-0000-0000-000000000000"),
        json_line().replace(b'"first": 11', b'"first": 1e400'),
        json_line().replace(b'"first": 11', b'"first": ' + b"9" * 5000),
        json_line().replace(b'"first": 11', b'"first": 11, "first": 99'),
        json_line().replace(b'"first": 11', b'"first": 99, "fir\\u0073t": 11'),
        json_line().replace(b'"orders"', b"[" * 3000 + b"]" * 3000),
        json_line().replace(b"orders", b"ord\xff"),
        json_line().replace(b"orders", b"ord\x00"),
        json_line()[:-1].decode().encode("utf-16") + b"\n",
        b"\xef\xbb\xbf" + json_line(),
        b"\0" * 100 + b"\n",
        json_line()[:-1] + json_line(),
        json_line()[:20] + json_line(),
        b"x" * 200_000 + b"\n",
        b'{"doc_id": "00006B017BCF0000000000000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
        b'{"doc_id": "zzzz6b017bcf0000000000000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
        b'{"doc_id": "00006b017bcf0x00000000000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
        b'{"doc_id": "00006b017bcf00000000_0000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
    ],
)
def test_invalid_line_is_malformed(tmp_path: Path, damaged: bytes) -> None:
    """P1: an invalid line is counted and named, and the lines around it are checked."""
    path = log_with_lines(tmp_path, damaged, json_line(first=101))
    verdict = verify([path])
    assert verdict.findings.malformed == damaged.count(b"\n")
    assert verdict.findings.messages[0].startswith(f"{path}: line 3 ")
    assert verdict.ids == 15


@pytest.mark.parametrize("end", range(1, len(json_line(rising=True, node=1, sequence="größe")) - 1))
def test_line_cut_at_any_byte_is_reported_as_cut(tmp_path: Path, end: int) -> None:
    """P1: the beginning of a record at the end of a file is what a killed writer leaves."""
    verdict = verify([log_with_lines(tmp_path, json_line(rising=True, node=1, sequence="größe")[:end])])
    assert (verdict.findings.any, len(verdict.truncated), verdict.ids) == (False, 1, 10)


@pytest.mark.parametrize(
    "end",
    [
        json_line()[:-1] + b" " + json_line()[:30],
        json_line()[:-2] + b"]",
        b"\0" * 50,
        b"x" * 99,
        b"[",
        json_line(first="x")[:-1],
    ],
)
def test_invalid_last_line_is_malformed(tmp_path: Path, end: bytes) -> None:
    """P1: a last line that is not the beginning of a record is malformed."""
    assert findings_of(log_with_lines(tmp_path, end)) == {"malformed": 1}


def test_any_flipped_bit_is_found(tmp_path: Path) -> None:
    """P1: no damage of a binary log can hide an id: each row has a checksum."""
    records = [Planted(1, 10), Planted(1, 5, sequence="b" * 100, request_id=REQUEST), Planted(1, 3, doc_ids=DOCS)]
    valid, path = PlantedLog(records).rows(), tmp_path / "a.log"
    for at in range(len(valid)):
        path.write_bytes(valid[:at] + bytes([valid[at] ^ 1 << at % 8]) + valid[at + 1 :])
        try:
            assert findings_of(path).get("malformed"), at
        except InvalidFile:  # in the header
            assert at < 3 * 88
    path.write_bytes(valid)
    assert findings_of(path) == {}


@pytest.mark.parametrize("length", [1, 5, 7, 80, 150, 230, 300, 500])
def test_damaged_length_hides_no_records(tmp_path: Path, length: int) -> None:
    """P1: a name with a wrong length is malformed, and the records behind it are checked."""
    whole = PlantedLog([Planted(1, 10), Planted(5, 1), Planted(100, 1)]).rows()
    name = row(kind=2, name=0, count=6)
    assert whole.count(name) == 1
    path = tmp_path / "a.log"
    path.write_bytes(whole.replace(name, row(kind=2, name=0, count=length)))
    assert findings_of(path)["malformed"] >= 1
    # The same for a name that was defined before.
    path.write_bytes(whole + row(kind=2, name=0, count=length) + whole[-4 * len(name) :])
    found = findings_of(path)
    assert found["malformed"] >= 1
    assert found["duplicates"] == 13


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (row(flags=3, step=1, count=1), "has invalid fields"),
        (row(flags=128, step=1, count=1), "has invalid fields"),
        (checked(b"\x01\x00\x01" + row(step=1, count=1, first=99)[3:84]), "has invalid fields"),
        (checked(row(step=1, count=1, first=99)[:80] + b"\1"), "has invalid fields"),
        (row(flags=2, step=1, count=1, name=1, node=5), "has invalid fields"),
        (row(flags=2, step=1, count=1, name=1, request=5), "has invalid fields"),
        (row(flags=2, step=1, count=1), "refers to an undefined name"),
        (row(kind=2, name=0, count=1) + checked(b"b"), "has the number of another name"),
        (row(kind=2, name=5, count=3) + checked(b"a\x00b"), "is not a sequence, a period"),
        (row(kind=2, name=5, count=3) + checked(b"a\x1fb"), "is not a sequence, a period"),
        (row(kind=2, name=5, count=3, node=1) + checked(b"abc"), "is neither a record nor a name"),
        (row(step=1, count=1, first=99, asked=-5, answered=5), "invalid times"),
        (row(step=1, count=1, first=99, asked=-(2**63), answered=2**63 - 1), "invalid times"),
    ],
)
def test_invalid_row_is_malformed(tmp_path: Path, more: bytes, message: str) -> None:
    """P1: a row with a valid checksum and invalid fields is counted and named."""
    more = row(kind=2, name=1, count=12) + checked(DOCS.encode()) + more
    path = PlantedLog([RECORD], more=more).write(tmp_path / "a.log")
    assert "malformed" in findings_of(path)
    assert message in messages_of(path)
