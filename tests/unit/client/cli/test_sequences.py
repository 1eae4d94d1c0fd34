"""The command line's verbs for sequences, texts, UUIDs and nodes."""

import io
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from idalloc import cli
from idalloc._core.sequences import enum_texts
from idalloc.cli import _output, _past_table, _sequences, _tables
from idalloc.v1 import sequences_pb2 as pb
from idalloc.v1.id_allocator_pb2 import ORDERING_RISING
from tests.support.fake_server import FakeServer, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with serving() as server:
        monkeypatch.setenv("IDALLOC_SERVER", server.target)
        monkeypatch.delenv("IDALLOC_TIMEOUT", raising=False)
        yield server


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str) -> str:
        code = cli.main(args)
        out, err = self._capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    def told(self, code: int, *args: str) -> str:
        """Runs a command that prints nothing but one line on stderr."""
        assert cli.main(args) == code
        out, err = self._capsys.readouterr()
        assert out == ""
        [line] = err.splitlines()
        return line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def asked(server: FakeServer, method: str) -> Any:
    return server.requests[method][-1]


def test_a_sequence_is_created_with_what_the_flags_say(server: FakeServer, run: Run) -> None:
    line = (
        "sequences create down --start -5 --step -10 --min-value -1000 --max-value 0 --json-safe --ordering rising "
        "--kind counter --min-lease-size 5 --max-lease-size 50 --format N{value} --reset yearly "
        "--time-zone Europe/Vienna --label a=b --label c=d=e --description default"
    )
    printed = run(*line.split()).splitlines()
    assert {"name: down", "step: -10", "ordering: rising", "label: c=d=e", "reset: yearly"} <= set(printed)
    request = asked(server, "CreateSequence")
    assert len(request.request_id) == 36
    assert request.sequence == pb.Sequence(
        name="down", start=-5, step=-10, min_value=-1000, max_value=0, json_safe=True,
        ordering=ORDERING_RISING, kind=pb.SEQUENCE_KIND_COUNTER,
        min_lease_size=5, max_lease_size=50, format="N{value}", reset=pb.RESET_YEARLY, time_zone="Europe/Vienna",
        labels={"a": "b", "c": "d=e"}, description="default",
    )  # fmt: skip
    run("sequences", "create", "plain", "--start", "default")
    assert asked(server, "CreateSequence").sequence == pb.Sequence(name="plain")
    run("sequences", "create", "third", "--offset", "3", "--increment=10")
    assert asked(server, "CreateSequence").sequence == pb.Sequence(name="third", offset=3, increment=10)


@pytest.mark.parametrize("name", _sequences.CHOICES)
def test_the_choices_are_those_of_the_contract(name: str) -> None:
    assert set(_sequences.CHOICES[name]) == set(enum_texts(name))


def test_the_flags_are_the_fields_of_the_contract() -> None:
    assert set(_sequences.SETTINGS) == {
        field.name for field in pb.Sequence.DESCRIPTOR.fields if field.number in range(2, 18)
    }


def test_an_update_changes_what_is_said_and_nothing_else(server: FakeServer, run: Run) -> None:
    run("sequences", "create", "orders", "--max-value", "100", "--format", "A{value}", "--label", "a=b")
    line = "sequences update orders --max-value default --min-lease-size 7 --description x --etag"
    run(*line.split(), '"1"', "--format", "", "--label", "")
    request = asked(server, "UpdateSequence")
    paths = ["description", "format", "labels", "max_value", "min_lease_size"]
    assert list(request.update_mask.paths) == paths
    wanted = pb.Sequence(name="orders", min_lease_size=7, description="x", etag='"1"')
    assert request.sequence == wanted
    assert not server.sequences["orders"].HasField("max_value")
    assert run.told(1, "sequences", "update", "orders", "--step", "2", "--etag", "old").startswith("SEQUENCE_CHANGED")
    assert "nothing to change" in run.told(2, "sequences", "update", "orders")


