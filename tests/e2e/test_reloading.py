"""A running server reloads its access file and certificates, by polling and on SIGHUP."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import grpc
import pytest

from tests.e2e.test_access import allocate_status, new_token
from tests.e2e.test_tls import Files
from tests.support.processes import Server, environment, running, serve_command
from tests.support.server_calls import log_events, wait_until

# Each test starts several processes, which is slow on a busy machine.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(180)]

OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
QUOTA = "[[quota]]\nsequence = '*'\ncalls_per_second = 1000\n"


def descriptors(server: Server) -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{server.process.pid}/fd").iterdir()}


@contextmanager
def exhausted(server: Server, left: int = 0) -> Iterator[None]:
    """Limit a server to ``left`` further file descriptors."""
    used = descriptors(server)
    unused = (number for number in count() if number not in used)
    most = [next(unused) for _ in range(left + 1)][left] if left else 0
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))


def put(file: Path, content: str) -> None:
    """Replace a file atomically."""
    other = file.with_suffix(".new")
    other.write_text(content)
    other.replace(file)


def test_a_revocation_is_retried_without_descriptors(tmp_path: Path) -> None:
    """A removed token is rejected also if the first read of the changed file failed."""
    file = tmp_path / "access.toml"
    old = new_token(file, "old", "--allocate", "*")
    with running(tmp_path, access_file=file) as server:
        assert allocate_status(server, old) == OK
        new = new_token(tmp_path / "next.toml", "new", "--allocate", "*")
        with exhausted(server):
            (tmp_path / "next.toml").replace(file)
            wait_until(lambda: bool(log_events(server, "access_not_reloaded")), seconds=60)
        wait_until(lambda: bool(log_events(server, "access_reloaded")), seconds=60)
        assert allocate_status(server, old) == UNAUTHENTICATED
        assert allocate_status(server, new) == OK
        [failed, *_] = log_events(server, "access_not_reloaded")
        assert "Too many open files" in failed["error"]


def test_a_renewal_is_read_at_the_limit_of_open_files(tmp_path: Path) -> None:
    """A renewed certificate is read with spare descriptors, where no other is left."""
    files = Files(tmp_path)
    with running(tmp_path, **files.flags) as server:
        idle = len(descriptors(server))
        before, _ = files.shown(server)
        wait_until(lambda: len(descriptors(server)) <= idle, seconds=60)
        with exhausted(server, left=1):  # for the connection
            written = files.write()
            wait_until(lambda: files.shown(server)[0] == written != before, seconds=60)
        assert log_events(server, "certificates_reloaded")
        assert not log_events(server, "certificates_not_reloaded")


@pytest.mark.parametrize(
    ("content", "workers"),
    [
        ("", 1),
        (None, 2),
        ("# nothing\n", 1),
        (None, 1),
    ],
)
def test_an_empty_access_file_rejects_everyone(tmp_path: Path, content: str | None, workers: int) -> None:
    """An access file that is emptied or removed while the server runs rejects every caller."""
    file = tmp_path / "access.toml"
    token = new_token(file, "old", "--allocate", "*")
    with running(tmp_path, access_file=file, workers=workers) as server:
        assert allocate_status(server, token) == OK
        if content is None:
            file.unlink()
        else:
            put(file, content)
        wait_until(lambda: allocate_status(server, token) == UNAUTHENTICATED, seconds=60)
        wait_until(lambda: len(log_events(server, "access_empty")) == workers, seconds=60)
        assert {allocate_status(server, token) for _ in range(4)} == {UNAUTHENTICATED}
        assert allocate_status(server, "") == UNAUTHENTICATED
        if workers > 1:  # a worker that starts now
            [first, *_] = log_events(server, "worker_started")
            os.kill(first["pid"], signal.SIGKILL)
            wait_until(lambda: len(log_events(server, "worker_started")) == 3, seconds=60)
            assert {allocate_status(server, token) for _ in range(4)} == {UNAUTHENTICATED}
        token = new_token(file, "new", "--allocate", "*")
        wait_until(lambda: allocate_status(server, token) == OK, seconds=60)


def test_removing_an_access_file_of_quotas_rejects_everyone(tmp_path: Path) -> None:
    """Removing an access file that had quotas only rejects every caller."""
    file = tmp_path / "access.toml"
    put(file, QUOTA)
    with running(tmp_path, access_file=file) as server:
        assert allocate_status(server, "") == OK
        file.unlink()
        wait_until(lambda: allocate_status(server, "") == UNAUTHENTICATED, seconds=60)


# Makes the terminal on standard output the controlling one, as a shell does; executes the command.
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(1, termios.TIOCSCTTY)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def in_terminal(folder: Path, action: str = "SIG_DFL", **settings: object) -> Iterator[tuple[Server, int]]:
    """Yield a server in a terminal, and the terminal's other end; closing that sends SIGHUP.

    Args:
        folder: The folder of its log and its store.
        action: The disposition of SIGHUP at the start: SIG_DFL or SIG_IGN.
    """
    ours, theirs = pty.openpty()
    log = folder / "terminal.log"
    command = serve_command(store=f"sqlite://{folder}/ids.db", **settings)
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, action, *command],
            stdout=theirs,
            stderr=stderr,
            text=True,
            env=environment(),
        )
    os.close(theirs)
    try:
        welcome = b""
        while b"\n" not in welcome:
            welcome += os.read(ours, 1000)
        yield Server(process, "", welcome.decode(), log), ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_closing_the_terminal_ends_the_server(tmp_path: Path, workers: int) -> None:
    """A server that was started from a terminal drains and exits when the terminal closes."""
    with in_terminal(tmp_path, workers=workers) as (server, terminal):
        os.close(terminal)
        assert server.process.wait(40) == 0
        assert log_events(server, "stopped")
        assert not log_events(server, "reloading")


@pytest.mark.parametrize("workers", [1, 2])
def test_under_nohup_the_server_outlives_its_terminal(tmp_path: Path, workers: int) -> None:
    """A server that ignores SIGHUP at startup survives its terminal."""
    with in_terminal(tmp_path, "SIG_IGN", workers=workers) as (server, terminal):
        os.close(terminal)
        wait_until(lambda: len(log_events(server, "reloading")) >= workers, seconds=60)
        assert server.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reloads_access_and_certificates(tmp_path: Path, workers: int) -> None:
    """SIGHUP reloads all files in each process, changed or not."""
    file, files = tmp_path / "access.toml", Files(tmp_path)
    new_token(file, "old", "--allocate", "*")
    with running(tmp_path, None, True, access_file=file, workers=workers, **files.flags) as server:

        def reloaded(times: int) -> bool:
            events = ("reloading", "access_reloaded", "certificates_reloaded")
            return all(len(log_events(server, event)) == times * workers for event in events)

        server.send(signal.SIGHUP)
        wait_until(lambda: reloaded(1), seconds=60)
        server.send(signal.SIGHUP)
        wait_until(lambda: reloaded(2), seconds=60)
        files.key.write_text("no key")
        server.send(signal.SIGHUP)
        wait_until(lambda: len(log_events(server, "certificates_not_reloaded")) == workers, seconds=60)
        written = files.write()
        server.send(signal.SIGHUP)
        wait_until(lambda: len(log_events(server, "certificates_reloaded")) == 3 * workers, seconds=60)
        assert files.shown(server)[0] == written
        assert server.stop() == 0
