"""The commands that issue ids, and `node`: output, errors and exit codes."""

import json
import re
import sys
from importlib import metadata

import grpc
import pytest

from idalloc import cli
from idalloc.cli import _connection, _options
from tests.support.command_line import Command, Terminal
from tests.support.fake_server import FakeServer


def test_ids_are_printed_one_on_a_line(server: FakeServer, run: Command) -> None:
    """Each id is printed on a line of its own."""
    assert run("allocate", "orders") == "1\n"
    assert run("allocate", "orders", "3") == "2\n3\n4\n"
    assert run("stream", "orders", "--total", "4", "--chunk", "3") == "5\n6\n7\n8\n"
    assert run("docid", "2") == "00076553f1000000000000000001\n00076553f1000000000000000002\n"


def test_large_range_is_printed_completely(server: FakeServer, run: Command) -> None:
    """A range of more than one write is printed without a gap."""
    printed = run("allocate", "orders", "123456").split("\n")
    assert printed == [*map(str, range(1, 123457)), ""]


def test_ranges_are_printed_as_first_last_step(server: FakeServer, run: Command) -> None:
    """--ranges prints the first id, the last id and the step of each range."""
    server.step = -2
    assert run("allocate", "down", "3", "--ranges") == "-2 -6 -2\n"
    assert run("stream", "down", "--total", "4", "--chunk", "3", "--ranges") == "-8 -12 -2\n-14 -14 -2\n"


