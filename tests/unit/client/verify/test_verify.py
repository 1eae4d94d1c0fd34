"""`idalloc verify`: malformed and incomplete logs, its report and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from idalloc.cli import main
from tests.support.planted_logs import BOOT_TIME, Planted, PlantedLog, checked, row
from tests.support.verify_command import VerifyCommand


@pytest.mark.parametrize(
    "record",
    [
        Planted(1, 0),
        Planted(1, -3),
        Planted(1, 3, step=0),
        Planted(1, 1, step=-(2**63)),
        Planted(2**63 - 2, 3),
        Planted(-(2**63) + 5, 3, step=-4),
        Planted(1, 2**62, step=4),
        Planted(5, 1, 10, 9),
    ],
)
def test_invalid_record_is_malformed(verifier: VerifyCommand, record: Planted) -> None:
    """A record with impossible ids or times is malformed; the others are checked."""
    log = verifier.log(Planted(10**6, 5), record, Planted(2 * 10**6, 5))
    assert verifier.finds(str(log), malformed=1)["records"] == 3


@pytest.mark.parametrize("record", ["{", "[]", "1", "", '{"sequence": "orders"}', '{"doc_id": "00"}'])
def test_unreadable_line_is_malformed(tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str) -> None:
    """A line that is not a record is named and counted; the others are checked."""
    verifier = VerifyCommand(tmp_path, "jsonl", capsys)
    line = PlantedLog([Planted(11, 5)]).lines().splitlines(keepends=True)[1]
    log = verifier.log(Planted(1, 10), more=record.encode() + b"\n" + line)
    assert verifier.finds(f"{log}: line 3 is not a valid record", malformed=1)["ids"] == 15


@pytest.mark.parametrize(
    ("field", "value"), [("first", "1"), ("first", 1.5), ("first", 2**63), ("sequence", 7), ("request_id", "x")]
)
def test_line_with_invalid_field_is_malformed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    """A line with a field of a wrong type or range is malformed."""
    verifier = VerifyCommand(tmp_path, "jsonl", capsys)
    line = json.loads(PlantedLog([Planted(11, 5)]).lines().splitlines()[1]) | {field: value}
    verifier.log(Planted(1, 10), more=json.dumps(line).encode() + b"\n")
    assert verifier.finds("line 3 is not a valid record", malformed=1)["records"] == 1


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (bytes(88), "row 5 is damaged"),
        (checked(bytes(84)), "row 5 is neither a record nor a name"),
        (row(kind=2, name=1, count=-1), "row 5 is neither a record nor a name"),
        (row(kind=2, name=1, count=2) + checked(b"a\xff"), "the name in row 5 is not UTF-8"),
        (row(name=9, step=1, count=1), "refers to an undefined name"),
    ],
)
def test_unreadable_row_is_malformed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bytes, message: str
) -> None:
    """A damaged row is named and counted; the others are checked."""
    verifier = VerifyCommand(tmp_path, "log", capsys)
    after = row(first=11, step=1, count=5, generation=1, asked=BOOT_TIME, answered=BOOT_TIME)
    verifier.log(Planted(1, 10), more=damaged + after)
    assert verifier.finds(message, malformed=1)["ids"] == 15


def test_log_without_records_is_valid(verifier: VerifyCommand) -> None:
    """A log without records is no finding."""
    verifier.log()
    assert verifier.passes()["ids"] == 0


def test_record_cut_by_a_kill_is_reported(verifier: VerifyCommand) -> None:
    """A record that a killed writer left incomplete is reported as cut, not as a finding."""
    whole = verifier.log(Planted(1, 10))
    cut = verifier.log(Planted(11, 10))
    cut.write_bytes(cut.read_bytes()[:-1])
    report = verifier.passes()
    # The last line lacks only its line end.
    assert report["ids"] == (20 if verifier.suffix == "jsonl" else 10)
    cut.write_bytes(cut.read_bytes()[:-9])
    report = verifier.passes()
    assert (report["ids"], report["truncated"]) == (10, [str(cut)])
    assert str(whole) not in report["truncated"]


def test_name_cut_by_a_kill_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that a killed writer left incomplete is reported as cut."""
    verifier = VerifyCommand(tmp_path, "log", capsys)
    log = verifier.log(Planted(1, 10), more=row(kind=2, name=1, count=100) + checked(b"a" * 84))
    assert verifier.passes()["truncated"] == [str(log)]


def test_names_that_resemble_rows_are_read(verifier: VerifyCommand) -> None:
    """Names of any length are read, even if their text looks like a row."""
    names = ["IDALLOC" * 20, "é" * 127, "a" * 255]
    verifier.log(*(Planted(1, 10, number, sequence=name) for number, name in enumerate(names)))
    assert sorted(each["sequence"] for each in verifier.passes()["sequences"]) == sorted(names)


def test_text_report_has_the_verdict(verifier: VerifyCommand, capsys: pytest.CaptureFixture[str]) -> None:
    """The text report is PROVED with exit code 0, or WRONG with 1."""
    verifier.log(Planted(1, 1_000), Planted(2_001, 10, period="2026"))
    assert main(["verify", *map(str, verifier.files)]) == 0
    output = capsys.readouterr().out
    assert "PROVED for 1,010 ids in 2 records of 1 log," in output
    assert "no export to compare with" in output
    assert "orders 2026" in output
    verifier.log(Planted(1_000, 1))
    assert main(["verify", *map(str, verifier.files)]) == 1
    assert "WRONG in 1,010 ids in 3 records of 2 logs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"some text\n", "is not a log"),
        (b"\xff\xfe\x00", "is not a log"),
        (b'{"a": 1}\n', "is not a log"),
        (b"[" * 100_000, "is not a log"),
        (b"IDALLOC\x02", "ends in its header"),
        (PlantedLog([]).rows()[:-1], "ends in its header"),
        (checked(b"IDALLOC\x02\x02\x00\x00\x00[]"), "header of this log is damaged"),
        (b"IDALLOC\x02\x02\x00\x00\x00{}" + bytes(74), "header of this log is damaged"),
        (b'{"idalloc_log":2}\n', "header of this log is damaged"),
        (b'{"idalloc_log":1,"boot_id":"","boot_time_ns":1}\n', "format 1"),
        (b"IDALLOC\x01" + bytes(80), "format 1"),
        (b'{"idalloc_log":3,"boot_id":"","boot_time_ns":1}\n', "format 3"),
        (b"IDALLOC\x03" + bytes(80), "format 3"),
        (b'{"idalloc_export": 1}\n{"sequence": "a", "last_value": "x"}\n', "line 2 of this export"),
        (b'{"idalloc_export": 1}\n', "none of these files is a log of issued ids"),
    ],
)
def test_invalid_file_is_one_line_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, message: str
) -> None:
    """A file that is not a log, or is damaged, is one line with exit code 2."""
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert main(["verify", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert message in output.err
    assert output.err.count("\n") == 1


def test_verify_without_a_file_shows_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file, the error names the argument."""
    assert main(["verify"]) == 2
    assert "FILE" in capsys.readouterr().err


def test_missing_numpy_names_the_extra_to_install(tmp_path: Path) -> None:
    """Without numpy, the error names what to install."""
    log = PlantedLog([]).write(tmp_path / "x.log")
    code = (
        "import sys; sys.modules['numpy'] = None; from idalloc.cli import main; sys.exit(main(['verify', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "idalloc verify needs the package numpy: pip install 'idalloc[verify]'\n"
