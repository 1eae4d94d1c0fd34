"""`idalloc sequences`: the requests that it sends and what it prints."""

import json
import sys
import time
from typing import Any

import grpc
import pytest

from idalloc import cli
from idalloc._core.types import enum_texts
from idalloc.cli import _fields, _progress, _sequences
from idalloc.v1 import sequences_pb2 as pb
from idalloc.v1.id_allocator_pb2 import ORDERING_RISING
from tests.support.command_line import Command, Terminal
from tests.support.fake_server import FakeServer


def last_request(server: FakeServer, method: str) -> Any:
    return server.requests[method][-1]


def test_create_sends_the_options(server: FakeServer, run: Command) -> None:
    """create sends each option as the field of its name, and no others."""
    line = (
        "sequences create down --start -5 --step -10 --min-value -1000 --max-value 0 --json-safe --ordering rising "
        "--kind counter --min-lease-size 5 --max-lease-size 50 --format N{value} --reset yearly "
        "--time-zone Europe/Vienna --label a=b --label c=d=e --description default"
    )
    printed = run(*line.split()).splitlines()
    assert {"name: down", "step: -10", "ordering: rising", "label: c=d=e", "reset: yearly"} <= set(printed)
    request = last_request(server, "CreateSequence")
    assert len(request.request_id) == 36
    assert request.sequence == pb.Sequence(
        name="down", start=-5, step=-10, min_value=-1000, max_value=0, json_safe=True,
        ordering=ORDERING_RISING, kind=pb.SEQUENCE_KIND_COUNTER,
        min_lease_size=5, max_lease_size=50, format="N{value}", reset=pb.RESET_YEARLY, time_zone="Europe/Vienna",
        labels={"a": "b", "c": "d=e"}, description="default",
    )  # fmt: skip
    run("sequences", "create", "plain", "--start", "default")
    assert last_request(server, "CreateSequence").sequence == pb.Sequence(name="plain")
    run("sequences", "create", "third", "--offset", "3", "--increment=10")
    assert last_request(server, "CreateSequence").sequence == pb.Sequence(name="third", offset=3, increment=10)


@pytest.mark.parametrize("name", _sequences.CHOICES)
def test_choices_equal_the_enums(name: str) -> None:
    """The choices of an option are the values of its enum."""
    enum = pb.Sequence.DESCRIPTOR.fields_by_name[name].enum_type
    assert enum is not None
    assert set(_sequences.CHOICES[name]) == set(enum_texts(enum))


def test_options_equal_the_fields() -> None:
    """The options are the settable fields of Sequence."""
    assert set(_sequences.SETTINGS) == {
        field.name for field in pb.Sequence.DESCRIPTOR.fields if field.number in range(2, 18)
    }


def test_update_changes_only_given_settings(server: FakeServer, run: Command) -> None:
    """The update mask has only the given options; default and empty texts reset fields."""
    run("sequences", "create", "orders", "--max-value", "100", "--format", "A{value}", "--label", "a=b")
    line = "sequences update orders --max-value default --min-lease-size 7 --description x --etag"
    run(*line.split(), '"1"', "--format", "", "--label", "")
    request = last_request(server, "UpdateSequence")
    paths = ["description", "format", "labels", "max_value", "min_lease_size"]
    assert list(request.update_mask.paths) == paths
    assert request.sequence == pb.Sequence(name="orders", min_lease_size=7, description="x", etag='"1"')
    assert not server.sequences["orders"].HasField("max_value")
    assert run.error_line(1, "sequences", "update", "orders", "--step", "2", "--etag", "old").startswith(
        "SEQUENCE_CHANGED"
    )
    assert "nothing to change" in run.error_line(2, "sequences", "update", "orders")


def test_list_reads_all_pages(server: FakeServer, run: Command) -> None:
    """list prints the sequences of all pages, by prefix, and deleted ones on request."""
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


def test_list_shows_why_a_name_is_reserved(server: FakeServer, run: Command) -> None:
    """list --show-deleted prints the reason of a name that an import skipped."""
    server.sequences["a"] = pb.Sequence(name="a", description="reserved: the import skipped it: is negative (-5)")
    server.sequences["a"].delete_time.FromSeconds(1_790_000_001)
    assert run("sequences", "list", "--show-deleted").endswith("Z, reserved: the import skipped it: is negative (-5)\n")
    assert run("sequences", "list") == ""


