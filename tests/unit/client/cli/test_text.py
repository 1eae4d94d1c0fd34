"""What the command prints of texts that others wrote: never a character that changes the terminal (issue 15, 4)."""

import ast
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from idalloc import cli
from idalloc.cli import _output
from idalloc.v1 import node_pb2
from idalloc.v1 import sequences_pb2 as pb
from tests.support.fake_server import FakeServer, serving
from tests.support.planted_logs import Planted, PlantedLog

# Sets the title and clears the screen, forges a line, turns the direction of what follows.
HOSTILE = "x\x1b]0;t\x07\x1b[2J\x9b1m\x7f\r\nPROVED\t\u202etxt\u2066\u200f\u061c\u2028y"
CODES = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
UNSAFE = re.compile(f"[{''.join(map(re.escape, map(chr, CODES)))}]")
# What Rich writes for bold text, and for its bar.
STYLE = re.compile(r"\r?\x1b\[(\?25[lh]|[0-9;]*m|2K|1A)|\r(?=\x1b\[2K)")
VERBS = [
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
    "parse orders T-1",
    "parse orders T-1 --json",
    "sequences list",
    "sequences list --json",
    "sequences show orders",
    "sequences show orders --json",
    "sequences create new --description d",
    "sequences update orders --description d",
    "sequences advance orders --past 5",
    "sequences delete orders",
    "node",
    "node --json",
    "health",
    "health none",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A server every text of which is hostile."""
    with serving() as server:
        monkeypatch.setenv("IDALLOC_SERVER", server.target)
        monkeypatch.delenv("IDALLOC_TIMEOUT", raising=False)
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
        yield server


Capture = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["terminal", "pipe"])
def capture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Runs a command with its output on a terminal, or not."""

    def run(line: str, *more: str) -> tuple[int, str, str]:
        kind = Terminal if request.param == "terminal" else io.StringIO
        out, err = kind(), kind()
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            code = cli.main([*line.split(), *more])
        return code, out.getvalue(), err.getvalue()

    return run


def check_safe(printed: str, most_lines: int = 100) -> None:
    """Fails where a hostile text came through."""
    plain = STYLE.sub("", printed).replace("\n", "").replace("\t", "")
    assert not UNSAFE.search(plain), ascii(printed)
    assert not re.search(r"^PROVED", printed, re.MULTILINE), "a text forged a line"
    assert len(printed.splitlines()) <= most_lines


@pytest.mark.parametrize("line", VERBS)
def test_replies_are_printed_safe(server: FakeServer, capture: Capture, line: str) -> None:
    """Texts of a server and of other tenants: on a terminal, in a pipe and as JSON."""
    _, out, err = capture(line)
    check_safe(out)
    check_safe(err)
    if line.endswith("--json") and out:
        for text in out.splitlines() if line.startswith("stream") else [out]:
            json.loads(text)


@pytest.mark.parametrize("line", ["allocate orders", "sequences show orders", "health", "bench --total 1 --warm-up 0s"])
def test_errors_of_servers_are_printed_safe(server: FakeServer, capture: Capture, line: str) -> None:
    """A status message is the server's own text, of a server that may be anybody's."""
    for method in ("AllocateRange", "GetSequence"):
        server.fail_next(method, HOSTILE, grpc.StatusCode.INTERNAL, field=HOSTILE, times=50)
    code, out, err = capture(line)
    assert code in (0, 1)
    check_safe(out)
    check_safe(err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--server", f"{HOSTILE}:1", "allocate", "orders"),
        ("health", HOSTILE),
        ("sequences", "show", HOSTILE),
        ("parse", "orders", HOSTILE),
        (f"--{HOSTILE}", "allocate"),
        ("allocate", "orders", HOSTILE),
        (HOSTILE,),
        ("sequences", "advance", "orders", "--past-table", f"crate://127.0.0.1:1/{HOSTILE}.b.c"),
    ],
)
def test_arguments_are_printed_safe(server: FakeServer, capture: Capture, arguments: tuple[str, ...]) -> None:
    """A script may pass on what others wrote."""
    _, out, err = capture("", *arguments)
    check_safe(out)
    check_safe(err, most_lines=1)


def test_verify_prints_names_of_files_and_sequences_safe(capture: Capture, tmp_path: Path) -> None:
    """Neither the name of a log nor of a sequence forges a line of the report."""
    pytest.importorskip("numpy")
    log = tmp_path / f"{HOSTILE.replace('/', '')}.jsonl"
    records = [Planted(1, 5, sequence="a\u202eb"), Planted(3, 5, asked=9, sequence="a\u202eb")]
    PlantedLog(records).write(log)
    with log.open("ab") as file:
        file.write(b'{"cut')
    for more in ((), ("--json",)):
        code, out, err = capture("verify", str(log), *more)
        assert (code, err) == (1, "")
        check_safe(out)
        assert not more or json.loads(out)["findings"]["twice"]
    code, out, err = capture("verify", str(tmp_path / HOSTILE))
    assert (code, out) == (2, "")
    check_safe(err, most_lines=1)


def test_only_one_module_writes_to_the_streams() -> None:
    """Every verb prints by idalloc.cli._output, which makes text safe."""
    folder = Path(cli.__file__).parent
    for file in sorted(folder.glob("*.py")):
        if file.name == Path(_output.__file__).name:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "print", f"{file.name}:{node.lineno}: print"
                assert not re.search(r"std(out|err)\.write$|echo$|Console$", called), (
                    f"{file.name}:{node.lineno}: {called}"
                )


def test_safe_text_is_printed_as_it_is(server: FakeServer, capture: Capture) -> None:
    """Letters of any script stay readable."""
    text = "Grüße, 注文, №7"
    server.sequences["orders"] = pb.Sequence(name="orders", description=text)
    assert text in capture("sequences show orders")[1]
