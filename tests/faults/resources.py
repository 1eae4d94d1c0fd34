"""What a process holds: memory, file descriptors, threads; and the most of it that it had meanwhile."""

import threading
from pathlib import Path
from typing import NamedTuple

import pytest

# How often a watched process is looked at, in seconds.
INTERVAL = 0.1


class Resources(NamedTuple):
    """What a process holds.

    Attributes:
        memory: Its resident memory, in MB.
        descriptors: Its open file descriptors.
        threads: Its threads.
    """

    memory: float
    descriptors: int
    threads: int

    def __str__(self) -> str:
        return f"{self.memory:.0f} MB, {self.descriptors} descriptors, {self.threads} threads"


def resources(pid: int) -> Resources:
    """What a process holds now."""
    process = Path(f"/proc/{pid}")
    if not process.exists():
        pytest.skip("there is no /proc here")
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    if "VmRSS" not in lines:
        raise ProcessLookupError(f"process {pid} has ended")
    memory = int(lines["VmRSS"].split()[0]) * 1024 / 1e6
    return Resources(memory, len(list((process / "fd").iterdir())), int(lines["Threads"]))


class Watch:
    """Looks at a process all the time, for the most that it holds.

    Attributes:
        before: What it held at first.
        peak: The most of each, so far.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.before = self.peak = resources(pid)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Looks no more."""
        self._over.set()
        self._thread.join()

    def now(self) -> Resources:
        """What it holds now."""
        return resources(self._pid)

    def _look(self) -> None:
        while not self._over.wait(INTERVAL):
            now = resources(self._pid)
            self.peak = Resources(
                max(self.peak.memory, now.memory),
                max(self.peak.descriptors, now.descriptors),
                max(self.peak.threads, now.threads),
            )
