"""Servers under load: started, watched and ended by their process id."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))
_START_SECONDS = 60.0
# Servers and what drives them get cores of their own where there are at least so many.
_CORES_TO_SHARE = 4


class Server:
    """A server process under load, and the processes that it started."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far, of all its processes, ended ones included."""
        return sum(_cpu_seconds(pid) for pid in _family(self.process.pid))

    @property
    def resident_mb(self) -> float:
        """Resident memory in megabytes, of all its processes."""
        return sum(_resident(pid) for pid in _family(self.process.pid)) / 1e6


@contextmanager
def running(*command: str) -> Iterator[Server]:
    """Starts a server of ours, a Python module that prints its address, and ends it."""
    with started(sys.executable, "-m", *command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        came, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        line = process.stdout.readline() if came else ""
        if "serves on " not in line:
            raise RuntimeError(f"`{' '.join(command)}` did not start")
        yield Server(process, line.split("serves on ")[1].split(",")[0].strip())


@contextmanager
def started(
    *command: str,
    folder: Path | None = None,
    user: str | None = None,
    stdout: int = subprocess.DEVNULL,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[str]]:
    """Starts a process on the servers' cores, and ends it.

    Args:
        command: What to run.
        folder: Where it runs.
        user: Who runs it; None for who runs this.
        stdout: What becomes of its output.
        stop: The signal that ends it.
    """
    process = subprocess.Popen(
        [*_on_cores(), *command],
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        user=user,
        env=_environment(),
    )
    try:
        yield process
    finally:
        process.send_signal(stop)
        if process.stdout:
            process.stdout.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of loopback that nobody has at present."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def cores() -> tuple[list[int], list[int]]:
    """The servers' cores and the load generator's: half of them each, or all for both where they are few."""
    half = len(_CORES) // 2
    enough = len(_CORES) >= _CORES_TO_SHARE and shutil.which("taskset")
    return (_CORES[:half], _CORES[half:]) if enough else (_CORES, _CORES)


def prepare_to_drive() -> None:
    """Leaves the servers' cores to them, and has SIGTERM end the servers as Ctrl-C does.

    For the process that drives the load, and, as to the cores, for those that it starts.
    """
    os.sched_setaffinity(0, cores()[1])
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _on_cores() -> list[str]:
    ours, others = cores()
    return [] if ours == others else ["taskset", "--cpu-list", ",".join(map(str, ours))]


def _environment() -> dict[str, str]:
    """Without the settings of a server that somebody has in mind for another one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("IDALLOC_")}


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended: its parent's figure has it now
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
