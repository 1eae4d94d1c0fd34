"""Servers under load: start, measure and stop them by process id."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_CORES = sorted(os.sched_getaffinity(0))
_START_SECONDS = 60.0
# From this many cores, the servers and the load generator do not share cores.
_CORES_TO_SHARE = 4


class Server:
    """A server process under load, with its child processes."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address

    @property
    def cpu_seconds(self) -> float:
        """Total user and system time of all its processes, ended ones included."""
        return sum(cpu_seconds(pid) for pid in _process_tree(self.process.pid))

    @property
    def resident_mb(self) -> float:
        """Resident memory of all its processes, in megabytes."""
        return sum(_resident_bytes(pid) for pid in _process_tree(self.process.pid)) / 1e6

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all its processes."""
        for pid in list(_process_tree(self.process.pid)):
            os.kill(pid, number)


@contextmanager
def running(*command: str, **variables: str) -> Iterator[Server]:
    """Start a Python module that prints its address; stop it at the end of the block."""
    with serving(sys.executable, "-m", *command, **variables) as server:
        yield server


@contextmanager
def serving(*command: str, **variables: str) -> Iterator[Server]:
    """Start a program that prints its address; stop it at the end of the block."""
    with started(*command, stdout=subprocess.PIPE, variables=variables) as process:
        assert process.stdout
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        line = process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError(f"`{' '.join(command)}` did not start")
        yield Server(process, json.loads(line)["address"])


@contextmanager
def started(
    *command: str,
    folder: Path | None = None,
    user: str | None = None,
    stdout: int = subprocess.DEVNULL,
    stop: signal.Signals = signal.SIGTERM,
    variables: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Start a process on the servers' cores; stop it at the end of the block.

    Args:
        folder: The command's working directory.
        user: Its user; None for the present one.
        stdout: Where its output goes.
        stop: The signal that stops it.
        variables: Variables that its environment has besides.
    """
    process = subprocess.Popen(
        [*_on_cores(), *command],
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        user=user,
        env=_environment() | dict(variables or {}),
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
    """Return a free port of loopback."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def cores() -> tuple[list[int], list[int]]:
    """Return the cores of servers and load generator: half each, or all for both if few."""
    half = len(_CORES) // 2
    enough = len(_CORES) >= _CORES_TO_SHARE and shutil.which("taskset")
    return (_CORES[:half], _CORES[half:]) if enough else (_CORES, _CORES)


def prepare_to_drive() -> None:
    """Leave the servers' cores to them, and make SIGTERM stop the servers as Ctrl-C does.

    For the process that drives the load; its children inherit the cores.
    """
    os.sched_setaffinity(0, cores()[1])
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _on_cores() -> list[str]:
    ours, others = cores()
    return [] if ours == others else ["taskset", "--cpu-list", ",".join(map(str, ours))]


def _environment() -> dict[str, str]:
    """Return the environment without settings of another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("IDALLOC_")}


def _process_tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _process_tree(int(child))


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # It ended: the figure of its parent includes it.
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _resident_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