def test_period_of_repeating_ids_is_reported(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers that repeat in other periods are printed with a warning on standard error."""
    server.period = "2026"
    warning = "ids of period 2026; other periods repeat these numbers: --texts adds the period\n"
    for line, ids in (("allocate bills 2", "1\n2\n"), ("stream bills --total 3 --chunk 2", "3\n4\n5\n")):
        assert cli.main(line.split()) == 0
        assert capsys.readouterr() == (ids, warning)
    for line in ("allocate bills --texts", "allocate bills --json", "stream bills --total 2 --texts"):
        assert cli.main(line.split()) == 0
        assert capsys.readouterr().err == ""


def test_json_is_the_proto3_mapping(server: FakeServer, run: Command) -> None:
    """--json prints replies in proto3's JSON mapping."""
    reply = json.loads(run("allocate", "orders", "3", "--json"))
    assert reply == {
        "range": {"firstId": "1", "lastId": "3", "step": "1", "idCount": "3"},
        "ttl": "60s",
        "nodeId": str(7 * 2**32),
    }
    lines = run("stream", "orders", "--total", "5", "--chunk", "3", "--json").splitlines()
    assert [json.loads(line)["range"]["idCount"] for line in lines] == ["3", "2"]
    assert json.loads(run("docid", "--json")) == {"docIds": ["00076553f1000000000000000001"]}
    assert json.loads(run("node", "show", "--json")) == {"prefix": 7, "version": "1.2.3", "store": "memory://[1]"}
    assert json.loads(run("health", "--json")) == {"status": "SERVING"}


def test_many_doc_ids_are_streamed(server: FakeServer, run: Command) -> None:
    """docid calls StreamDocIds for more ids than one message can have."""
    assert len(set(run("docid", "25000").split())) == 25_000
    assert not server.requests["GenerateDocId"]
    lines = run("docid", "25000", "--json").splitlines()
    assert [len(json.loads(line)["docIds"]) for line in lines] == [10_000, 10_000, 5_000]


def test_doc_ids_use_mysql_variables(server: FakeServer, run: Command) -> None:
    """--offset and --increment reach both RPCs for document ids."""
    run("docid", "2", "--offset", "3", "--increment", "10")
    run("docid", "10001", "--offset", "3", "--increment", "10")
    requests = server.requests["GenerateDocId"] + server.requests["StreamDocIds"]
    assert [(each.auto_increment_offset, each.auto_increment_increment) for each in requests] == [(3, 10)] * 2


def test_node_prints_fields(server: FakeServer, run: Command) -> None:
    """node prints the server process's fields."""
    lines = run("node", "show").splitlines()
    assert "prefix: 7" in lines
    assert "store: memory://[1]" in lines


def test_the_last_of_several_options_applies(server: FakeServer, run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last --server and --timeout applies, at any level, before the environment."""
    monkeypatch.setenv("IDALLOC_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("IDALLOC_TIMEOUT", "1h")
    run("--server", server.target, "node", "show")
    run("--server", "127.0.0.1:1", "node", "show", "--server", server.target)
    run("--server", server.target, "--timeout", "30s", "node", "show")
    run("--server", server.target, "--timeout", "30s", "node", "show", "--timeout", "2m")
    run("--server", "127.0.0.1:1", "--timeout", "30s", "node", "--server", server.target, "--timeout", "2m", "show")
    assert server.deadlines["GetNode"] == pytest.approx([3600, 3600, 30, 120, 120], rel=0.05)


def test_stream_has_only_its_own_timeout(server: FakeServer, run: Command) -> None:
    """Only a --timeout after the command limits a whole stream."""
    run("--timeout", "30s", "stream", "orders", "--total", "1")
    run("stream", "orders", "--total", "1", "--timeout", "30s")
    without, given = server.deadlines["StreamRanges"]
    assert without is None or without > 10**6
    assert given == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(("text", "value"), [("500ms", 0.5), ("30s", 30), ("2m", 120), ("1.5h", 5400)])
def test_durations_are_parsed(text: str, value: float) -> None:
    """Durations have a unit: ms, s, m or h."""
    assert _options.parse_seconds(text) == value


def test_error_is_one_line_with_its_reason(server: FakeServer, run: Command) -> None:
    """A failed call prints one line that begins with its reason."""
    server.last["orders"] = 5
    assert run.error_line(1, "allocate", "orders", "10") == "SEQUENCE_EXHAUSTED: SEQUENCE_EXHAUSTED it is"
    server.hold.clear()
    late = run.error_line(1, "node", "show", "--timeout", "100ms")
    assert late.startswith(f"DEADLINE_EXCEEDED: no answer from {server.target}: ")
    assert late.endswith("; raise the limit with --timeout")
    assert run.error_line(1, "--server", "127.0.0.1:1", "node", "show").startswith("SERVER_UNREACHABLE: ")


def test_server_without_idalloc_is_reported(server: FakeServer, run: Command) -> None:
    """UNIMPLEMENTED is explained: the server may be no idalloc."""
    server.fail_next("GetNode", "", grpc.StatusCode.UNIMPLEMENTED)
    assert run.error_line(1, "node", "show").startswith(
        f"UNIMPLEMENTED: {server.target} does not implement this method"
    )


def test_unexpected_exception_is_one_line(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is one line, without a traceback."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(_connection, "parse_seconds", fail)
    assert run.error_line(1, "node", "show").startswith("idalloc: ZeroDivisionError: one two")


def test_help_and_version_are_printed(run: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """--help lists all commands and their arguments; --version prints the package's version."""
    for command in ("allocate", "stream", "docid", "node", "health", "serve", "config"):
        assert re.search(rf"\b{command}\b", run("--help"))
    assert "--total" in run("stream", "-h")
    assert "{SEQUENCE} [COUNT]" in run("allocate", "-h")
    assert run("--version") == f"idalloc {metadata.version('idalloc')}\n"
    assert cli.main([]) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_terminal_gets_table(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields are a table on a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    assert cli.main(["node", "show"]) == 0
    assert "memory://[1]" in terminal.getvalue()
    assert "store:" not in terminal.getvalue()


def test_no_progress_bar_without_terminal(server: FakeServer, run: Command) -> None:
    """Without a terminal, standard error stays empty."""
    assert run("stream", "orders", "--total", "3") == "1\n2\n3\n"  # it also asserts that standard error is empty


def test_stream_resumes_silently(server: FakeServer, run: Command) -> None:
    """A stream that breaks is resumed; it prints every id once and no error."""
    server.break_after = 1
    server.fail_next("StreamRanges", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, retry_after=0.01)
    assert run("stream", "orders", "--total", "5", "--chunk", "2") == "1\n2\n3\n4\n5\n"


def test_node_set_sends_the_options(server: FakeServer, run: Command) -> None:
    """node set sends the given options and prints the changed node."""
    run("node", "set", "--prefix", "0", "--auto-increment-increment", "10", "--persist")
    [request] = server.requests["UpdateNode"]
    assert list(request.update_mask.paths) == ["prefix", "auto_increment_increment"]
    assert request.persist
    assert "auto increment increment: 10" in run("node", "show").splitlines()
    assert json.loads(run("node", "--server", server.target, "set", "--prefix", "9", "--json"))["prefix"] == 9
    server.fail_next("UpdateNode", "PREFIX_IN_USE", grpc.StatusCode.FAILED_PRECONDITION, prefix=3)
    assert run.error_line(1, "node", "set", "--prefix", "3").startswith("PREFIX_IN_USE: ")