def test_list_prints_columns_separated_by_tabs(server: FakeServer, run: Command) -> None:
    """A line has the counter, its use, rate, forecast and the settings that are not defaults."""
    sequence = pb.Sequence(name="x y", last_value=41, used_ratio=0.9999, ids_per_second=1234.5, step=-2, min_value=-9)
    sequence.max_value, sequence.format, sequence.reset, sequence.time_zone = 50, "{value}", pb.RESET_DAILY, "UTC"
    sequence.ordering, sequence.labels["k"] = ORDERING_RISING, "v"
    sequence.exhaust_time.FromSeconds(1_800_000_000)
    sequence.remaining = 1
    server.sequences["x y"] = sequence
    settings = "step -2, -9…50, rising, {value}, daily in UTC, k=v"
    assert run("sequences", "list") == f"x y\t41\t99.9 %\t1,234.5/s\t2027-01-15T08:00:00Z\t{settings}\n"


def test_exhausted_sequence_is_marked(server: FakeServer, run: Command) -> None:
    """Only a used sequence without remaining ids is exhausted."""
    full = pb.Sequence(name="full", last_value=9, used_ratio=1.0)
    full.exhaust_time.GetCurrentTime()
    server.sequences["full"] = full
    server.sequences["deleted"] = pb.Sequence(name="deleted", last_value=9)
    server.sequences["deleted"].delete_time.FromSeconds(1_790_000_001)
    server.sequences["corrupt"] = pb.Sequence(name="corrupt")  # its row has no last_value
    table = [line.split("\t") for line in run("sequences", "list", "--show-deleted").splitlines()]
    assert {line[0]: line[4] for line in table} == {"full": "exhausted", "deleted": "-", "corrupt": "-"}
    shown = run("sequences", "show", "full").splitlines()
    assert "exhausted: yes" in shown
    assert not [line for line in shown if line.startswith("exhausted at")]


