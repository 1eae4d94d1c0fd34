"""The command line: what it prints, where, and its exit codes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from idalloc import cli
from idalloc.cli import _health, _options
from tests.support.fake_server import FakeServer, serving

COMMAND = [sys.executable, "-c", "import sys; from idalloc.cli import main; sys.exit(main())"]


def plain_environment(**more: str) -> dict[str, str]:
    """What a process of our own has: nothing that hides what the command itself has to see to."""
    return {
        name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "GRPC_VERBOSITY")
    } | more


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
        """Runs a command that must succeed, and returns what it printed."""
        code = cli.main(args)
        out, err = self._capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    def fails(self, code: int, *args: str) -> str:
        """Runs a command that must fail, and returns its one line on stderr."""
        assert cli.main(args) == code
        out, err = self._capsys.readouterr()
        assert out == ""
        [line] = err.splitlines()
        return line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def test_ids_are_printed_one_on_a_line(server: FakeServer, run: Run) -> None:
    assert run("allocate", "orders") == "1\n"
    assert run("allocate", "orders", "3") == "2\n3\n4\n"
    assert run("stream", "orders", "--total", "4", "--chunk", "3") == "5\n6\n7\n8\n"
    assert run("docid", "2") == "00076553f1000000000000000001\n00076553f1000000000000000002\n"


def test_large_ranges_lose_nothing_on_their_way_to_the_output(server: FakeServer, run: Run) -> None:
    printed = run("allocate", "orders", "123456").split("\n")
    assert printed == [*map(str, range(1, 123457)), ""]


def test_ranges_are_printed_as_seq_takes_them(server: FakeServer, run: Run) -> None:
    server.step = -2
    assert run("allocate", "down", "3", "--ranges") == "-2 -6 -2\n"
    assert run("stream", "down", "--total", "4", "--chunk", "3", "--ranges") == "-8 -12 -2\n-14 -14 -2\n"


def test_ids_that_come_again_are_told_with_their_period(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.period = "2026"
    told = "ids of period 2026, and each other period has the same ones: --texts prints them with it\n"
    for line, ids in (("allocate bills 2", "1\n2\n"), ("stream bills --total 3 --chunk 2", "3\n4\n5\n")):
        assert cli.main(line.split()) == 0
        assert capsys.readouterr() == (ids, told)
    for line in ("allocate bills --texts", "allocate bills --json", "stream bills --total 2 --texts"):
        assert cli.main(line.split()) == 0
        assert capsys.readouterr().err == ""


def test_json_is_the_mapping_of_proto3(server: FakeServer, run: Run) -> None:
    reply = json.loads(run("allocate", "orders", "3", "--json"))
    assert reply == {
        "range": {"firstId": "1", "lastId": "3", "step": "1", "idCount": "3"},
        "ttl": "60s",
        "nodeId": str(7 * 2**32),
    }
    lines = run("stream", "orders", "--total", "5", "--chunk", "3", "--json").splitlines()
    assert [json.loads(line)["range"]["idCount"] for line in lines] == ["3", "2"]
    assert json.loads(run("docid", "--json")) == {"docIds": ["00076553f1000000000000000001"]}
    assert json.loads(run("node", "--json")) == {"prefix": 7, "version": "1.2.3", "store": "memory://[1]"}
    assert json.loads(run("health", "--json")) == {"status": "SERVING"}


def test_many_document_ids_come_as_a_stream(server: FakeServer, run: Run) -> None:
    assert len(set(run("docid", "25000").split())) == 25_000
    assert not server.requests["GenerateDocId"]
    lines = run("docid", "25000", "--json").splitlines()
    assert [len(json.loads(line)["docIds"]) for line in lines] == [10_000, 10_000, 5_000]


def test_document_ids_take_mysqls_variables(server: FakeServer, run: Run) -> None:
    run("docid", "2", "--offset", "3", "--increment", "10")
    run("docid", "10001", "--offset", "3", "--increment", "10")
    asked = server.requests["GenerateDocId"] + server.requests["StreamDocIds"]
    assert [(each.auto_increment_offset, each.auto_increment_increment) for each in asked] == [(3, 10)] * 2


def test_node(server: FakeServer, run: Run) -> None:
    lines = run("node").splitlines()
    assert "prefix: 7" in lines
    assert "store: memory://[1]" in lines


def test_health_is_told_by_the_exit_code(server: FakeServer, run: Run) -> None:
    assert run("health") == "SERVING\n"
    name = "a" * 200  # its length takes two bytes
    server.health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    assert run.fails(1, "health", name).startswith("NOT_SERVING")
    assert run.fails(1, "health", "nope") == f"SERVICE_UNKNOWN: nope at {server.target}"
    assert run.fails(1, "--server", "127.0.0.1:1", "health").startswith("SERVER_UNREACHABLE: ")


@pytest.mark.parametrize("service", ["", "a", "é" * 63, "a" * 127, "a" * 128, "a" * 20_000])
def test_the_health_request_is_what_its_own_class_reads(service: str) -> None:
    assert health_pb2.HealthCheckRequest.FromString(_health._request(service)).service == service


def test_health_names_a_store_that_fails_and_why(server: FakeServer, run: Run) -> None:
    """The server may still serve from its leases, so the exit code is that of the server."""
    server.health.set("store", health_pb2.HealthCheckResponse.NOT_SERVING)
    server.node.store_error = "CrateDB is away"
    reply = {"status": "SERVING", "failing": {"store": "CrateDB is away"}}
    assert json.loads(run("health", "--json")) == reply
    assert run.fails(1, "health", "store").startswith("NOT_SERVING")
    server.fail_next("GetNode", "PERMISSION_DENIED", grpc.StatusCode.PERMISSION_DENIED)
    assert json.loads(run("health", "--json"))["failing"] == {"store": "its log says why"}


@pytest.mark.parametrize("number", health_pb2.HealthCheckResponse.ServingStatus.values())
def test_the_health_reply_is_what_its_own_class_writes(number: Any) -> None:
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(number)
    assert _health._status(health_pb2.HealthCheckResponse(status=number).SerializeToString()) == name


def test_the_server_and_the_timeout_may_be_said_before_and_after_the_verb(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IDALLOC_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("IDALLOC_TIMEOUT", "1h")
    run("--server", server.target, "node")
    run("--server", "127.0.0.1:1", "node", "--server", server.target)
    run("--server", server.target, "--timeout", "30s", "node")
    run("--server", server.target, "--timeout", "30s", "node", "--timeout", "2m")
    assert server.deadlines["GetNode"] == pytest.approx([3600, 3600, 30, 120], rel=0.05)


def test_a_stream_has_a_timeout_only_if_it_is_said_after_the_verb(server: FakeServer, run: Run) -> None:
    run("--timeout", "30s", "stream", "orders", "--total", "1")
    run("stream", "orders", "--total", "1", "--timeout", "30s")
    without, given = server.deadlines["StreamRanges"]
    assert without is None or without > 10**6
    assert given == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(("text", "value"), [("500ms", 0.5), ("30s", 30), ("2m", 120), ("1.5h", 5400)])
def test_durations(text: str, value: float) -> None:
    assert _options.seconds(text) == value


def test_an_error_is_one_line_with_its_reason(server: FakeServer, run: Run) -> None:
    server.last["orders"] = 5
    assert run.fails(1, "allocate", "orders", "10") == "SEQUENCE_EXHAUSTED: SEQUENCE_EXHAUSTED it is"
    server.hold.clear()
    late = run.fails(1, "node", "--timeout", "100ms")
    assert late.startswith(f"DEADLINE_EXCEEDED: no answer from {server.target}: ")
    assert late.endswith("; --timeout gives it longer")
    assert run.fails(1, "--server", "127.0.0.1:1", "node").startswith("SERVER_UNREACHABLE: ")


def test_a_server_of_another_kind_is_named(server: FakeServer, run: Run) -> None:
    server.fail_next("GetNode", "", grpc.StatusCode.UNIMPLEMENTED)
    assert run.fails(1, "node").startswith(f"UNIMPLEMENTED: {server.target} does not implement this method")


def test_a_fault_of_the_program_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(_options, "seconds", fault)
    assert run.fails(1, "node").startswith("idalloc: ZeroDivisionError: one two")


@pytest.mark.parametrize(
    ("line", "blamed"),
    [
        ("allocate", "SEQUENCE"),
        ("allocate orders many", "COUNT"),
        ("allocate orders 0", "COUNT"),
        ("allocate orders 9223372036854775808", "COUNT"),
        ("stream orders", "--total"),
        ("stream orders --total 0", "--total"),
        ("docid 1 --offset 65536", "'--offset': must be a whole number from 0 to 65535"),
        ("node --timeout 5", "--timeout"),
        ("node --timeout 0s", "--timeout"),
        ("--timeout 5 health", "--timeout"),
        ("node --server http://127.0.0.1:50051", "'--server': must be HOST:PORT"),
        ("--server https://127.0.0.1:50051 health", "'--server': must be HOST:PORT"),
        ("node --bogus", "--bogus"),
        ("allocat orders", "'allocate'"),
        ("allocate \udcff", "UTF-8"),
        ("health \udcff", "UTF-8"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(server: FakeServer, run: Run, line: str, blamed: str) -> None:
    assert blamed in run.fails(2, *line.split())
    assert not server.requests


def test_help_and_version(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("allocate", "stream", "docid", "node", "health", "serve", "config"):
        assert re.search(rf"\b{verb}\b", run("--help"))
    assert "--total" in run("stream", "-h")
    assert "{SEQUENCE} [COUNT]" in run("allocate", "-h")
    assert run("--version") == f"idalloc {metadata.version('idalloc')}\n"
    assert cli.main([]) == 2
    assert "Usage" in "".join(capsys.readouterr())


def test_a_terminal_gets_a_table(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    assert cli.main(["node"]) == 0
    assert "memory://[1]" in terminal.getvalue()
    assert "store:" not in terminal.getvalue()


# In processes of their own: terminals, signals, pipes, and what is imported.


def test_progress_is_shown_on_a_terminal_that_does_not_get_the_output(server: FakeServer) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "stream", "orders", "--total", "300000"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=plain_environment(TERM="xterm", COLUMNS="100"),
    )
    os.close(theirs)
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                shown.append(data)
        except OSError:  # how a terminal says that no one is left
            pass

    reader = threading.Thread(target=read)
    reader.start()
    output, _ = process.communicate(timeout=30)
    reader.join()
    os.close(ours)
    assert process.returncode == 0
    assert output.split() == [b"%d" % n for n in range(1, 300_001)]
    terminal = b"".join(shown).decode()
    assert "300,000 of 300,000" in terminal
    assert "ids/s" in terminal


def test_no_progress_without_a_terminal(server: FakeServer, run: Run) -> None:
    assert run("stream", "orders", "--total", "3") == "1\n2\n3\n"  # and stderr is empty


def test_grpcs_own_words_are_not_printed() -> None:
    done = subprocess.run(
        [*COMMAND, "node", "--server", "xds:///foo"], env=plain_environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("SERVER_UNREACHABLE: ")


def test_ctrl_c_is_130_and_no_traceback(server: FakeServer) -> None:
    for verb, method in (
        (["stream", "orders", "--total", "1000000000000"], "StreamRanges"),
        (["allocate", "orders", "--timeout", "60s"], "AllocateRange"),
    ):
        if verb[0] == "allocate":
            server.hold.clear()
        process = subprocess.Popen([*COMMAND, *verb], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while not server.authorizations[method]:  # it is under way
            assert time.monotonic() < deadline, f"{method} was not called"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("total", ["100", "1000000000000"])
def test_a_reader_that_has_enough_is_no_error_to_speak_of(server: FakeServer, total: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "stream", "orders", "--total", total],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=plain_environment(),
    )
    assert process.stdout
    assert process.stderr
    if len(total) > 3:
        assert process.stdout.readline() == b"1\n"
    process.stdout.close()
    assert process.wait(20) == 1
    with process.stderr:
        assert process.stderr.read() == b""


def modules_after(*args: str) -> set[str]:
    script = "import sys; from idalloc.cli import main; main(); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=30)
    return set(done.stderr.split())


def test_the_server_is_not_loaded_for_the_clients_verbs(server: FakeServer) -> None:
    for args in (["allocate", "orders"], ["--help"], ["health"]):
        modules = modules_after(*args)
        assert "idalloc.cli" in modules
        assert not {"idalloc_server", "structlog", "uvloop"} & modules


def test_health_loads_no_more_than_it_needs(server: FakeServer) -> None:
    modules = modules_after("health")
    assert "grpc" in modules
    assert not {"google.protobuf", "idalloc._sync.client", "rich"} & modules


def plugin(monkeypatch: pytest.MonkeyPatch, **load: Any) -> None:
    def others() -> dict[str, Any]:
        return {name: Entry(name, function) for name, function in load.items()}

    class Entry:
        def __init__(self, name: str, function: Any) -> None:
            self.name, self._function = name, function

        def load(self) -> Any:
            return self._function()

    monkeypatch.setattr(cli._plugins, "_others", others)


def test_without_the_servers_packages_its_verbs_say_how_to_get_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'structlog'", name="structlog")

    plugin(monkeypatch, serve=missing)
    line = run.fails(2, "serve", "--listen", "127.0.0.1:0")
    assert "pip install 'idalloc[server]'" in line
    assert "structlog" in line
    assert "serve" in run("--help")


def test_a_verb_of_another_package_is_a_command_like_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import typer

    def greet(name: str, loud: bool = False) -> None:
        """Greet."""
        print(f"hello {name}" + "!" * loud)

    group = typer.Typer()
    group.command("show")(lambda: print("shown"))
    group.callback()(lambda: None)
    plugin(monkeypatch, greet=lambda: greet, config=lambda: group)
    assert run("greet", "you", "--loud") == "hello you!\n"
    assert run("config", "show") == "shown\n"
    assert "--bogus" in run.fails(2, "greet", "you", "--bogus")
    assert "greet" in run("--help")


def test_completion(server: FakeServer) -> None:
    def complete(*words: str) -> list[str]:
        env = os.environ | {
            "_IDALLOC_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["idalloc", *words]),
            "COMP_CWORD": str(len(words)),
        }
        return subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=30).stdout.split()

    assert complete("al") == ["allocate"]
    assert complete("stream", "--to") == ["--total"]
    assert "serve" in complete("")
    assert "--listen" in complete("serve", "--li")


def test_a_stream_says_nothing_of_a_break_that_it_mends(server: FakeServer, run: Run) -> None:
    server.break_after = 1
    server.fail_next("StreamRanges", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE, retry_after=0.01)
    assert run("stream", "orders", "--total", "5", "--chunk", "2") == "1\n2\n3\n4\n5\n"
