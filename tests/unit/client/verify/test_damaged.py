"""`idalloc verify` on damaged and hostile files: they cause no traceback, and no proof of what they do not show."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from idalloc._issued_log.log import IssuedLog
from idalloc.cli import main
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.verify._logs import NoLog
from idalloc.verify._runs import Limits
from idalloc.verify._verdict import verify
from tests.support.planted_logs import BOOT_ID, Planted, PlantedLog, checked, row

REQUEST = "11111111-2222-4333-8444-555555555555"
# Alike in the first 8 of its 16 bytes.
ALIKE = "11111111-2222-4333-8444-666666666666"
DOCS = "00006b017bcf"
FORMS = pytest.mark.parametrize("name", ["a.log", "a.jsonl"])
GOOD = Planted(1, 10)


def findings(*paths: Path, limits: Limits | None = None) -> dict[str, int]:
    found = verify(paths, limits).findings
    counts = {"twice": found.twice, "disordered": found.disordered, "beyond": found.beyond}
    return {kind: count for kind, count in (counts | {"malformed": found.malformed}).items() if count}


def examples(*paths: Path) -> str:
    return "\n".join(verify(paths).findings.messages)


def good(folder: Path) -> Path:
    return PlantedLog([GOOD]).write(folder / "good.log")


def lines(folder: Path, *more: bytes) -> Path:
    return PlantedLog([GOOD], more=b"".join(more)).write(folder / "damaged.jsonl")


def line(**fields: Any) -> bytes:
    record = json.loads(PlantedLog([Planted(11, 5)]).lines().splitlines()[1])
    return json.dumps(record | fields).encode() + b"\n"


# Repeats that a request id excuses.


@FORMS
def test_requests_alike_in_one_half_excuse_no_repeat(tmp_path: Path, name: str) -> None:
    """P1: only an equal request id makes the same range a retry."""
    records = [Planted(1, 3, request_id=REQUEST), Planted(1, 3, request_id=ALIKE)]
    assert findings(PlantedLog(records).write(tmp_path / name)) == {"twice": 3}
    other_half = Planted(1, 3, request_id=ALIKE.replace("1", "2"))
    assert findings(PlantedLog([records[1], other_half]).write(tmp_path / f"2{name}")) == {"twice": 3}


@FORMS
@pytest.mark.parametrize(
    "other",
    [
        Planted(1, 4, request_id=REQUEST, generation=2),
        Planted(4, 4, request_id=REQUEST, step=-1),
        Planted(1, 5, request_id=REQUEST),
        Planted(1, 2, request_id=REQUEST, step=3),
    ],
)
@pytest.mark.parametrize("limits", [Limits(), Limits(1, 1, 1)])
def test_a_retry_is_equal_in_everything(tmp_path: Path, name: str, other: Planted, limits: Limits) -> None:
    """P1: another range, direction or generation under the same request id is a repeat."""
    log = PlantedLog([Planted(1, 4, request_id=REQUEST), other, Planted(9, 1)]).write(tmp_path / name)
    assert findings(log, limits=limits)["twice"] >= 1


def test_a_retry_is_known_in_any_case_and_form(tmp_path: Path) -> None:
    """P7: the same request id in upper case, and in the other form of a log, is the same one."""
    records = [Planted(1, 3, request_id=REQUEST.replace("5", "a")), Planted(7, 3)]
    one = PlantedLog(records[:1]).write(tmp_path / "1.log")
    other = PlantedLog(records).write(tmp_path / "2.jsonl")
    other.write_text(other.read_text().replace("aaaaaaaaaaaa", "AAAAAAAAAAAA"))
    assert findings(one, other) == {}


def test_half_a_request_id_excuses_no_repeat(tmp_path: Path) -> None:
    """P1: rows of format 1 have half of the request id, which cannot show that a repeat is a retry."""
    log = PlantedLog([Planted(1, 3, request_id=REQUEST)] * 2, form=1).write(tmp_path / "old.log")
    assert findings(log) == {"twice": 3}
    assert "half of the request id" in examples(log)


# Logs of format 1.


@FORMS
def test_logs_of_the_first_format_are_read(tmp_path: Path, name: str) -> None:
    """P1: a repeat is found in and across logs of format 1."""
    records = [Planted(1, 10), Planted(11, 10, period="2026"), Planted(1, 4, doc_ids=DOCS), Planted(21, 5, rising=True)]
    old = PlantedLog(records, form=1).write(tmp_path / name)
    verdict = verify([old])
    assert (verdict.ids, verdict.records, verdict.findings.any) == (29, 4, False)
    assert findings(old, good(tmp_path)) == {"twice": 10}


@FORMS
def test_old_logs_do_not_say_whose_clock_they_go_by(tmp_path: Path, name: str) -> None:
    """P5: the order of two logs is compared only where both say how far their clocks are from the machine's."""
    early, late = Planted(11, 10, 0, 1, node=7), Planted(1, 10, 2, 3, node=7)
    old = PlantedLog([early], form=1).write(tmp_path / name)
    new = PlantedLog([late]).write(tmp_path / f"new-{name}")
    unknown = PlantedLog([late], boot_offset=None).write(tmp_path / f"unknown-{name}")
    assert findings(old, new) == findings(PlantedLog([early]).write(tmp_path / f"2-{name}"), unknown) == {}
    assert findings(PlantedLog([early, late], form=1).write(tmp_path / f"both-{name}")) == {"disordered": 1}