def test_change_that_exhausts_a_sequence_is_reported(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A change that leaves no id prints a warning on standard error."""
    server.sequences["full"] = pb.Sequence(name="full", last_value=9, period="2026")
    assert cli.main(["sequences", "advance", "full", "--past", "9"]) == 0
    out, err = capsys.readouterr()
    assert "exhausted: yes" in out.splitlines()
    assert err == "full is exhausted in 2026: no id is left\n"
    assert cli.main(["sequences", "delete", "full"]) == 0
    assert capsys.readouterr().err == ""


def test_terminal_gets_table(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences are a table on a terminal, without Rich's markup."""
    server.sequences["[red]orders"] = pb.Sequence(name="[red]orders", last_value=41, remaining=1, ids_per_second=0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert cli.main(["sequences", "list"]) == 0
    printed = terminal.getvalue()
    assert all(text in printed for text in (*_fields.COLUMNS, "[red]orders", "41", "<0.1/s"))
    assert "\t" not in printed


def test_show_prints_fields(server: FakeServer, run: Command) -> None:
    """show prints all fields that are set, in text and JSON."""
    run("sequences", "create", "orders")
    server.sequences["orders"].used_ratio = 0.00001
    lines = run("sequences", "show", "orders").splitlines()
    assert {"name: orders", "kind: counter", "used: <0.1 %", "max value: 9223372036854775806"} <= set(lines)
    assert "created" not in lines
    assert json.loads(run("sequences", "show", "orders", "--json"))["maxValue"] == "9223372036854775806"
    run("sequences", "show", "orders", "--period", "2026-11")
    assert [request.period for request in server.requests["GetSequence"]] == ["", "", "2026-11"]
    assert run.error_line(1, "sequences", "show", "nope").startswith("SEQUENCE_NOT_FOUND")


def test_changes_wait_until_effective(server: FakeServer, run: Command) -> None:
    """P5: a change returns when it is effective, or at once with --no-wait."""
    run("sequences", "create", "orders")
    server.effective_delay = 0.3
    for line in ("update orders --step 2", "advance orders --past -7", "delete orders"):
        began = time.monotonic()
        assert "effective time: 2" in run("sequences", *line.split())
        assert time.monotonic() - began >= 0.3
    server.effective_delay = 3600
    reply = json.loads(run("sequences", "advance", "orders", "--past", "0", "--no-wait", "--json"))
    assert reply["effectiveDelay"] == "3600s"
    assert last_request(server, "AdvanceSequence").past == 0


class TestAdvanceAll:
    """advance --all moves all sequences of a server with a witness past their own last ids."""

    @pytest.fixture
    def server(self, server: FakeServer) -> FakeServer:
        server.node.witness = "sqlite:///elsewhere/witness.db"
        for name, start, step, last_value in (("a", 1, 1, 41), ("b", -1, -1, None), ("c", 0, 5, None)):
            server.sequences[name] = pb.Sequence(name=name, start=start, step=step, last_value=last_value)
        server.sequences["deleted"] = pb.Sequence(name="deleted", last_value=9)
        server.sequences["deleted"].delete_time.FromSeconds(1_790_000_001)
        return server

    def advanced(self, server: FakeServer) -> dict[str, int]:
        """Return the value that each sequence was advanced past, which must be one."""
        requests = server.requests["AdvanceSequence"]
        assert len({request.name for request in requests}) == len(requests)
        return {request.name: request.past for request in requests}

    def test_each_live_sequence_is_advanced(self, server: FakeServer, run: Command) -> None:
        """Sequences of all pages are advanced past their last id, or the one before their start."""
        lines = run("sequences", "advance", "--all").splitlines()
        assert self.advanced(server) == {"a": 41, "b": 0, "c": -5}
        assert [line.partition(", effective time 2")[0] for line in lines] == [
            "a: last value 41",
            "b: last value 0",
            "c: last value -5",
        ]
        replies = run("sequences", "advance", "--all", "--json").splitlines()
        assert [json.loads(reply)["sequence"]["name"] for reply in replies] == ["a", "b", "c"]

    def test_it_waits_once_for_all_changes(self, server: FakeServer, run: Command) -> None:
        """P5: it returns when the last change is effective, or at once with --no-wait."""
        server.effective_delay = 1.0  # of each of three changes
        began = time.monotonic()
        run("sequences", "advance", "--all")
        assert 1.0 <= time.monotonic() - began < 3.0
        server.effective_delay = 3600
        run("sequences", "advance", "--all", "--no-wait")

    def test_a_refused_sequence_does_not_end_it(self, server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
        """The other sequences are advanced, and the exit code is 1."""
        server.fail_next("AdvanceSequence", "SEQUENCE_INVALID", grpc.StatusCode.FAILED_PRECONDITION)
        assert cli.main(["sequences", "advance", "--all"]) == 1
        out, err = capsys.readouterr()
        assert [line.partition(":")[0] for line in out.splitlines()] == ["b", "c"]
        assert err.splitlines() == ["SEQUENCE_INVALID: SEQUENCE_INVALID it is", "advanced 2 sequences, not a"]

    def test_a_lost_credential_ends_it(self, server: FakeServer, run: Command) -> None:
        """An error that the other sequences would have, too, ends the command."""
        server.fail_next("AdvanceSequence", "UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED)
        assert run.error_line(1, "sequences", "advance", "--all").startswith("UNAUTHENTICATED: ")
        assert self.advanced(server).keys() == {"a"}

    def test_a_server_without_a_witness_is_refused(self, server: FakeServer, run: Command) -> None:
        """Without a witness nothing is advanced, and the error has the next step."""
        server.node.witness = ""
        line = run.error_line(1, "sequences", "advance", "--all")
        assert line.startswith(f"the server at {server.target} has no witness, ")
        assert "--past" in line
        assert not server.requests["AdvanceSequence"]


def test_wait_shows_progress_bar_on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a change shows a progress bar on a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    began = time.monotonic()
    _progress.wait(0.3)
    assert time.monotonic() - began >= 0.3
    assert "effective on all nodes" in terminal.getvalue()


def test_no_progress_bar_if_a_change_is_effective_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that nobody has to wait for leaves no trace of a progress bar."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    _progress.wait(0.0)
    assert not terminal.getvalue()


def test_update_help_lists_only_changeable_settings(run: Command) -> None:
    """The help of update lists no setting that is fixed at creation."""
    assert "--time-zone" in run("sequences", "create", "--help")
    assert not {"--kind", "--reset", "--time-zone"} & set(run("sequences", "update", "--help").split())


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("sequence.min_value", "INVALID_REQUEST: --min-value: INVALID_REQUEST it is"),
        ("sequence.labels", "INVALID_REQUEST: --label: INVALID_REQUEST it is"),
        ("sequence.name", "INVALID_REQUEST: name: INVALID_REQUEST it is"),
        ("sequence.etag", "INVALID_REQUEST: sequence.etag: INVALID_REQUEST it is"),
        ("request_id", "INVALID_REQUEST: request_id: INVALID_REQUEST it is"),
    ],
)
def test_rejected_setting_is_named_by_its_option(server: FakeServer, run: Command, field: str, message: str) -> None:
    """The error for a field of the request names the option that sets it."""
    server.fail_next("CreateSequence", "INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT, field=field)
    assert run.error_line(1, "sequences", "create", "a", "--label", "a=b") == message


def test_unknown_enum_value_is_printed_as_number(server: FakeServer, run: Command) -> None:
    """A value of an enum that this client does not know is printed as its number."""
    run("sequences", "create", "a")
    server.sequences["a"].kind = 99  # type: ignore[assignment]
    assert "kind: 99\n" in run("sequences", "show", "a")
    assert "\t99" in run("sequences", "list")
