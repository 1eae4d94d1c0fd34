"""Runs the code blocks of a Markdown page, in order and as the page shows them.

A reader has one terminal and one folder for a page, so its blocks share them: files, exported
variables and the folder last. The terminal is a pseudo terminal, for commands print tables on a
terminal only.

- ``sh``: the commands must succeed.
- ``console``: each line ``$ command`` with what it prints; a command may fail only where the page
  shows what it prints.
- ``python``: runs in one interpreter for the page. ``print(…)  # text`` must print the text.
- A block whose first line is a comment with a file's name, such as ``# billing.py``, becomes that
  file, as does one of any other language. Blocks of other languages without such a line are not
  run.
- Blocks in the list NOT_RUN are not run.
- A command that starts a server runs on in the background; the next block runs once it serves. A
  second one on the same address ends the first one, as the reader would with Ctrl-C.
"""

import random
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.reference import pages
from tests.support.pages import NOT_RUN
from tests.support.paths import ROOT
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

FENCE = re.compile(r"^( *)(```+)(\w*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"^(?:#|//|--) ([\w./-]+\.\w+)\n")
RUN = ("sh", "console", "python")
PORT = re.compile(r"(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\]):(\d{4,5})\b")
TOOLS = ("docker", "grpcurl", "ghz", "jq", "curl", "openssl", "sqlite3", "crash", "promtool")
# What differs from run to run: each becomes its name in the page and in the output before these are
# compared.
VARIES = {
    r"\b\d{4}-\d\d-\d\d([T ][\d:.]+Z?)?": "DATE",
    r"\b20\d\d\b": "YEAR",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b": "UUID",
    r"\b[0-9a-f]{12}(?=[0-9a-f]{16}\b)": "START",
    r"\b\d{10,}\b": "NUMBER",
    r"\b\d+(\.\d+)?(?= ?(s|ms|µs)\b)": "TIME",
}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: language, heading above, line in the file, and text."""

    language: str
    heading: str
    line: int
    text: str

    @property
    def first_line(self) -> str:
        """Its first line, by which lists name it."""
        return self.text.partition("\n")[0]

    @property
    def is_run(self) -> bool:
        """Whether a page test runs it, or writes it as a file."""
        return self.language in RUN or FILE_NAME.match(self.text) is not None

    def __str__(self) -> str:
        return f"{self.language} in line {self.line}, under {self.heading!r}"


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = []
    for fence in FENCE.finditer(text):
        before = FENCE.sub("", text[: fence.start()])
        heading = ["", *re.findall(r"^#+ (.*)$", before, re.MULTILINE)][-1]
        body = re.sub(rf"^{fence[1]}", "", fence[4], flags=re.MULTILINE)
        found.append(Block(fence[3], heading, text.count("\n", 0, fence.start()) + 1, body))
    return found


def commands(console: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a ``console`` block with the output that the page shows."""
    for each in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]:
        lines = each.splitlines()
        last = next(at for at, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(line.removeprefix("> ") for line in lines[: last + 1]), "\n".join(lines[last + 1 :])


def plain(text: str) -> str:
    """Return text without what varies between runs, colours, and spaces that align columns."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.replace("\r\n", "\n"))
    for pattern, name in VARIES.items():
        text = re.sub(pattern, name, text)
    return "\n".join(" ".join(line.rpartition("\r")[2].split()) for line in text.strip().splitlines())


def matches(shown: str, printed: str) -> bool:
    """Return whether output matches the page, where ``…`` is any text, or alone any lines."""
    lines = plain(shown).splitlines()
    pattern = "".join(r"(?:\n.*)*" if each == "…" else "\n" + re.escape(each).replace("…", ".*") for each in lines)
    return re.fullmatch(pattern, "\n" + plain(printed) if printed.strip() else "") is not None


def tools(block: Block) -> set[str]:
    """Return those of TOOLS that a block runs."""
    text = "\n".join(command for command, _ in commands(block.text)) if block.language == "console" else block.text
    found = re.findall(r"(?:^|[|&(] *)([a-z0-9]+) ", text, re.MULTILINE) if block.language in ("sh", "console") else []
    return {*TOOLS} & {*found}


def free_port() -> int:
    """Return a port of loopback that nothing uses, and that no connection gets by chance."""
    while True:
        port = random.randrange(20_000, 32_768)  # Linux gives connections the ports above
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def run(block: Block, terminal: Terminal) -> None:
    """Run a block; fail if a command fails or prints something other than the page shows."""
    if name := FILE_NAME.match(block.text):
        file = terminal.folder / name[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(terminal.with_free_ports(block.text))
    elif block.language == "sh":
        code, printed = terminal.shell(block.text)
        assert code == 0, f"{block}: exit code {code}: {printed}"
    elif block.language == "console":
        for command, shown in commands(block.text):
            code, printed = terminal.shell(command, shown_lines=len(shown.splitlines()))
            assert matches(shown, printed), f"{block}: {command}\nprints\n{printed}\nwhere the page has\n{shown}"
            assert code == 0 or shown, f"{block}: {command}: exit code {code}"
    elif block.language == "python":
        works, printed = terminal.python(block.text)
        assert works, f"{block}: {printed}"
        lines = iter(plain(printed).splitlines())
        for shown in re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE):
            assert any(matches(shown, line) for line in lines), f"{block}: not {shown!r}: {printed}"


def run_page(
    name: str,
    folder: Path,
    subtests: pytest.Subtests,
    *,
    not_run: Mapping[str, str] | None = None,
    files: Collection[str] = (),
    stopped_before: Collection[str] = (),
    ports: Mapping[int, int] | None = None,
    finally_true: Callable[[], bool] | None = None,
) -> None:
    """Run all blocks of a page in order; skip by name those not run or without their tool.

    Args:
        name: The page in the repository, such as ``docs/tutorial.md``.
        folder: A temporary folder.
        subtests: The fixture.
        not_run: Why a block is not run, by the beginning of its first line; by default what NOT_RUN
            has of the page.
        files: What the reader has of the repository in the folder, such as ``examples``.
        stopped_before: Texts in blocks before which the page says to stop the servers.
        ports: Ports of the page at which the test itself serves something, and where it does. All
            other ports of loopback in the page are replaced by free ones.
        finally_true: What becomes true after the last block, while the servers of the page still
            run.
    """
    page = pages.read(ROOT / name)
    not_run = NOT_RUN.get(name, {}) if not_run is None else not_run
    unknown = [text for text in stopped_before if not any(text in each.text for each in blocks(page))]
    assert not unknown, f"{name}: no block has {unknown}"
    numbers = {50051, *(int(port) for block in blocks(page) for port in PORT.findall(block.text))}
    if any("make run" in block.text for block in blocks(page)):
        numbers.add(50080)  # where it listens for HTTP, also if the page does not show it
    with closing(Terminal(folder, {port: free_port() for port in numbers} | dict(ports or {}))) as terminal:
        for file in files:
            (terminal.folder / file).symlink_to(ROOT / file)
        for block in blocks(page):
            reasons = [reason for line, reason in not_run.items() if block.first_line.startswith(line)]
            missing = [tool for tool in tools(block) if not shutil.which(tool, path=terminal.path)]
            reasons += [f"{tool} is not installed" for tool in missing]
            if reasons:
                with subtests.test(str(block)):
                    pytest.skip(f"{name}: {block}: {reasons[0]}")
                continue
            if any(text in block.text for text in stopped_before):
                terminal.stop_servers()
            run(block, terminal)
        if finally_true:
            wait_until(finally_true, f"the effect of {name}")
