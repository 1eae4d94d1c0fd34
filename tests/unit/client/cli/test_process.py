"""The command in a process of its own: terminal, signals, pipes, imports and completion."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.support.command_line import COMMAND, plain_environment
from tests.support.fake_server import FakeServer
from tests.support.waiting import wait_until


def test_progress_bar_is_shown_on_terminal(server: FakeServer) -> None:
    """A stream shows a progress bar if only standard error is a terminal."""
    pty = pytest.importorskip("pty")
    terminal, replica = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "stream", "orders", "--total", "300000"],
        stdout=subprocess.PIPE,
        stderr=replica,
        env=plain_environment(TERM="xterm", COLUMNS="100"),
    )
    os.close(replica)
    chunks: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(terminal, 65536):
                chunks.append(data)
        except OSError:  # the process has closed the terminal
            pass

    reader = threading.Thread(target=read)
    reader.start()
    output, _ = process.communicate(timeout=30)
    reader.join()
    os.close(terminal)
    assert process.returncode == 0
    assert output.split() == [b"%d" % n for n in range(1, 300_001)]
    printed = b"".join(chunks).decode()
    assert "300,000 of 300,000" in printed
    assert "ids/s" in printed


def test_grpc_core_logs_are_not_printed() -> None:
    """Messages of gRPC's core do not reach standard error."""
    done = subprocess.run(
        [*COMMAND, "node", "show", "--server", "xds:///foo"], env=plain_environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("SERVER_UNREACHABLE: ")


def test_ctrl_c_exits_with_130_without_traceback(server: FakeServer) -> None:
    """Ctrl-C ends a command with 130 and prints nothing."""
    for args, method in (
        (["stream", "orders", "--total", "1000000000000"], "StreamRanges"),
        (["allocate", "orders", "--timeout", "60s"], "AllocateRange"),
    ):
        if args[0] == "allocate":
            server.hold.clear()
        process = subprocess.Popen([*COMMAND, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_until(lambda: server.authorizations[method], f"a call of {method}")  # noqa: B023
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("total", ["100", "1000000000000"])
def test_closed_pipe_exits_with_1_silently(server: FakeServer, total: str) -> None:
    """A reader that closes the pipe ends the command without a message."""
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


def test_client_commands_do_not_import_the_server(server: FakeServer) -> None:
    """The client's commands do not import the server's packages."""
    for args in (["allocate", "orders"], ["--help"], ["health"]):
        modules = modules_after(*args)
        assert "idalloc.cli" in modules
        assert not {"idalloc_server", "structlog", "uvloop"} & modules


def test_allocate_imports_what_its_call_needs(server: FakeServer) -> None:
    """allocate imports neither pydantic, nor rich, nor the parts of other commands."""
    modules = modules_after("allocate", "orders", "3", "--timeout", "5s", "--ranges")
    assert "idalloc._sync.client" in modules
    unused = {"idalloc.aio", "idalloc.bench", "idalloc.ext", "idalloc.verify", "pydantic", "rich"}
    assert unused & modules == set()


def test_health_imports_only_grpc(server: FakeServer) -> None:
    """health imports neither protobuf nor the client."""
    modules = modules_after("health")
    assert "grpc" in modules
    assert not {"google.protobuf", "idalloc._sync.client", "pydantic", "rich"} & modules


@pytest.mark.test_long
def test_shell_completion_lists_commands_and_options(server: FakeServer) -> None:
    """Shell completion knows commands and options, the server's included."""

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
