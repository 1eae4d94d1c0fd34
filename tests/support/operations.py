"""An operator: runs a page's commands on a server that has a fault, and notices repeated ids."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.documents import Block, blocks, free_port, run, tools
from tests.support.paths import ROOT
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until

# The longest wait for a command on a busy machine.
SECONDS = 120.0
# Short, as an advance waits for a lease and a second.
LEASES = {"IDALLOC_LEASE_TTL": "3s", "IDALLOC_STORE_TIMEOUT": "2s", "IDALLOC_OUTAGE_RESERVE": "600ms"}


class Operator:
    """An operator with a page, a terminal, and a server that logs to ``idalloc.log`` there."""

    def __init__(self, page: str, terminal: Terminal) -> None:
        self._page, self._terminal = page, terminal
        self._seen: set[int] = set()
        self.folder = terminal.folder
        self.address = f"127.0.0.1:{terminal.ports[50051]}"
        self.file = self.folder.parent / "home/.local/state/idalloc/idalloc.db"
        self.log = self.folder / "idalloc.log"

    def set(self, **variables: object) -> None:
        """Export variables for all that follows."""
        self.shell(" ".join(["export", *(f"{name}='{value}'" for name, value in variables.items())]))

    def serve(self, flags: str = "") -> None:
        """Start the server, or restart it."""
        code, printed = self._terminal.shell(f'idalloc serve {flags} 2>>"$LOG"', seconds=SECONDS)
        assert code == 0, printed + self.log.read_text()

    def start_refused(self, flags: str = "") -> str:
        """Start a server that must refuse to start, and return its error."""
        return self.shell(f"(idalloc serve {flags})", code=2)

    def kill(self) -> None:
        """Kill the servers that ``serve`` has started, as a power cut does."""
        self._terminal.kill_servers()

    def stop(self) -> None:
        """Stop the servers."""
        self._terminal.stop_servers()

    def blocks(self, heading: str) -> Iterator[Block]:
        """Yield the blocks under a heading of the page; skip the test if a tool is missing."""
        found = [block for block in blocks((ROOT / self._page).read_text()) if block.heading == heading]
        assert found, f"{self._page} has no block under {heading}"
        for block in found:
            if missing := [tool for tool in tools(block) if self._terminal.shell(f"command -v {tool}")[0]]:
                pytest.skip(f"{missing[0]} is not installed")
        yield from found

    def run(self, block: Block, code: int = 0) -> str:
        """Run a block of the page, check its exit code and its ids, and return its output."""
        return self.shell(block.text, code)

    def run_shown(self, block: Block) -> None:
        """Run a block of the page, which must print what the page shows."""
        run(block, self._terminal)

    def run_all(self, heading: str) -> str:
        """Run all blocks under a heading of the page."""
        return "".join([self.run(block) for block in self.blocks(heading)])

    def shell(self, commands: str, code: int = 0) -> str:
        """Run other commands in the same way."""
        found, printed = self._terminal.shell(commands, seconds=SECONDS)
        assert found == code, f"{commands}: exit code {found}: {printed}"
        if "allocate " in commands:
            self._note(printed)
        return printed

    def take(self, count: int = 10) -> None:
        """Take ids of the sequence ``orders``; none may have been issued before."""
        before = len(self._seen)
        self.shell(f"idalloc allocate orders {count}")
        assert len(self._seen) == before + count

    def refused(self, reason: str, call: str = "allocate orders") -> str:
        """Make calls until one is refused, as a lease may serve some; return the error."""
        printed = ""

        def is_refused() -> bool:
            nonlocal printed
            code, printed = self._terminal.shell(f"idalloc {call}", seconds=SECONDS)
            self._note(printed)
            return code == 1 and reason in printed

        wait_until(is_refused, f"{call} is refused with {reason}", SECONDS)
        return printed

    def _note(self, printed: str) -> None:
        for line in re.findall(r"^\d+\r?$", printed, re.MULTILINE):
            assert int(line) not in self._seen, f"{line} came twice"
            self._seen.add(int(line))

    def wait_for_log(self, *texts: str) -> None:
        """Wait until the log has each of these texts."""
        wait_until(lambda: all(text in self.log.read_text() for text in texts), f"{texts} in the log")


@contextmanager
def operator(page: str, folder: Path, ports: Mapping[int, int] | None = None) -> Iterator[Operator]:
    """Yield an operator who has set the page's variables.

    Args:
        ports: Ports of the page at which the test itself serves something, and where it does.
    """
    with closing(Terminal(folder, {50051: free_port()} | dict(ports or {}))) as terminal:
        made = Operator(page, terminal)
        made.set(**LEASES, LOG="idalloc.log")
        yield made