# Clocks.


@FORMS
@pytest.mark.parametrize("offset", [-50, 50])
def test_order_is_compared_on_the_machines_clock(tmp_path: Path, name: str, offset: int) -> None:
    """P5: clocks of several time namespaces are brought to the machine's before times are compared."""
    here = PlantedLog([Planted(11, 10, 100, 101, node=7)]).write(tmp_path / name)
    record = Planted(1, 10, 110 + offset, 111 + offset, node=7)
    late = PlantedLog([record], boot_offset=offset).write(tmp_path / f"late-{name}")
    assert findings(here, late) == {"disordered": 1}
    record = Planted(21, 10, 110 + offset, 111 + offset, node=7)
    assert findings(here, PlantedLog([record], boot_offset=offset).write(tmp_path / f"next-{name}")) == {}


def test_a_boot_id_is_the_same_in_upper_case(tmp_path: Path) -> None:
    """P5: two spellings of a boot id are one machine."""
    early = PlantedLog([Planted(11, 10, 0, 1, node=7)]).write(tmp_path / "1.log")
    late = PlantedLog([Planted(1, 10, 2, 3, node=7)], boot_id=BOOT_ID.upper()).write(tmp_path / "2.log")
    assert findings(early, late) == {"disordered": 1}


WRITE = """
import sys
from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
log = IssuedLog(sys.argv[1])
ids = pb.IdRange(first_id=int(sys.argv[2]), last_id=int(sys.argv[2]) + 9, step=1, id_count=10)
reply = pb.AllocateRangeResponse(range=ids, node_id=7, generation=1)
log.range(pb.AllocateRangeRequest(sequence="orders"), reply, log.now())
"""


@pytest.mark.parametrize("form", ["log", "jsonl"])
def test_logs_of_real_time_namespaces_are_in_order(tmp_path: Path, form: str) -> None:
    """P5: a container with a boot clock of its own raises no false alarm, and hides no disorder."""
    unshare = ["unshare", *(["--user", "--map-root-user"] if os.getuid() else []), "--time", "--boottime", "86400"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "--fork", "true"], check=False).returncode:
        pytest.skip("time namespaces cannot be made here")
    paths = [tmp_path / f"{number}.{form}" for number in range(3)]
    for path, first, command in zip(paths, [11, 21, 1], [[*unshare, "--fork"], [], [*unshare, "--fork"]], strict=True):
        subprocess.run([*command, sys.executable, "-c", WRITE, str(path), str(first)], check=True, timeout=50)
    assert findings(*paths[:2]) == {}
    assert findings(paths[1], paths[2]) == {"disordered": 1}


# Lines and rows.


