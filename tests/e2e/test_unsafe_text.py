"""Texts of a hostile tenant, on a real server and its SQLite file."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from idalloc.v1 import sequences_pb2 as pb
from idalloc.v1.sequences_pb2_grpc import SequenceServiceStub
from tests.support.processes import Server, idalloc, running

pytestmark = pytest.mark.test_long

HOSTILE = "x\x1b]0;t\x07\x1b[2J\x9b1m\r\nPROVED\t\u202etxt\u2028y"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# The largest labels that a sequence may have.
LABELS = {f"{number:02}" + "\U00010348" * 61: "\U00010348" * 63 for number in range(64)}


def plant(database: Path, settings: dict[str, object], *names: str) -> None:
    """Insert rows directly, as an older server or another program did."""
    with closing(sqlite3.connect(database, isolation_level=None)) as db:
        for name in names:
            text = json.dumps({"start": 1, **settings})
            db.execute("INSERT INTO sequences (name, last_value, settings) VALUES (?, 0, ?)", (name, text))


@pytest.fixture
def server(tmp_path: Path) -> object:
    with running(tmp_path) as server:
        yield server


def test_control_characters_are_rejected_by_code_point(server: Server) -> None:
    """The error names the option, and the character by its code point."""
    done = idalloc(server, "sequences", "create", "orders", "--label", "k=a\x1b[2Jb")
    message = "INVALID_REQUEST: --label: must not have control characters or bidirectional marks; has U+001B\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)
    done = idalloc(server, "allocate", "a\u202eb")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("has U+202E\n")


@pytest.mark.timeout(180)
def test_stored_texts_are_printed_escaped(server: Server, tmp_path: Path) -> None:
    """Lists, fields, errors, exports and imports print stored texts escaped."""
    plant(tmp_path / "ids.db", {"description": HOSTILE, "labels": {HOSTILE: HOSTILE}}, "a\u202eb")
    store = f"sqlite://{tmp_path}/ids.db"
    (tmp_path / "bad.jsonl").write_text(json.dumps({"idalloc_export": 1}) + "\n" + json.dumps({"sequence": HOSTILE}))
    lines = {
        "sequences list": [],
        "sequences list --json": [],
        "sequences list --output table": [],
        "sequences show": ["a\u202eb"],
        "sequences show --output table": ["a\u202eb"],
        "allocate": ["a\u202eb", "2000000"],
        "sequences parse": ["a\u202eb", HOSTILE],
        "store export": ["--store", store],
        "store import": [str(tmp_path / "bad.jsonl"), "--store", store],
    }
    for line, more in lines.items():
        done = idalloc(server, *line.split(), *more)
        printed = done.stdout + done.stderr
        assert printed
        if line.startswith(("sequences list", "sequences show", "store export")):
            assert "\\u202e" in printed, line
        assert not UNSAFE.search(printed), (line, ascii(printed))
        assert not re.search("^PROVED", printed, re.MULTILINE), line


@pytest.mark.timeout(180)
def test_export_with_hostile_texts_is_imported(server: Server, tmp_path: Path) -> None:
    """An import keeps all names and counters; it replaces control characters in other texts."""
    plant(tmp_path / "ids.db", {"description": HOSTILE, "labels": {"k": HOSTILE}}, "a\u202eb", "orders")
    exported = idalloc(server, "store", "export", "--store", f"sqlite://{tmp_path}/ids.db").stdout
    (tmp_path / "all.jsonl").write_text(exported)
    done = idalloc(server, "store", "import", str(tmp_path / "all.jsonl"), "--store", f"sqlite://{tmp_path}/other.db")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("created 2,")
    assert done.stderr.count("were replaced by U+FFFD") == 4
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        rows = dict(db.execute("SELECT name, settings FROM sequences WHERE name > ' '").fetchall())
    assert set(rows) == {"a\u202eb", "orders"}
    assert not any(UNSAFE.search(text) or "\n" in text for row in rows.values() for text in _texts(json.loads(row)))


@pytest.mark.timeout(180)
def test_large_labels_do_not_break_lists(server: Server, tmp_path: Path) -> None:
    """At gRPC's limit of 4 MB, the largest page arrives, and all pages have all sequences."""
    names = [f"tenant-{number:03}" for number in range(200)]
    plant(tmp_path / "ids.db", {"labels": LABELS}, *names)
    received: list[str] = []
    with grpc.insecure_channel(server.address) as channel:
        stub, token = SequenceServiceStub(channel), ""
        while token or not received:
            page = stub.ListSequences(pb.ListSequencesRequest(page_size=1000, page_token=token), timeout=50)
            assert page.ByteSize() < 1_001_000
            received += [each.name for each in page.sequences]
            token = page.next_page_token
    assert received == names
    done = idalloc(server, "sequences", "list")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == names


def _texts(settings: dict[str, object]) -> list[str]:
    labels = settings.get("labels", {})
    assert isinstance(labels, dict)
    return [str(settings["description"]), *labels, *labels.values()]
