"""Measures memory, file descriptors and threads of a process, also their peaks."""

import threading
from pathlib import Path
from typing import NamedTuple

import pytest

# Seconds between samples.
INTERVAL = 0.1


class Resources(NamedTuple):
    """Resources of a process."""

    memory: float  # resident memory, in MB
    descriptors: int  # open file descriptors
    threads: int

    def __str__(self) -> str:
        return f"{self.memory:.0f} MB, {self.descriptors} descriptors, {self.threads} threads"


def read_resources(pid: int) -> Resources:
    """Return the current resources of a process; skip the test where there is no /proc."""
    process = Path(f"/proc/{pid}")
    if not process.exists():
        pytest.skip("there is no /proc here")
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    if "VmRSS" not in lines:
        raise ProcessLookupError(f"process {pid} has ended")
    memory = int(lines["VmRSS"].split()[0]) * 1024 / 1e6
    return Resources(memory, len(list((process / "fd").iterdir())), int(lines["Threads"]))


class ResourceMonitor:
    """Samples the resources of a process in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self.before = self.peak = read_resources(pid)  # at the start, and the maximum of each so far

    def __enter__(self) -> "ResourceMonitor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()
        self._thread.join()

    def now(self) -> Resources:
        """Return the current resources."""
        return read_resources(self._pid)

    def _sample(self) -> None:
        while not self._stopped.wait(INTERVAL):
            now = read_resources(self._pid)
            self.peak = Resources(
                max(self.peak.memory, now.memory),
                max(self.peak.descriptors, now.descriptors),
                max(self.peak.threads, now.threads),
            )


def restart_memory_peak() -> int:
    """Reset this process's peak of memory and return it, in bytes (proc(5), ``clear_refs``)."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_peak()


def memory_peak(pid: int | str = "self") -> int:
    """Return the peak of a process's resident memory, in bytes; by default of this one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024