@pytest.mark.parametrize(
    "damaged",
    [
        line(first=float("nan")),
        line(first=float("inf")),
        line(first=True),
        line(first=11.0),
        line(count=10**30),
        line(rising=1),
        line(rising=float("inf")),
        line(node=None),
        line(node=False),
        line(generation="1"),
        line(asked=-(2**63), answered=2**63),
        line(sequence=""),
        line(sequence="a\x00b"),
        line(sequence="orders\x1f2026"),
        line(sequence="x" * 256),
        line(sequence="\ud800"),
        line(sequence=["orders"]),
        line(period="26"),
        line(period=2026),
        line(perid="2026"),
        line(doc_id="0" * 28),
        line(request_id="{11111111-2222-4333-8444-555555555555}"),
        line(request_id="0" * 32),
        line(request_id="00000000-0000-0000-0000-000000000000"),
        line().replace(b'"first": 11', b'"first": 1e400'),
        line().replace(b'"first": 11', b'"first": ' + b"9" * 5000),
        line().replace(b'"first": 11', b'"first": 11, "first": 99'),
        line().replace(b'"first": 11', b'"first": 99, "fir\\u0073t": 11'),
        line().replace(b'"orders"', b"[" * 3000 + b"]" * 3000),
        line().replace(b"orders", b"ord\xff"),
        line().replace(b"orders", b"ord\x00"),
        line()[:-1].decode().encode("utf-16") + b"\n",
        b"\xef\xbb\xbf" + line(),
        b"\0" * 100 + b"\n",
        line()[:-1] + line(),
        line()[:20] + line(),
        b"x" * 200_000 + b"\n",
        b'{"doc_id": "00006B017BCF0000000000000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
        b'{"doc_id": "zzzz6b017bcf0000000000000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
        b'{"doc_id": "00006b017bcf0x00000000000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
        b'{"doc_id": "00006b017bcf00000000_0000001", "step": 1, "count": 1, "asked": 1, "answered": 2}\n',
    ],
)
def test_a_line_that_no_client_writes_is_malformed(tmp_path: Path, damaged: bytes) -> None:
    """P1: a line is counted and named, and what lies around it is looked at."""
    path = lines(tmp_path, damaged, line(first=101))
    verdict = verify([path])
    assert verdict.findings.malformed == damaged.count(b"\n")
    assert verdict.findings.messages[0].startswith(f"{path}: line 3 ")
    assert verdict.ids == 15


@pytest.mark.parametrize("end", range(1, len(line(rising=True, node=1, sequence="größe")) - 1))
def test_a_line_that_its_writer_left_is_cut(tmp_path: Path, end: int) -> None:
    """P1: the beginning of a record at the end of a file is what a kill leaves."""
    verdict = verify([lines(tmp_path, line(rising=True, node=1, sequence="größe")[:end])])
    assert (verdict.findings.any, len(verdict.cut), verdict.ids) == (False, 1, 10)


@pytest.mark.parametrize(
    "end", [line()[:-1] + b" " + line()[:30], line()[:-2] + b"]", b"\0" * 50, b"x" * 99, b"[", line(first="x")[:-1]]
)
def test_an_end_that_no_kill_leaves_is_malformed(tmp_path: Path, end: bytes) -> None:
    """P1: no whole record is lost in what looks like half of one."""
    assert findings(lines(tmp_path, end)) == {"malformed": 1}


def test_any_bit_that_flips_in_a_row_is_found(tmp_path: Path) -> None:
    """P1: no damage of a binary log can hide an id: each row has a check."""
    records = [Planted(1, 10), Planted(1, 5, sequence="b" * 100, request_id=REQUEST), Planted(1, 3, doc_ids=DOCS)]
    sound, path = PlantedLog(records).rows(), tmp_path / "a.log"
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :])
        try:
            assert findings(path).get("malformed"), at
        except NoLog:  # in the header
            assert at < 3 * 88
    path.write_bytes(sound)
    assert findings(path) == {}


