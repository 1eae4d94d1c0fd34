"""Start real servers on free ports, and stop them by process id."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

# The installed command.
IDALLOC = str(Path(sys.executable).with_name("idalloc"))


@dataclass
class Server:
    """A running `idalloc serve`."""

    process: subprocess.Popen[str]
    address: str  # the address that it serves on, host:port
    serving: str  # the line of the event ``serving`` that it printed
    log: Path  # the file with its log

    @property
    def http(self) -> str:
        """The URL of the HTTP port."""
        return str(json.loads(self.serving)["http"])

    @property
    def xproto(self) -> str:
        """The address of the X Protocol's port, host:port."""
        return str(json.loads(self.serving)["xproto"])

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.process.pid, number)

    def pause(self, database: Path) -> None:
        """Pause the server with SIGSTOP while it does not hold the lock of its SQLite file."""
        deadline = time.monotonic() + 60
        while not self.try_pause(database):
            assert time.monotonic() < deadline, "the server always held the lock"

    def try_pause(self, database: Path | None) -> bool:
        """Try to pause once; if the server locks its SQLite file, resume it and return False."""
        self.send(signal.SIGSTOP)
        # One of its threads may still run for a moment and take the lock.
        wait_until(self._is_stopped, "the server did not stop")
        if database is None:
            return True
        with closing(sqlite3.connect(database, isolation_level=None, timeout=2)) as file:
            try:
                file.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.send(signal.SIGCONT)
                return False
        return True

    def _is_stopped(self) -> bool:
        stats = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in stats)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 30) -> int:
        """Stop the server; return its exit code."""
        self.send(number)
        return self.process.wait(timeout)


def environment(**settings: str) -> dict[str, str]:
    """Return the environment with ``settings``, but without the variables of idalloc and make."""
    others = ("IDALLOC_", "MAKE", "MFLAGS", "ARGS")  # make exports what it was called with
    clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return clean | {f"IDALLOC_{name.upper()}": value for name, value in settings.items()}


def idalloc(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the client on a server; it may fail."""
    command, env = [IDALLOC, *arguments], environment(server=server.address)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Lock a SQLite file during the block, so that no server can write to it."""
    with closing(sqlite3.connect(database, timeout=20, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def serve_command(**settings: object) -> list[str]:
    """Return the command of a server with these settings, by default on a free port of loopback.

    Settings that are None are left out.
    """
    flags = {"listen": "127.0.0.1:0"} | settings
    return [sys.executable, "-m", "idalloc_server"] + [
        f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None
    ]


def served_address(serving: str) -> str:
    """Return the address in the line that a server prints to a pipe once it serves."""
    return str(json.loads(serving)["address"])


def start_error(stderr: str) -> str:
    """Return why a server did not start; its standard error must have that line only."""
    [line] = map(json.loads, stderr.splitlines())
    assert line["event"] == "not_started", line
    return str(line["error"])


@contextmanager
def running(
    folder: Path,
    environ: Mapping[str, str] | None = None,
    own_session: bool = False,
    open_files: int | None = None,
    /,
    **settings: object,
) -> Iterator[Server]:
    """Run a server until the end of the block.

    Args:
        folder: The folder for its log, and for its store unless ``store`` is among the settings.
        environ: Its environment; by default this process's, without idalloc's variables.
        own_session: Whether it has no terminal, as under a service manager.
        open_files: Its limit of open files; None for this process's.
        settings: Settings to pass as flags.
    """
    settings = {"store": f"sqlite://{folder}/ids.db"} | settings
    limited = ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(open_files)] if open_files else []
    log = folder / f"server-{len(list(folder.glob('server-*.log')))}.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*limited, *serve_command(**settings)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment() if environ is None else dict(environ),
            start_new_session=own_session,
        )
    assert process.stdout
    try:
        serving = process.stdout.readline().strip()
        assert serving, f"the server did not start: {log.read_text()}"
        yield Server(process, served_address(serving), serving, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@asynccontextmanager
async def running_beside(folder: Path, **settings: object) -> AsyncIterator[Server]:
    """Run a server like ``running`` while this event loop serves others, such as its store."""
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, running(folder, **settings))


def start_module(stack: ExitStack, module: str, *arguments: str) -> str:
    """Start a process of a module that the stack kills; return the first line it prints."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    stack.callback(process.stdout.close)
    stack.callback(process.wait)
    stack.callback(process.kill)
    line = process.stdout.readline()
    assert line, f"{module} did not start"
    return line.strip()