def test_list_goes_over_all_pages(server: FakeServer, run: Run) -> None:
    for name in ("a1", "a2", "a3", "b1", "b2"):
        run("sequences", "create", name)
    assert [line.split("\t")[0] for line in run("sequences", "list").splitlines()] == ["a1", "a2", "a3", "b1", "b2"]
    assert [line.split("\t")[0] for line in run("sequences", "list", "--prefix", "a").splitlines()] == [
        "a1",
        "a2",
        "a3",
    ]
    run("sequences", "delete", "a2")
    listed = json.loads(run("sequences", "list", "--prefix", "a", "--json"))["sequences"]
    assert [each["name"] for each in listed] == ["a1", "a3"]
    assert "a2\t-\t0.0 %\t0.0/s\t-\tdeleted 2" in run("sequences", "list", "--show-deleted")
    assert run("sequences", "list", "--prefix", "z") == ""


def test_a_line_of_the_list(server: FakeServer, run: Run) -> None:
    made = pb.Sequence(name="x y", last_value=41, used_ratio=0.9999, ids_per_second=1234.5, step=-2, min_value=-9)
    made.max_value, made.format, made.reset, made.time_zone = 50, "{value}", pb.RESET_DAILY, "UTC"
    made.ordering, made.labels["k"] = ORDERING_RISING, "v"
    made.exhaust_time.FromSeconds(1_800_000_000)
    made.remaining = 1
    server.sequences["x y"] = made
    settings = "step -2, -9…50, rising, {value}, daily in UTC, k=v"
    assert run("sequences", "list") == f"x y\t41\t99.9 %\t1,234.5/s\t2027-01-15T08:00:00Z\t{settings}\n"


def test_an_exhausted_sequence_is_told(server: FakeServer, run: Run) -> None:
    made = pb.Sequence(name="full", last_value=9, used_ratio=1.0)
    made.exhaust_time.GetCurrentTime()
    server.sequences["full"] = made
    server.sequences["gone"] = pb.Sequence(name="gone", last_value=9)
    server.sequences["gone"].delete_time.FromSeconds(1_790_000_001)
    server.sequences["broken"] = pb.Sequence(name="broken")  # its row has no last_value
    table = [line.split("\t") for line in run("sequences", "list", "--show-deleted").splitlines()]
    assert {line[0]: line[4] for line in table} == {"full": "exhausted", "gone": "-", "broken": "-"}
    shown = run("sequences", "show", "full").splitlines()
    assert "exhausted: yes" in shown
    assert not [line for line in shown if line.startswith("exhausted at")]