@pytest.mark.parametrize("form", [1, 2])
@pytest.mark.parametrize("length", [1, 5, 7, 80, 150, 230, 300, 500])
def test_a_damaged_length_swallows_no_records(tmp_path: Path, form: int, length: int) -> None:
    """P1: a name of another length than its text is malformed, and the records behind it are looked at."""
    whole = PlantedLog([Planted(1, 10), Planted(5, 1), Planted(100, 1)], form=form).rows()
    name = row(form, kind=2, name=0, count=6)
    assert whole.count(name) == 1
    path = tmp_path / "a.log"
    path.write_bytes(whole.replace(name, row(form, kind=2, name=0, count=length)))
    assert findings(path)["malformed"] >= 1
    # The same where the name is known already.
    path.write_bytes(whole + row(form, kind=2, name=0, count=length) + whole[-4 * len(name) :])
    found = findings(path)
    assert found["malformed"] >= 1
    assert found["twice"] == 13


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (row(flags=3, step=1, count=1), "has fields that no record has"),
        (row(flags=128, step=1, count=1), "has fields that no record has"),
        (checked(b"\x01\x00\x01" + row(step=1, count=1, first=99)[3:84]), "has fields that no record has"),
        (checked(row(step=1, count=1, first=99)[:80] + b"\1"), "has fields that no record has"),
        (row(flags=2, step=1, count=1, name=1, node=5), "has fields that no record has"),
        (row(flags=2, step=1, count=1, name=1, request=5), "has fields that no record has"),
        (row(flags=2, step=1, count=1), "has a name that was not introduced"),
        (row(kind=2, name=0, count=1) + checked(b"b"), "has the number of another name"),
        (row(kind=2, name=5, count=3) + checked(b"a\x00b"), "is no sequence, no period"),
        (row(kind=2, name=5, count=3) + checked(b"a\x1fb"), "is no sequence, no period"),
        (row(kind=2, name=5, count=3, node=1) + checked(b"abc"), "is neither a record nor a name"),
        (row(step=1, count=1, first=99, asked=-5, answered=5), "such times cannot be"),
        (row(step=1, count=1, first=99, asked=-(2**63), answered=2**63 - 1), "such times cannot be"),
    ],
)
def test_a_row_that_no_client_writes_is_malformed(tmp_path: Path, more: bytes, why: str) -> None:
    """P1: a row whose check is right and whose fields are not is counted and named."""
    more = row(kind=2, name=1, count=12) + checked(DOCS.encode()) + more
    path = PlantedLog([GOOD], more=more).write(tmp_path / "a.log")
    assert "malformed" in findings(path)
    assert why in examples(path)


@FORMS
@pytest.mark.parametrize("first", [Planted(2**63 - 1, 1, -1, 5), Planted(5, 1, -(10**18) * 4, 10**18 * 4)])
def test_times_at_the_ends_of_all_numbers_are_compared(tmp_path: Path, name: str, first: Planted) -> None:
    """P1: no time makes the verifier fail or wrap around."""
    verify([PlantedLog([first, Planted(1, 1, 5, 6, node=1), Planted(9, 1, 7, 8, node=1)]).write(tmp_path / name)])


# Headers and files.


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
def test_a_header_that_no_client_writes_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    """P1: a log whose header cannot be is never proved."""
    log = PlantedLog([GOOD])
    text = json.dumps(json.loads(log.header()) | header).encode()
    (tmp_path / "a.jsonl").write_bytes(text + b"\n")
    (tmp_path / "a.log").write_bytes(checked(b"IDALLOC\x02" + len(text).to_bytes(4, "little") + text))
    for path in tmp_path.iterdir():
        with pytest.raises(NoLog, match="header of this log is damaged"):
            verify([path])


@pytest.mark.parametrize("content", [b"", b"IDA", b"IDALLOC", b"IDALLOC\x02\x05", PlantedLog([]).rows()[:-1], b'{"id'])
def test_a_file_that_ends_in_its_header_is_malformed(tmp_path: Path, content: bytes) -> None:
    """P1: it is named, and all other files are looked at."""
    path = tmp_path / "empty.log"
    path.write_bytes(content)
    found = verify([path, good(tmp_path)])
    assert (found.findings.malformed, found.ids) == (1, 10)
    assert str(path) in found.findings.messages[0]


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """P1: folders, pipes, and files that cannot be read are an error, with exit code 2."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in [tmp_path, tmp_path / "pipe", tmp_path / "loop", Path("/proc/self/mem"), tmp_path / "\udcff"]:
        assert main(["verify", str(good(tmp_path)), str(path)]) == 2
        output = capsys.readouterr()
        assert (output.out, output.err.count("\n")) == ("", 1)


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    """P1: the report escapes what the terminal cannot show."""
    path = PlantedLog([GOOD, GOOD]).write(tmp_path / "\udcff\u00e9.log")
    for flags in ([], ["--json"]):
        code = "import sys; from idalloc.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", code, "verify", *flags, str(path)]
        done = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=50)
        assert (done.returncode, done.stderr) == (1, b"")


def test_a_folder_for_temporary_files_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: what the machine refuses is an error in words."""
    log = PlantedLog([Planted(number * 7, 1) for number in range(50)]).write(tmp_path / "a.log")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(NoLog, match="cannot be read to their end"):
        verify([log], Limits(1, 1, 1))


