"""`idalloc verify` on invalid headers, exports, logs of nodes and paths."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from idalloc.cli import main
from idalloc.verify._logs import InvalidFile
from idalloc.verify._spans import MemoryLimits
from idalloc.verify._verdict import verify
from tests.support.planted_logs import Planted, PlantedLog, checked

RECORD = Planted(1, 10)


def valid_log(folder: Path) -> Path:
    return PlantedLog([RECORD]).write(folder / "valid.log")


@pytest.mark.parametrize(
    "header",
    [
        {"boot_time_ns": 2**63},
        {"boot_time_ns": 1.5},
        {"boot_time_ns": True},
        {"boot_id": 5},
        {"boot_id": "ä"},
        {"boot_offset_ns": "5"},
        {"boot_offset_ns": 10**30},
        {"idalloc_log": True},
        {"idalloc_log": 0},
        {"idalloc_log": 2.0},
    ],
)
def test_invalid_header_is_rejected(tmp_path: Path, header: dict[str, Any]) -> None:
    """P1: a log with an invalid header is never proved."""
    log = PlantedLog([RECORD])
    text = json.dumps(json.loads(log.header()) | header).encode()
    (tmp_path / "a.jsonl").write_bytes(text + b"\n")
    (tmp_path / "a.log").write_bytes(checked(b"IDALLOC\x02" + len(text).to_bytes(4, "little") + text))
    for path in tmp_path.iterdir():
        with pytest.raises(InvalidFile, match="header of this log is damaged"):
            verify([path])


@pytest.mark.parametrize("content", [b"", b"IDA", b"IDALLOC", b"IDALLOC\x02\x05", PlantedLog([]).rows()[:-1], b'{"id'])
def test_truncated_header_is_malformed(tmp_path: Path, content: bytes) -> None:
    """P1: a log that ends in its header is named, and all other files are checked."""
    path = tmp_path / "empty.log"
    path.write_bytes(content)
    found = verify([path, valid_log(tmp_path)])
    assert (found.findings.malformed, found.ids) == (1, 10)
    assert str(path) in found.findings.messages[0]


def test_unreadable_path_is_one_line_and_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P1: folders, pipes, and files that cannot be read are an error, with exit code 2."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in [tmp_path, tmp_path / "pipe", tmp_path / "loop", Path("/proc/self/mem"), tmp_path / "\udcff"]:
        assert main(["verify", str(valid_log(tmp_path)), str(path)]) == 2
        output = capsys.readouterr()
        assert (output.out, output.err.count("\n")) == ("", 1)


def test_file_names_are_escaped(tmp_path: Path) -> None:
    """The report escapes what the terminal cannot show."""
    path = PlantedLog([RECORD, RECORD]).write(tmp_path / "\udcff\u00e9.log")
    for flags in ([], ["--json"]):
        code = "import sys; from idalloc.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "verify", *flags, str(path)]
        done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=50)
        assert (done.returncode, done.stderr) == (1, b"")


def test_temporary_folder_failure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing temporary folder is an error with a message."""
    log = PlantedLog([Planted(number * 7, 1) for number in range(50)]).write(tmp_path / "a.log")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InvalidFile, match="cannot be read to their end"):
        verify([log], MemoryLimits(1, 1, 1))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"sequence": "orders", "last_value": str(2**63)}], "last_value must be"),
        ([{"sequence": "orders", "last_value": 10**30}], "last_value must be"),
        ([{"sequence": "orders", "last_value": "1_000"}], "last_value must be"),
        ([{"sequence": "orders", "last_value": " 5"}], "last_value must be"),
        ([{"sequence": "orders", "last_value": "\u0665"}], "last_value must be"),
        ([{"sequence": "orders", "last_value": True}], "last_value must be"),
        ([{"sequence": "orders", "last_value": 1.5}], "last_value must be"),
        ([{"sequence": "orders", "last_value": float("inf")}], "line 2"),
        ([{"sequence": "orders", "last_value": "5", "settings": []}], "settings must be"),
        ([{"sequence": "orders", "last_value": "5", "settings": {"step": "1e3"}}], "step must be"),
        ([{"sequence": "orders"}], "'last_value' is missing"),
        ([{"sequence": 5, "last_value": "5"}], "a name must be a string"),
        ([{"sequence": "\ud800", "last_value": "5"}], "line 2"),
        ([{"sequence": "orders\x1f2026", "last_value": "5"}], "control characters"),
        ([{"sequence": "orders", "period": "x", "last_value": "5"}], "invalid period"),
        ([{"sequence": "orders", "last_value": "5"}, {"sequence": "orders", "last_value": "500"}], "appears twice"),
        ([{"prefix": 1, "last_start": "5"}, {"prefix": 1, "last_start": "500"}], "appears twice"),
        ([{"prefix": 65_536, "last_start": "5"}], "prefix must be"),
        ([{"prefix": 1, "last_start": str(2**32)}], "last_start must be"),
        ([{"prefix": 1, "last_start": None}], "last_start must be"),
        ([{"idalloc_export": 1}], "first line"),
        ([{}], "'sequence' is missing"),
    ],
)
def test_invalid_export_is_rejected(tmp_path: Path, lines: list[dict[str, Any]], message: str) -> None:
    """P1: no invalid export raises a limit."""
    export = tmp_path / "export.jsonl"
    export.write_text("".join(f"{json.dumps(each)}\n" for each in [{"idalloc_export": 1}, *lines]))
    with pytest.raises(InvalidFile, match=message):
        verify([valid_log(tmp_path), export])


@pytest.mark.parametrize(
    "content", [b'{"idalloc_export": 2}\n', b'{"a": 1}\n{"idalloc_export": 1}\n', b"\xef\xbb\xbf{}"]
)
def test_export_of_another_format_is_rejected(tmp_path: Path, content: bytes) -> None:
    """P1: an export begins with its format."""
    (tmp_path / "export").write_bytes(content)
    with pytest.raises(InvalidFile, match="export"):
        verify([valid_log(tmp_path), tmp_path / "export"])


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": -5},
        {"ids": 2**63},
        {"ids": "5"},
        {"ids": True},
        {"ids": 1.5},
        {"ids": float("nan")},
        {"ids": float("inf")},
        {"sequence": None},
        {"sequence": "\ud800"},
        {"period": {}},
        {"cause": "\x1b[2J"},
        {"cause": 5},
    ],
)
def test_invalid_burned_line_is_malformed(tmp_path: Path, fields: dict[str, Any]) -> None:
    """P9: a damaged line explains no missing id."""
    valid = {"event": "burned", "sequence": "orders", "cause": "expired", "ids": 5}
    node = tmp_path / "node.log"
    text = [json.dumps({"event": "serving"}), json.dumps(valid | fields), json.dumps(valid), '{"event": "burned", "se']
    node.write_text("\n".join(text))
    verdict = verify([PlantedLog([RECORD]).write(tmp_path / "good.log"), node])
    assert verdict.findings.malformed == 1
    assert verdict.findings.messages == [f"{node}: line 2 is not a valid record of burned ids"]
    assert verdict.sequences[0].burned == {"expired": 5}
