"""Copies of a store, put back under nodes that run; and the command line, as an operator uses it."""

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import IDALLOC, Server, environment


@dataclass
class Copied:
    """A store and the SQLite file that it is kept in: idalloc's own, or the one of the CrateDB emulator.

    Attributes:
        url: The setting ``store``.
        file: The file.
    """

    url: str
    file: Path

    def take(self, name: str = "copy") -> Path:
        """Makes a copy of what is in the store now."""
        copy = self.file.with_name(f"{name}.db")
        _copy(self.file, copy)
        return copy

    def put_back(self, copy: Path) -> None:
        """Writes a copy into the live file, which stays the same file."""
        _copy(copy, self.file)

    def replace_by(self, copy: Path) -> None:
        """Moves a copy into the place of the live file."""
        copy.replace(self.file)


def _copy(source: Path, target: Path) -> None:
    with (
        contextlib.closing(sqlite3.connect(source, timeout=30)) as read,
        contextlib.closing(sqlite3.connect(target, timeout=30)) as written,
    ):
        read.backup(written)


@contextlib.contextmanager
def store_of(kind: str, folder: Path) -> Iterator[Copied]:
    """Gives a store: ``sqlite``, or ``cratedb``, which is the emulator in a process of its own."""
    if kind == "sqlite":
        yield Copied(f"sqlite://{folder}/ids.db", folder / "ids.db")
        return
    file = folder / "crate.db"
    command = [sys.executable, "-m", "tests.support.cratedb.emulator", f"--file={file}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("crate://"), "the emulator did not start"
        yield Copied(url, file)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def idalloc(*arguments: object, exit_code: int = 0) -> str:
    """Runs the command line, and returns what it printed: on standard output, or, where it failed, on the other."""
    command = [IDALLOC, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == exit_code, f"{' '.join(command)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stderr if exit_code else done.stdout


def noticed(node: Server, sequence: str) -> list[int]:
    """Returns what a node had ``seen`` each time that it logged that the store is behind; 0 where that was no value."""
    values = []
    for line in node.log.read_text().splitlines():
        if '"store_went_backwards"' in line and (event := json.loads(line))["sequence"] == sequence:
            found = re.match(r"value (-?\d+) in generation \d+", event["seen"])
            values.append(int(found[1]) if found else 0)
    return values