# Exports and logs of nodes.


@pytest.mark.parametrize(
    ("lines", "why"),
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
        ([{"sequence": 5, "last_value": "5"}], "a name is no text"),
        ([{"sequence": "\ud800", "last_value": "5"}], "line 2"),
        ([{"sequence": "orders\x1f2026", "last_value": "5"}], "control characters"),
        ([{"sequence": "orders", "period": "x", "last_value": "5"}], "no such period"),
        ([{"sequence": "orders", "last_value": "5"}, {"sequence": "orders", "last_value": "500"}], "already"),
        ([{"prefix": 1, "last_start": "5"}, {"prefix": 1, "last_start": "500"}], "already"),
        ([{"prefix": 65_536, "last_start": "5"}], "prefix must be"),
        ([{"prefix": 1, "last_start": str(2**32)}], "last_start must be"),
        ([{"prefix": 1, "last_start": None}], "last_start must be"),
        ([{"idalloc_export": 1}], "first line"),
        ([{}], "'sequence' is missing"),
    ],
)
def test_an_export_that_no_server_writes_is_refused(tmp_path: Path, lines: list[dict[str, Any]], why: str) -> None:
    """P1: no export raises a limit by what cannot be."""
    export = tmp_path / "export.jsonl"
    export.write_text("".join(f"{json.dumps(each)}\n" for each in [{"idalloc_export": 1}, *lines]))
    with pytest.raises(NoLog, match=why):
        verify([good(tmp_path), export])


@pytest.mark.parametrize(
    "content", [b'{"idalloc_export": 2}\n', b'{"a": 1}\n{"idalloc_export": 1}\n', b"\xef\xbb\xbf{}"]
)
def test_an_export_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    """P1: an export begins with its format."""
    (tmp_path / "export").write_bytes(content)
    with pytest.raises(NoLog, match="export"):
        verify([good(tmp_path), tmp_path / "export"])


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
def test_burned_ids_that_no_node_logs_are_malformed(tmp_path: Path, fields: dict[str, Any]) -> None:
    """P9: a damaged line explains no missing id."""
    sound = {"event": "burned", "sequence": "orders", "cause": "expired", "ids": 5}
    node = tmp_path / "node.log"
    text = [json.dumps({"event": "serving"}), json.dumps(sound | fields), json.dumps(sound), '{"event": "burned", "se']
    node.write_text("\n".join(text))
    verdict = verify([PlantedLog([GOOD]).write(tmp_path / "good.log"), node])
    assert verdict.findings.malformed == 1
    assert verdict.findings.messages == [f"{node}: line 2 is no record of burned ids"]
    assert verdict.sequences[0].burned == {"expired": 5}


def test_a_log_says_how_far_its_clock_is_from_the_machines(tmp_path: Path) -> None:
    """P5: a client's header has the offset of its time namespace, or null."""
    log = IssuedLog(tmp_path / "a.jsonl")
    log.range(pb.AllocateRangeRequest(sequence="a"), pb.AllocateRangeResponse(), log.now())
    header = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    offset = header["boot_offset_ns"]
    assert offset is None or isinstance(offset, int)


# Hides the time namespace of the shell, then becomes the command.
OLD_KERNEL = 'mount -t tmpfs none /proc/$$/ns && touch /proc/$$/ns/uts && exec "$@"'


def test_a_kernel_without_time_namespaces_has_one_clock(tmp_path: Path) -> None:
    """P5: the order of logs is compared on kernels without time namespaces, which have one boot clock."""
    unshare = [
        "unshare",
        *(["--user", "--map-root-user"] if os.getuid() else []),
        "--mount",
        "sh",
        "-c",
        OLD_KERNEL,
        "sh",
    ]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("the namespaces of a process cannot be hidden here")
    paths = [tmp_path / "late.log", tmp_path / "early.log"]
    for path, first in zip(paths, [11, 1], strict=True):
        subprocess.run([*unshare, sys.executable, "-c", WRITE, str(path), str(first)], check=True, timeout=50)
    assert findings(*paths) == {"disordered": 1}
