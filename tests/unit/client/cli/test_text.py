"""The command escapes control characters in all texts that it prints."""

import ast
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from idalloc import cli
from idalloc.cli import _printer, _progress
from idalloc.v1 import node_pb2
from idalloc.v1 import sequences_pb2 as pb
from tests.support.command_line import Terminal
from tests.support.fake_server import FakeServer
from tests.support.planted_logs import Planted, PlantedLog

# Sets the title, clears the screen, forges a line and changes the writing direction.
HOSTILE = "x\x1b]0;t\x07\x1b[2J\x9b1m\x7f\r\nPROVED\t\u202etxt\u2066\u200f\u061c\u2028y"
CODES = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
UNSAFE = re.compile(f"[{''.join(map(re.escape, map(chr, CODES)))}]")
# Escape sequences of Rich, for styles and progress bars.
STYLE = re.compile(r"\r?\x1b\[(\?25[lh]|[0-9;]*m|2K|1A)|\r(?=\x1b\[2K)")
COMMANDS = [
    "allocate orders",
    "allocate orders --texts",
    "allocate orders --json",
    "stream orders --total 2",
    "stream orders --total 2 --texts",
    "stream orders --total 2 --json",
    "docid 2",
    "docid 2 --json",
    "uuid 2",
    "uuid 2 --json",
    "sequences parse orders T-1",
    "sequences parse orders T-1 --json",
    "sequences list",
    "sequences list --json",
    "sequences show orders",
    "sequences show orders --json",
    "sequences create new --description d",
    "sequences update orders --description d",
    "sequences advance orders --past 5",
    "sequences delete orders",
    "node show",
    "node show --json",
    "health",
    "health none",
]


@pytest.fixture
def server(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A server whose texts are all hostile."""
    server.period = HOSTILE
    server.node = node_pb2.Node(version=HOSTILE, store=HOSTILE)
    monkeypatch.setattr(server, "_texts", lambda view, ids: [HOSTILE] * ids.id_count)
    monkeypatch.setattr(server, "_doc_ids", lambda request, count, context: {"doc_ids": [HOSTILE] * count})
    for name in ("orders", HOSTILE):
        server.sequences[name] = pb.Sequence(
            name=name,
            description=HOSTILE,
            labels={HOSTILE: HOSTILE},
            format=HOSTILE,
            time_zone=HOSTILE,
            reset=pb.RESET_YEARLY,
            step=1,
            last_value=7,
            max_value=9,
            period=HOSTILE,
            etag=HOSTILE,
        )
    return server


Capture = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["terminal", "pipe"])
def capture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Return a function that runs a command, on a terminal or in a pipe: exit code and output."""

    def run(line: str, *more: str) -> tuple[int, str, str]:
        kind = Terminal if request.param == "terminal" else io.StringIO
        out, err = kind(), kind()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            code = cli.main([*line.split(), *more])
        return code, out.getvalue(), err.getvalue()

    return run


def check_escaped(printed: str, max_lines: int = 100) -> None:
    """Assert that the output has no control characters and no forged line."""
    plain = STYLE.sub("", printed).replace("\n", "").replace("\t", "")
    assert not UNSAFE.search(plain), ascii(printed)
    assert not re.search(r"^PROVED", printed, re.MULTILINE), "a text forged a line"
    assert len(printed.splitlines()) <= max_lines


@pytest.mark.parametrize("line", COMMANDS)
def test_texts_of_replies_are_escaped(server: FakeServer, capture: Capture, line: str) -> None:
    """Texts of servers and other tenants cannot control a terminal, forge a line or break JSON."""
    _, out, err = capture(line)
    check_escaped(out)
    check_escaped(err)
    if line.endswith("--json") and out:
        for text in out.splitlines() if line.startswith("stream") else [out]:
            json.loads(text)


@pytest.mark.parametrize("line", ["allocate orders", "sequences show orders", "health", "bench --total 1 --warm-up 0s"])
def test_status_messages_are_escaped(server: FakeServer, capture: Capture, line: str) -> None:
    """The status message of any server is escaped."""
    for method in ("AllocateRange", "GetSequence"):
        server.fail_next(method, HOSTILE, grpc.StatusCode.INTERNAL, field=HOSTILE, times=50)
    code, out, err = capture(line)
    assert code in (0, 1)
    check_escaped(out)
    check_escaped(err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--server", f"{HOSTILE}:1", "allocate", "orders"),
        ("health", HOSTILE),
        ("sequences", "show", HOSTILE),
        ("sequences", "parse", "orders", HOSTILE),
        (f"--{HOSTILE}", "allocate"),
        ("allocate", "orders", HOSTILE),
        (HOSTILE,),
        ("sequences", "advance", "orders", "--past-table", f"crate://127.0.0.1:1/{HOSTILE}.b.c"),
    ],
)
def test_arguments_are_escaped(server: FakeServer, capture: Capture, arguments: tuple[str, ...]) -> None:
    """Arguments, which a script may pass on from others, are escaped."""
    _, out, err = capture("", *arguments)
    check_escaped(out)
    check_escaped(err, max_lines=1)


def test_verify_escapes_names_of_files_and_sequences(capture: Capture, tmp_path: Path) -> None:
    """The name of a log or sequence cannot forge a line of the report."""
    pytest.importorskip("numpy")
    log = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    records = [Planted(1, 5, sequence="a\u202eb"), Planted(3, 5, asked=9, sequence="a\u202eb")]
    PlantedLog(records).write(log)
    with log.open("ab") as file:
        file.write(b'{"cut')
    for more in ((), ("--json",)):
        code, out, err = capture("verify", str(log), *more)
        assert (code, err) == (1, "")
        check_escaped(out)
        assert not more or json.loads(out)["findings"]["duplicates"]
    code, out, err = capture("verify", str(tmp_path / HOSTILE))
    assert (code, out) == (2, "")
    check_escaped(err, max_lines=1)


def test_only_the_printer_writes_to_streams() -> None:
    """Every command prints by idalloc.cli._printer, which escapes texts; progress bars do not."""
    folder = Path(cli.__file__).parent
    for file in sorted(folder.glob("*.py")):
        if file in (Path(_printer.__file__), Path(_progress.__file__)):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "print", f"{file.name}:{node.lineno}: print"
                assert not re.search(r"std(out|err)\.write$|echo$|Console$", called), (
                    f"{file.name}:{node.lineno}: {called}"
                )


def test_printable_text_is_not_escaped(server: FakeServer, capture: Capture) -> None:
    """Letters of any script stay readable."""
    text = "Grüße, 注文, №7"
    server.sequences["orders"] = pb.Sequence(name="orders", description=text)
    assert text in capture("sequences show orders")[1]
