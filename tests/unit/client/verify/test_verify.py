"""`idalloc verify`: it finds each kind of fault that is planted in logs, and lets those pass that have none."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from idalloc.cli import main
from tests.support.planted_logs import BOOT_TIME, Planted, PlantedLog, checked, row

REQUEST = "11111111-2222-4333-8444-555555555555"
DOCS = "00006b017bcf"
NODE, OTHER_NODE = 2**32 + 1_700_000_000, 2**32 + 1_700_000_001
CLEAN = {"twice": 0, "disordered": 0, "beyond": 0, "malformed": 0}


class Verifier:
    """Runs the verb on logs that are planted in a folder."""

    def __init__(self, folder: Path, form: str, output: pytest.CaptureFixture[str]) -> None:
        self.folder, self.form, self._output = folder, form, output
        self.files: list[Path] = []
        self.code = -1

    def log(self, *records: Planted, **more: Any) -> Path:
        path = self.folder / f"{len(self.files)}.{self.form}"
        self.files.append(PlantedLog(records, **more).write(path))
        return path

    def export(self, *lines: dict[str, Any]) -> None:
        self._write({"idalloc_export": 1}, *lines)

    def node_log(self, *lines: dict[str, Any]) -> None:
        self._write({"event": "serving", "level": "info"}, *lines, {"event": "stopped", "burned": {"expired": 1}})

    def _write(self, *lines: dict[str, Any]) -> None:
        path = self.folder / f"{len(self.files)}.other"
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        self.files.append(path)

    def report(self) -> Any:
        self.code = main(["verify", "--json", *map(str, self.files)])
        output = self._output.readouterr()
        assert output.err == ""
        return json.loads(output.out)

    def passes(self) -> Any:
        report = self.report()
        assert (report["findings"], report["told"], self.code) == (CLEAN, [], 0)
        return report

    def finds(self, *words: str, **findings: int) -> Any:
        report = self.report()
        assert (report["findings"], self.code) == (CLEAN | findings, 1)
        told = "\n".join(report["told"])
        assert [word for word in words if word not in told] == []
        return report


@pytest.fixture(params=["log", "jsonl"])
def verifier(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verifier:
    return Verifier(tmp_path, request.param, capsys)


def row_of(sequence: str, last_value: int | None, **more: Any) -> dict[str, Any]:
    value = None if last_value is None else str(last_value)
    return {"sequence": sequence, "last_value": value, "generation": "1", **more}


# What must be found.


def test_an_id_twice_in_one_log(verifier: Verifier) -> None:
    log = verifier.log(Planted(1, 10, 0), Planted(10, 5, 7), Planted(15, 5))
    report = verifier.finds("orders: 10 came twice", f"1…10 in {log}", f"10…14 in {log}", "000000007Z", twice=1)
    assert report["ids"] == 19
    assert report["records"] == 3


def test_an_id_twice_across_logs(verifier: Verifier) -> None:
    one, other = verifier.log(Planted(1, 10), Planted(11, 10)), verifier.log(Planted(21, 5), Planted(4, 2))
    verifier.finds("orders: 4 came twice", f"1…10 in {one}", f"4…5 in {other}", twice=2)


def test_the_same_log_under_two_names(verifier: Verifier) -> None:
    for _ in range(2):
        verifier.log(Planted(1, 10), Planted(11, 10))
    assert len(verifier.finds(twice=20)["told"]) >= 1


def test_a_file_that_is_given_twice_is_read_once(verifier: Verifier) -> None:
    log = verifier.log(Planted(1, 10))
    (verifier.folder / "link").symlink_to(log)
    verifier.files += [log, verifier.folder / "link"]
    assert verifier.passes()["logs"] == 1


def test_an_id_twice_across_steps(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, step=3), Planted(8, 3, step=5, generation=1))  # 1 4 7 10 13 …, and 8 13 18
    verifier.finds("orders: 13 came twice", "in steps of 3", "in steps of 5", twice=1)


def test_an_id_twice_across_large_steps(verifier: Verifier) -> None:
    one, other = 2**33 + 1, 2**33 + 3
    verifier.log(Planted(7, 2**20, step=one), Planted(7 + one * 2**19 - other * 5, 10, step=other))
    verifier.finds(f"orders: {7 + one * 2**19} came twice", twice=1)


def test_a_document_id_twice(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, 0, doc_ids=DOCS), Planted(11, 10, 5, doc_ids=DOCS))
    verifier.log(Planted(10, 10, 0, 9, step=10, doc_ids=DOCS))
    report = verifier.finds(f"document id {DOCS}000000000000000a came twice", twice=2)
    assert report["documentIds"] == report["ids"] == 28


def test_another_range_for_the_same_request(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, request_id=REQUEST), Planted(1, 12, request_id=REQUEST))
    verifier.finds("orders: 1 came twice", twice=10)


def test_the_same_range_for_another_request(verifier: Verifier) -> None:
    verifier.log(Planted(1, 3, request_id=REQUEST), Planted(1, 3, request_id=REQUEST.replace("1", "2")))
    verifier.finds(twice=3)


def test_a_node_whose_ids_fall(verifier: Verifier) -> None:
    early = verifier.log(Planted(11, 10, 0, 1, node=NODE))
    late = verifier.log(Planted(1, 10, 2, 3, node=NODE), boot_time=BOOT_TIME - 10**15)
    verifier.finds(f"1…10 in {late}", f"11…20 in {early}", disordered=1)


def test_a_node_whose_ids_rise_in_a_sequence_that_counts_down(verifier: Verifier) -> None:
    verifier.log(Planted(-11, 10, 0, 1, node=NODE, step=-1), Planted(-1, 10, 2, 3, node=NODE, step=-1))
    verifier.finds("orders: -1 was asked for after", "-11…-20", disordered=1)


def test_document_ids_of_one_process_that_fall(verifier: Verifier) -> None:
    verifier.log(Planted(11, 10, 0, 1, doc_ids=DOCS), Planted(2, 3, 2, 3, doc_ids=DOCS))
    verifier.finds(f"document id {DOCS}0000000000000002 was asked for after", disordered=1)


def test_a_rising_sequence_whose_ids_fall_from_one_node_to_another(verifier: Verifier) -> None:
    verifier.log(Planted(11, 10, 0, 1, node=NODE, rising=True))
    verifier.log(Planted(1, 10, 2, 3, node=OTHER_NODE, rising=True))
    verifier.finds("orders: 1 was asked for after", "11…20", disordered=1)


def test_a_generation_that_falls(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, generation=3), Planted(11, 10, generation=2), Planted(31, 2, generation=3))
    verifier.finds("orders: 1 is of generation 3, but 20 behind it of 2", disordered=1)


def test_a_generation_that_begins_with_the_last_id_of_an_older_one(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10), Planted(10, 10, generation=2))
    verifier.finds("orders: 10 is of generation 2, but 10 behind it of 1", twice=1, disordered=1)


def test_a_generation_that_falls_along_ids_that_count_down(verifier: Verifier) -> None:
    verifier.log(Planted(-1, 10, generation=2, step=-1), Planted(-11, 10, generation=1, step=-1))
    verifier.finds("orders: -1 is of generation 2, but -20 behind it of 1", disordered=1)


def test_an_id_beyond_a_counter_that_goes_up(verifier: Verifier) -> None:
    log = verifier.log(Planted(1, 10), Planted(11, 10), Planted(21, 1))
    verifier.export(row_of("orders", 15), row_of("others", 100))
    report = verifier.finds(f"orders: 20 is beyond the exported last value, 15: 11…20 in {log}", beyond=2)
    assert report["sequences"][0]["lastValue"] == 15


def test_an_id_beyond_a_counter_that_goes_down(verifier: Verifier) -> None:
    verifier.log(Planted(100, 10, step=-2), Planted(80, 2, step=-2))
    verifier.export(row_of("orders", 80))
    verifier.finds("orders: 78 is beyond the exported last value, 80", beyond=1)


def test_an_id_beyond_the_counter_of_its_period(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, period="2026"), Planted(1, 5, period="2027"))
    verifier.export(row_of("orders", 0), row_of("orders", 9, period="2026"), row_of("orders", 10, period="2027"))
    verifier.finds("orders of 2026: 10 is beyond the exported last value, 9", beyond=1)


@pytest.mark.parametrize("rows", [[], [row_of("orders", None)], [row_of("orders", 9, period="2026")]])
def test_an_id_that_the_store_knows_no_counter_of(verifier: Verifier, rows: list[dict[str, Any]]) -> None:
    verifier.log(Planted(1, 1))
    verifier.export(*rows)
    verifier.finds("orders: 1 is beyond the export, which has none", beyond=1)


@pytest.mark.parametrize("claims", [[], [(0, 0x6B017BCE)], [(1, 0x7B017BCE)]])
def test_document_ids_beyond_a_claim(verifier: Verifier, claims: list[tuple[int, int]]) -> None:
    verifier.log(Planted(1, 10, doc_ids=DOCS))
    verifier.export(*({"prefix": prefix, "last_start": str(start)} for prefix, start in claims))
    verifier.finds(f"document id {DOCS}000000000000000a is beyond", beyond=1)


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
def test_a_record_that_cannot_be(verifier: Verifier, record: Planted) -> None:
    log = verifier.log(Planted(10**6, 5), record, Planted(2 * 10**6, 5))
    assert verifier.finds(str(log), malformed=1)["records"] == 3


@pytest.mark.parametrize("record", ["{", "[]", "1", "", '{"sequence": "orders"}', '{"doc_id": "00"}'])
def test_a_line_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str) -> None:
    verifier = Verifier(tmp_path, "jsonl", capsys)
    line = PlantedLog([Planted(11, 5)]).lines().splitlines(keepends=True)[1]
    log = verifier.log(Planted(1, 10), more=record.encode() + b"\n" + line)
    assert verifier.finds(f"{log}: line 3 is no record", malformed=1)["ids"] == 15


@pytest.mark.parametrize(
    ("field", "value"), [("first", "1"), ("first", 1.5), ("first", 2**63), ("sequence", 7), ("request_id", "x")]
)
def test_a_line_with_a_field_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    verifier = Verifier(tmp_path, "jsonl", capsys)
    line = json.loads(PlantedLog([Planted(11, 5)]).lines().splitlines()[1]) | {field: value}
    verifier.log(Planted(1, 10), more=json.dumps(line).encode() + b"\n")
    assert verifier.finds("line 3 is no record", malformed=1)["records"] == 1


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (bytes(88), "row 5 is damaged"),
        (checked(bytes(84)), "row 5 is neither a record nor a name"),
        (row(kind=2, name=1, count=-1), "row 5 is neither a record nor a name"),
        (row(kind=2, name=1, count=2) + checked(b"a\xff"), "the name in row 5 is no UTF-8"),
        (row(name=9, step=1, count=1), "has a name that was not introduced"),
    ],
)
def test_a_row_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: bytes, why: str
) -> None:
    verifier = Verifier(tmp_path, "log", capsys)
    after = row(first=11, step=1, count=5, generation=1, asked=BOOT_TIME, answered=BOOT_TIME)
    verifier.log(Planted(1, 10), more=damaged + after)
    assert verifier.finds(why, malformed=1)["ids"] == 15


def test_no_more_than_five_of_a_kind_are_told(verifier: Verifier) -> None:
    verifier.log(*(Planted(number, 1, 0, 1) for number in [*range(0, 40, 2)] * 2), Planted(50, 0))
    assert len(verifier.finds(twice=20, malformed=1)["told"]) == 6


# What must pass.


def test_nodes_that_take_turns(verifier: Verifier) -> None:
    for node, log in ((NODE, range(0, 100, 2)), (OTHER_NODE, range(1, 100, 2))):
        verifier.log(*(Planted(number * 10 + 1, 10, number // 2 * 5, node=node) for number in log))
    report = verifier.passes()
    assert report["ids"] == 1_000
    assert report["sequences"] == [
        {
            "sequence": "orders",
            "period": "",
            "ids": 1_000,
            "ranges": 100,
            "first": 1,
            "last": 1_000,
            "lastValue": None,
            "missing": 0,
            "burned": {},
            "unattributed": 0,
        }
    ]


def test_calls_of_one_node_that_overlap_in_time(verifier: Verifier) -> None:
    verifier.log(Planted(11, 10, 0, 5, node=NODE), Planted(1, 10, 5, 6, node=NODE))
    verifier.passes()


def test_ids_of_different_nodes_fall_where_order_is_per_node(verifier: Verifier) -> None:
    verifier.log(Planted(11, 10, 0, 1, node=NODE), Planted(1, 10, 2, 3, node=OTHER_NODE))
    verifier.log(Planted(31, 10, 4, 5), Planted(21, 10, 6, 7))  # whose, they do not say
    verifier.passes()


def test_times_of_different_machines_are_not_compared(verifier: Verifier) -> None:
    verifier.log(Planted(11, 10, 0, 1, node=NODE, rising=True))
    verifier.log(Planted(1, 10, 2, 3, node=NODE, rising=True), boot_id="another")
    verifier.passes()


def test_times_of_machines_that_are_not_known_are_not_compared(verifier: Verifier) -> None:
    verifier.log(Planted(11, 10, 0, 1, node=NODE), boot_id="")
    verifier.log(Planted(1, 10, 2, 3, node=NODE), boot_id="")
    verifier.passes()


def test_a_request_that_was_answered_again(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, 0, request_id=REQUEST, node=NODE), Planted(11, 10, 3, node=NODE))
    verifier.log(*(Planted(1, 10, time, request_id=REQUEST, node=node) for time in (7, 9) for node in (NODE, 5)))
    assert verifier.passes()["ids"] == 20


def test_an_advance(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10, 0, node=NODE), Planted(1_001, 10, 5, node=NODE, generation=2))
    verifier.log(Planted(11, 10, 3, generation=1, node=OTHER_NODE))
    verifier.export(row_of("orders", 1_010))
    assert verifier.passes()["sequences"][0]["missing"] == 980


def test_each_period_has_the_same_ids(verifier: Verifier) -> None:
    verifier.log(*(Planted(1, 10, 5 * year, period=f"{2026 + year}", node=NODE) for year in range(3)))
    report = verifier.passes()
    assert [(each["sequence"], each["period"], each["ids"]) for each in report["sequences"]] == [
        ("orders", "2026", 10),
        ("orders", "2027", 10),
        ("orders", "2028", 10),
    ]


def test_a_counter_that_goes_down(verifier: Verifier) -> None:
    verifier.log(*(Planted(100 - 9 * number, 3, 5 * number, step=-3, node=NODE) for number in range(9)))
    verifier.export(row_of("orders", 16))
    (counted,) = verifier.passes()["sequences"]
    assert (counted["first"], counted["last"], counted["missing"]) == (100, 22, 2)


def test_two_installations_whose_ids_leave_different_remainders(verifier: Verifier) -> None:
    for offset in (1, 2):
        verifier.log(*(Planted(offset + 20 * number, 10, 5 * number, step=2) for number in range(9)))
    verifier.export(row_of("orders", 180))
    (counted,) = verifier.passes()["sequences"]
    assert (counted["ids"], counted["missing"]) == (180, 0)


def test_steps_that_never_meet(verifier: Verifier) -> None:
    verifier.log(Planted(1, 100, step=4), Planted(4, 60, step=6))
    verifier.passes()


def test_the_last_id_of_all(verifier: Verifier) -> None:
    verifier.log(Planted(2**63 - 5, 4, 0, node=NODE), Planted(-(2**63), 2, 0, node=OTHER_NODE))
    verifier.log(Planted(2**64 - 2, 2, 0, doc_ids=DOCS), Planted(0, 1, 0, doc_ids="ffffffffffff"))
    assert verifier.passes()["ids"] == 9


def test_what_was_exported_covers_it(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10), Planted(1, 10, period="2026"), Planted(1, 10, doc_ids=DOCS))
    claim = {"prefix": 0, "last_start": str(int(DOCS[4:], 16))}
    verifier.export(row_of("orders", 10), row_of("orders", 10, period="2026"), claim)
    verifier.passes()


def test_a_log_without_records(verifier: Verifier) -> None:
    verifier.log()
    assert verifier.passes()["ids"] == 0


def test_a_log_whose_writer_was_killed_while_it_wrote(verifier: Verifier) -> None:
    whole = verifier.log(Planted(1, 10))
    cut = verifier.log(Planted(11, 10))
    cut.write_bytes(cut.read_bytes()[:-1])
    report = verifier.passes()
    # The last line lacks nothing but its end.
    assert report["ids"] == (20 if verifier.form == "jsonl" else 10)
    cut.write_bytes(cut.read_bytes()[:-9])
    report = verifier.passes()
    assert (report["ids"], report["cut"]) == (10, [str(cut)])
    assert str(whole) not in report["cut"]


def test_a_log_whose_writer_was_killed_behind_the_row_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verifier = Verifier(tmp_path, "log", capsys)
    log = verifier.log(Planted(1, 10), more=row(kind=2, name=1, count=100) + checked(b"a" * 84))
    assert verifier.passes()["cut"] == [str(log)]


def test_names_of_any_length_that_look_like_rows(verifier: Verifier) -> None:
    names = ["IDALLOC" * 20, "é" * 127, "a" * 255]
    verifier.log(*(Planted(1, 10, number, sequence=name) for number, name in enumerate(names)))
    assert sorted(each["sequence"] for each in verifier.passes()["sequences"]) == sorted(names)


# What else is told.


def test_ids_that_nobody_has_go_to_those_who_burned_them(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10), Planted(21, 10))
    verifier.export(row_of("orders", 50))
    verifier.node_log(
        {"event": "burned", "sequence": "orders", "cause": "expired", "ids": 7},
        {"event": "burned", "sequence": "orders", "cause": "cancelled", "ids": 2},
        {"event": "burned", "sequence": "orders", "period": "2026", "cause": "cancelled", "ids": 99},
        {"event": "burned", "sequence": "others", "cause": "cancelled", "ids": 99},
    )
    verifier.node_log({"event": "burned", "sequence": "orders", "cause": "cancelled", "ids": 5})
    (counted,) = verifier.passes()["sequences"]
    assert counted["missing"] == 30
    assert counted["burned"] == {"cancelled": 7, "expired": 7}
    assert counted["unattributed"] == 16


def test_what_was_burned_never_makes_less_than_nothing(verifier: Verifier) -> None:
    verifier.log(Planted(1, 10), Planted(12, 10))
    verifier.node_log({"event": "burned", "sequence": "orders", "cause": "unknown_outcome", "ids": 50})
    (counted,) = verifier.passes()["sequences"]
    assert (counted["missing"], counted["unattributed"]) == (1, 0)


def test_times_that_were_passed_over_are_not_missing(verifier: Verifier) -> None:
    verifier.log(Planted(1_700_000_000_000), Planted(1_700_000_900_000))
    verifier.export(row_of("orders", 1_700_000_900_000, settings={"kind": "TIMESTAMP_MS", "step": "1"}))
    assert verifier.passes()["sequences"][0]["missing"] == 0


def test_the_longest_stall_is_that_of_one_log(verifier: Verifier) -> None:
    second = 10**9
    verifier.log(*(Planted(number, 1, 0, time * second) for number, time in enumerate([1, 5, 3, 6, 9])))
    verifier.log(*(Planted(number, 1, 0, time * second) for number, time in enumerate([100, 102], start=50)))
    assert verifier.passes()["longestStallSeconds"] == 3


def test_people_get_a_report(verifier: Verifier, capsys: pytest.CaptureFixture[str]) -> None:
    verifier.log(Planted(1, 1_000), Planted(2_001, 10, period="2026"))
    assert main(["verify", *map(str, verifier.files)]) == 0
    output = capsys.readouterr().out
    assert "PROVED for 1,010 ids in 2 records of 1 logs" in output
    assert "no export to compare with" in output
    assert "orders 2026" in output
    verifier.log(Planted(1_000, 1))
    assert main(["verify", *map(str, verifier.files)]) == 1
    assert "WRONG in 1,010 ids in 3 records of 2 logs" in capsys.readouterr().out


# What is no log.


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"some text\n", "is no log"),
        (b"\xff\xfe\x00", "is no log"),
        (b'{"a": 1}\n', "is no log"),
        (b"[" * 100_000, "is no log"),
        (b"IDALLOC\x01", "ends in its header"),
        (PlantedLog([]).rows()[:-1], "ends in its header"),
        (b"IDALLOC\x01\x02\x00\x00\x00[]" + bytes(58), "header of this log is damaged"),
        (b'{"idalloc_log":1}\n', "header of this log is damaged"),
        (b'{"idalloc_log":3,"boot_id":"","boot_time_ns":1}\n', "format 3"),
        (b"IDALLOC\x03" + bytes(80), "format 3"),
        (b'{"idalloc_export": 1}\n{"sequence": "a", "last_value": "x"}\n', "line 2 of this export"),
        (b'{"idalloc_export": 1}\n', "none of these files is a log of issued ids"),
    ],
)
def test_what_is_no_log_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, why: str
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert main(["verify", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert why in output.err
    assert output.err.count("\n") == 1


def test_without_a_file_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 2
    assert "FILE" in capsys.readouterr().err


def test_without_numpy_it_says_what_to_install(tmp_path: Path) -> None:
    log = PlantedLog([]).write(tmp_path / "x.log")
    code = (
        "import sys; sys.modules['numpy'] = None; from idalloc.cli import main; sys.exit(main(['verify', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "idalloc verify needs the package numpy: pip install 'idalloc[verify]'\n"
