"""`--output table|text|json` and `--json`: their places, their effect and their conflicts."""

import io
import json
import sys
from pathlib import Path

import pytest

from idalloc import cli
from idalloc.v1 import sequences_pb2 as pb
from tests.support.command_line import Command, Terminal
from tests.support.fake_server import FakeServer

# Every command that prints results, by the words before and after which options may stand.
COMMANDS = [
    ("allocate", "orders"),
    ("stream", "orders --total 2"),
    ("docid", "2"),
    ("uuid", "2"),
    ("health", ""),
    ("bench", "--total 1 --warm-up 0s"),
    ("verify", "LOG"),
    ("protos", "DIR"),
    ("node", "show", ""),
    ("node", "set", "--prefix 8"),
    ("sequences", "list", ""),
    ("sequences", "create", "new"),
    ("sequences", "show", "orders"),
    ("sequences", "update", "orders --step 2"),
    ("sequences", "advance", "orders --past 5"),
    ("sequences", "delete", "orders"),
    ("sequences", "parse", "orders T-1"),
    ("config", "show", ""),
    ("token", "new", "billing --allocate *"),
    ("store", "import", "EXPORT"),
]


@pytest.fixture(autouse=True)
def environment(
    server: FakeServer, clean_environment: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clean_environment.setenv("IDALLOC_SERVER", server.target)
    clean_environment.setenv("XDG_STATE_HOME", str(tmp_path))
    server.sequences["orders"] = pb.Sequence(name="orders", step=1, last_value=7, max_value=9, remaining=2)
    assert cli.main(["allocate", "orders", "--log", str(tmp_path / "LOG.jsonl")]) == 0
    (tmp_path / "EXPORT").write_text('{"idalloc_export": 1}\n')
    capsys.readouterr()


def words(text: str, folder: Path) -> list[str]:
    files = {"LOG": str(folder / "LOG.jsonl"), "EXPORT": str(folder / "EXPORT"), "DIR": str(folder / "DIR")}
    return [files.get(word, word) for word in text.split()]


def out_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli.main(args) == 0
    return capsys.readouterr().out


@pytest.mark.test_long
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_output_may_stand_before_and_after_every_word(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, server: FakeServer
) -> None:
    """Every command prints JSON with --output json or --json, given at any level."""
    *names, rest = command
    for option in ("--json", "--output json"):
        for place in range(len(names) + 1):
            server.sequences.pop("new", None)
            server.sequences["orders"] = pb.Sequence(name="orders", step=1, last_value=7, max_value=9, remaining=2)
            line = [*names[:place], *option.split(), *names[place:], *words(rest, tmp_path)]
            assert isinstance(json.loads(out_of(capsys, *line)), dict), line


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_prints_table_and_text(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, server: FakeServer
) -> None:
    """Every command prints a table and text, neither of which is JSON."""
    for output in ("table", "text"):
        server.sequences.pop("new", None)
        server.sequences["orders"] = pb.Sequence(name="orders", step=1, last_value=7, max_value=9, remaining=2)
        printed = out_of(capsys, "--output", output, *words(" ".join(command), tmp_path))
        assert printed.strip()
        assert "{" not in printed


def test_the_last_output_applies(run: Command) -> None:
    """Of several --output, the one next to the end of the line applies."""
    assert run("--json", "node", "--output", "table", "show", "--output", "text").startswith("prefix: 7\n")
    assert run("--output", "text", "node", "--json", "show").startswith("{")
    assert run("--output", "text", "node", "show", "--output", "json", "--json").startswith("{")


@pytest.mark.parametrize("line", ["node show", "sequences list"])
def test_the_default_is_a_table_on_a_terminal(
    line: str, run: Command, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default is a table on a terminal and text elsewhere; --output selects either anywhere."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    text, table = run(*line.split()), run(*line.split(), "--output", "table")
    assert text != table
    for arguments, expected in ((line, table), (f"{line} --output text", text)):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", terminal := Terminal())
            assert cli.main(arguments.split()) == 0
        assert terminal.getvalue().split() == expected.split()


def test_characters_that_the_stream_lacks_are_escaped(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A letter that the encoding of standard output lacks is escaped in every form."""
    server.sequences["注文"] = pb.Sequence(name="注文", last_value=7)
    for output in ("table", "text", "json"):
        buffer = io.BytesIO()
        stream = io.TextIOWrapper(buffer, encoding="ascii", write_through=True)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", stream)
            assert cli.main(["sequences", "show", "注文", "--output", output]) == 0
        assert b"\\u6ce8\\u6587" in buffer.getvalue()
