"""The npm package and the program that installs it."""

import json
import subprocess
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.processes import environment

PACKAGE = ROOT / "client/node"
CONSUMER = ROOT / "tests/packages/node"
INSTALL = ["--prefer-offline", "--no-audit", "--no-fund"]
TOTAL = 500_000  # the least ids of a taker


def run(folder: Path, *command: str, fails: bool = False, **variables: str) -> str:
    """Run a command, and return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environment() | variables, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + (done.stderr if fails else "")


def pack(folder: Path, version: str, package: Path = PACKAGE) -> Path:
    """Pack the build of the package."""
    return folder / run(package, "node", "scripts/pack.js", str(folder), version).strip()


class Taker:
    """A consumer that takes ids until its input ends."""

    def __init__(self, consumer: Path, file: Path, *arguments: str) -> None:
        self.file = file
        self.process = subprocess.Popen(
            ["node", "dist/take.js", *arguments, str(TOTAL), str(file)],
            cwd=consumer,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def size(self) -> int:
        """How many ids it has written."""
        assert self.process.poll() is None, self.process.communicate()
        return self.file.stat().st_size // 8 if self.file.exists() else 0

    def end(self) -> dict[str, object]:
        """Let it end; return what it printed."""
        out, err = self.process.communicate("", timeout=100)
        assert self.process.returncode == 0, err
        return dict(json.loads(out))