def test_a_change_to_the_very_end_is_told(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.sequences["full"] = pb.Sequence(name="full", last_value=9, period="2026")
    assert cli.main(["sequences", "advance", "full", "--past", "9"]) == 0
    out, err = capsys.readouterr()
    assert "exhausted: yes" in out.splitlines()
    assert err == "full is exhausted in 2026: no id is left\n"
    assert cli.main(["sequences", "delete", "full"]) == 0
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_table(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.sequences["[red]orders"] = pb.Sequence(name="[red]orders", last_value=41, remaining=1, ids_per_second=0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert cli.main(["sequences", "list"]) == 0
    shown = terminal.getvalue()
    assert all(text in shown for text in (*_tables.COLUMNS, "[red]orders", "41", "<0.1/s"))
    assert "\t" not in shown


def test_show(server: FakeServer, run: Run) -> None:
    run("sequences", "create", "orders")
    server.sequences["orders"].used_ratio = 0.00001
    lines = run("sequences", "show", "orders").splitlines()
    assert {"name: orders", "kind: counter", "used: <0.1 %", "max value: 9223372036854775806"} <= set(lines)
    assert "created" not in lines
    assert json.loads(run("sequences", "show", "orders", "--json"))["maxValue"] == "9223372036854775806"
    run("sequences", "show", "orders", "--period", "2026-11")
    assert [request.period for request in server.requests["GetSequence"]] == ["", "", "2026-11"]
    assert run.told(1, "sequences", "show", "nope").startswith("SEQUENCE_NOT_FOUND")


def test_a_change_is_waited_for(server: FakeServer, run: Run) -> None:
    run("sequences", "create", "orders")
    server.effective_delay = 0.3
    for line in ("update orders --step 2", "advance orders --past -7", "delete orders"):
        began = time.monotonic()
        assert "effective time: 2" in run("sequences", *line.split())
        assert time.monotonic() - began >= 0.3
    server.effective_delay = 0.9
    began = time.monotonic()
    reply = json.loads(run("sequences", "advance", "orders", "--past", "0", "--no-wait", "--json"))
    assert time.monotonic() - began < 0.9
    assert reply["effectiveDelay"] == "0.900s"
    assert asked(server, "AdvanceSequence").past == 0


def test_a_terminal_sees_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    began = time.monotonic()
    _output.wait(0.3)
    assert time.monotonic() - began >= 0.3
    assert "holds on all nodes" in terminal.getvalue()


@pytest.mark.parametrize(
    ("url", "column"),
    [
        ("crate://crate@here:4200/doc.orders.id", ("http://here:4200", "crate", "doc", "orders", "id")),
        ("crate://here/doc.orders.id?tls=false", ("http://here:4200", None, "doc", "orders", "id")),
        ("crate://a%40b@[::1]/s.o%2Eo.Id?tls=true", ("https://[::1]:4200", "a@b", "s", "o.o", "Id")),
    ],
)
def test_where_a_table_is(url: str, column: tuple[str | None, ...]) -> None:
    assert tuple(_past_table.read_url(url)) == column


@pytest.mark.parametrize(
    "url",
    ["here", "http://h/a.b.c", "crate:///a.b.c", "crate://h:x/a.b.c", "crate://h/a.b.c?x=1", "crate://h/a.b.c#d"],
)
def test_where_no_table_can_be(server: FakeServer, run: Run, url: str) -> None:
    line = run.told(2, "sequences", "advance", "orders", "--past-table", url)
    assert "must be written crate://user@host:4200/schema.table.column" in line


@pytest.mark.parametrize("path", ["", "/", "/id", "/orders.id", "/doc..id", "/crate.doc.orders.id"])
def test_a_column_has_three_names(server: FakeServer, run: Run, path: str) -> None:
    line = run.told(2, "sequences", "advance", "orders", "--past-table", f"crate://u@here{path}")
    assert "must name schema, table and column" in line


@pytest.mark.parametrize(
    "there", ["u:planted@here", "u:plan/ted@here", "u:plan?ted@here", ":planted@here", "u:planted@@"]
)
def test_a_password_does_not_belong_in_the_command_line(server: FakeServer, run: Run, there: str) -> None:
    line = run.told(2, "sequences", "advance", "orders", "--past-table", f"crate://{there}/doc.orders.id")
    assert "put it into the variable CRATEPW" in line
    assert "plan" not in line
    assert "ted" not in line


class Database:
    """What the package crate is to us: answers a search, and keeps what was sent."""

    def __init__(self, found: Any) -> None:
        self.found, self.sent = found, list[str]()
        self.credentials: tuple[str | None, str | None] = (None, None)

    def client(self, *_: Any, username: str | None, password: str | None, **__: Any) -> "Database":
        self.credentials = username, password
        return self

    def sql(self, statement: str) -> dict[str, Any]:
        self.sent.append(statement)
        return {"rows": [[self.found]]}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("user", "credentials"), [("alice@", ("alice", "s:e@c")), ("", (None, None))])
def test_the_password_is_in_a_variable(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch, user: str, credentials: tuple[str | None, str | None]
) -> None:
    database = Database(7)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    monkeypatch.setenv("CRATEPW", "s:e@c")
    server.sequences["orders"] = pb.Sequence(name="orders", step=1, remaining=5)
    run("sequences", "advance", "orders", "--past-table", f"crate://{user}here/doc.orders.id")
    assert database.credentials == credentials


@pytest.mark.parametrize(("step", "search"), [(1, "MAX"), (-3, "MIN")])
def test_past_a_table(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch, step: int, search: str) -> None:
    database = Database(-77)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    server.sequences["orders"] = pb.Sequence(name="orders", step=step, remaining=5)
    url = 'crate://crate@here/My"schema.Orders.Id'
    run("sequences", "advance", "orders", "--past-table", url, "--period", "2026")
    relation = '"My""schema"."Orders"'
    assert database.sent == [f"REFRESH TABLE {relation}", f'SELECT {search}("Id") FROM {relation}']
    assert (asked(server, "AdvanceSequence").past, asked(server, "AdvanceSequence").period) == (-77, "2026")


def test_past_an_empty_table_and_one_of_texts(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(None)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = ("sequences", "advance", "orders", "--past-table", "crate://here/doc.orders.id")
    assert "nothing to do" in run.told(0, *line)
    database.found = "x"
    assert "no whole numbers" in run.told(1, *line)
    assert not server.requests["AdvanceSequence"]


def test_past_a_table_without_the_package(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crate.client", None)
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = run.told(2, "sequences", "advance", "orders", "--past-table", "crate://here/doc.orders.id")
    assert "pip install 'idalloc[crate]'" in line


def test_past_a_table_where_no_one_answers(server: FakeServer, run: Run) -> None:
    pytest.importorskip("crate")
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = run.told(1, "sequences", "advance", "orders", "--past-table", "crate://u@127.0.0.1:1/doc.orders.id")
    assert line == "cannot reach CrateDB at http://127.0.0.1:1: Connection refused"


def test_past_a_table_that_is_refused(server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise exceptions.ProgrammingError("RelationUnknown: Relation 'doc.orders' unknown\n<html>and a page more")

    exceptions = pytest.importorskip("crate.client.exceptions")
    database = Database(None)
    monkeypatch.setattr(pytest.importorskip("crate.client.http"), "Client", database.client)
    monkeypatch.setattr(database, "sql", refuse)
    server.sequences["orders"] = pb.Sequence(name="orders", step=1)
    line = run.told(1, "sequences", "advance", "orders", "--past-table", "crate://here/doc.orders.id")
    assert line == "CrateDB at http://here:4200: RelationUnknown: Relation 'doc.orders' unknown"


@pytest.mark.parametrize(
    ("line", "blamed"),
    [
        ("sequences", ""),
        ("sequences create", "NAME"),
        ("sequences create a --step 1.5", "--step"),
        ("sequences create a --start 9223372036854775808", "--start"),
        ("sequences create a --kind odd", "--kind"),
        ("sequences create a --label b", "--label"),
        ("sequences advance a", "--past"),
        ("sequences advance a --past default", "'--past': must be a whole number of 64 bits, not default (see"),
        ("sequences advance a --past abc", "'--past': must be a whole number of 64 bits, not abc (see"),
        ("sequences create a --step abc", "'--step': must be a whole number of 64 bits, or the word default, not abc"),
        ("sequences update a --kind counter", "'--kind': cannot be changed after creation"),
        ("sequences update a --reset never", "'--reset': cannot be changed after creation"),
        ("sequences update a --time-zone UTC", "'--time-zone': cannot be changed after creation"),
        ("sequences advance a --past 1 --past-table crate://h/a.b", "--past"),
        ("node set", "nothing"),
        ("node set --prefix 65536", "'--prefix': must be a whole number from 0 to 65535"),
        ("node set --prefix x", "'--prefix': must be a whole number from 0 to 65535"),
        ("node set --auto-increment-offset 0", "must be a whole number from 1 to 65535"),
        ("node set --auto-increment-increment 65536", "must be a whole number from 1 to 65535"),
        ("uuid --version 1", "--version"),
        ("allocate a --request-id 7", "--request-id"),
        ("allocate a --texts --ranges", "--texts"),
        ("parse a", "TEXT"),
    ],
)
def test_a_wrong_command_line_is_told_and_2(server: FakeServer, capsys: Any, line: str, blamed: str) -> None:
    assert cli.main(line.split()) == 2
    assert blamed in "".join(capsys.readouterr())
    assert not server.requests


def test_what_cannot_be_changed_is_no_help(run: Run) -> None:
    assert "--time-zone" in run("sequences", "create", "--help")
    assert not {"--kind", "--reset", "--time-zone"} & set(run("sequences", "update", "--help").split())


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("sequence.min_value", "INVALID_REQUEST: --min-value: INVALID_REQUEST it is"),
        ("sequence.labels", "INVALID_REQUEST: --label: INVALID_REQUEST it is"),
        ("sequence.name", "INVALID_REQUEST: name: INVALID_REQUEST it is"),
        ("sequence.etag", "INVALID_REQUEST: sequence.etag: INVALID_REQUEST it is"),
        ("request_id", "INVALID_REQUEST: request_id: INVALID_REQUEST it is"),
    ],
)
def test_a_refused_setting_is_named_by_its_flag(server: FakeServer, run: Run, field: str, told: str) -> None:
    server.fail_next("CreateSequence", "INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT, field=field)
    assert run.told(1, "sequences", "create", "a", "--label", "a=b") == told


def test_texts(server: FakeServer, run: Run) -> None:
    assert run("allocate", "orders", "2", "--texts") == "T-0001\nT-0002\n"
    assert run("stream", "orders", "--total", "3", "--chunk", "2", "--texts") == "T-0003\nT-0004\nT-0005\n"
    assert json.loads(run("allocate", "orders", "--texts", "--json"))["texts"] == ["T-0006"]


def test_the_same_request_id_gets_the_same_ids(server: FakeServer, run: Run) -> None:
    line = ("allocate", "orders", "2", "--request-id", "8F14E45F-CEEA-467F-A34F-0E5A1B1C2D3E")
    assert run(*line) == run(*line) == "1\n2\n"
    assert run("allocate", "orders") == "3\n"


def test_parse(server: FakeServer, run: Run) -> None:
    assert run("parse", "orders", "T--42") == "value: -42\nyear: 2026\ncheck: 7\n"
    assert json.loads(run("parse", "orders", "T-42", "--json")) == {"value": "42", "year": 2026, "check": "7"}
    assert run.told(1, "parse", "orders", "-5").startswith("INVALID_REQUEST")
    assert asked(server, "ParseId").text == "-5"


def test_parts_that_an_id_does_not_have_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _output.write_fields(pb.ParseIdResponse(value=0, year=2026))
    assert capsys.readouterr().out == "value: 0\nyear: 2026\n"


def test_uuids(server: FakeServer, run: Run) -> None:
    assert run("uuid") == "00000000-0000-7000-8000-000000000001\n"
    assert run("uuid", "2", "--version", "4").splitlines()[1] == "00000000-0000-4000-8000-000000000003"
    assert len(set(run("uuid", "25000").split())) == 25_000
    assert [request.id_count for request in server.requests["GenerateUuid"]] == [1, 2, 10_000, 10_000, 5_000]
    assert json.loads(run("uuid", "--json"))["uuids"][0].endswith("61ac")


def test_node_set(server: FakeServer, run: Run) -> None:
    run("node", "set", "--prefix", "0", "--auto-increment-increment", "10", "--persist")
    request = asked(server, "UpdateNode")
    assert list(request.update_mask.paths) == ["prefix", "auto_increment_increment"]
    assert request.persist
    assert "auto increment increment: 10" in run("node").splitlines()
    assert json.loads(run("node", "--server", server.target, "set", "--prefix", "9", "--json"))["prefix"] == 9
    server.fail_next("UpdateNode", "PREFIX_IN_USE", grpc.StatusCode.FAILED_PRECONDITION, prefix=3)
    assert run.told(1, "node", "set", "--prefix", "3").startswith("PREFIX_IN_USE: ")


def test_a_kind_of_a_newer_server_is_shown_by_its_number(server: FakeServer, run: Run) -> None:
    """A value of an enum that this client does not know is no error."""
    run("sequences", "create", "a")
    server.sequences["a"].kind = 99  # type: ignore[assignment]
    assert "kind: 99\n" in run("sequences", "show", "a")
    assert "\t99" in run("sequences", "list")
