"""A running server and its files: what cannot be read now is read later, and what is gone authorizes nobody."""

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

from tests.e2e.test_access import ask, lines, new_token, until
from tests.e2e.test_tls import Files
from tests.support.processes import Server, environment, running, serve_command

# Each starts several processes, which take their time on a machine that does other things.
pytestmark = pytest.mark.timeout(180)

OK, UNAUTHENTICATED = grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED
QUOTA = "[[quota]]\nsequence = '*'\ncalls_per_second = 1000\n"


def descriptors(server: Server) -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{server.process.pid}/fd").iterdir()}


@contextmanager
def exhausted(server: Server, left: int = 0) -> Iterator[None]:
    """Lets a server open no more than so many further files and connections."""
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
    """Puts a file in place as a whole."""
    other = file.with_suffix(".new")
    other.write_text(content)
    other.replace(file)


def test_a_revocation_outlives_a_lack_of_descriptors(tmp_path: Path) -> None:
    """A removed token is refused also where the first read of the changed access file failed."""
    file = tmp_path / "access.toml"
    old = new_token(file, "old", "--allocate", "*")
    with running(tmp_path, access=file) as server:
        assert ask(server, old) == OK
        new = new_token(tmp_path / "next.toml", "new", "--allocate", "*")
        with exhausted(server):
            (tmp_path / "next.toml").replace(file)
            until(lambda: bool(lines(server, "access_not_reloaded")))
        until(lambda: bool(lines(server, "access_reloaded")))
        assert ask(server, old) == UNAUTHENTICATED
        assert ask(server, new) == OK
        [failed, *_] = lines(server, "access_not_reloaded")
        assert "Too many open files" in failed["error"]


def test_a_renewal_outlives_a_lack_of_descriptors(tmp_path: Path) -> None:
    """A renewed certificate is shown also where the first read of it failed."""
    files = Files(tmp_path)
    with running(tmp_path, **files.flags) as server:
        idle = len(descriptors(server))
        before, _ = files.shown(server)
        until(lambda: len(descriptors(server)) <= idle)
        with exhausted(server, left=1):  # which the connection takes
            written = files.write()
            assert files.shown(server)[0] == before
            [failed] = lines(server, "certificates_not_reloaded")
            assert "Too many open files" in failed["error"]
        until(lambda: files.shown(server)[0] == written)
        assert lines(server, "certificates_reloaded")


@pytest.mark.parametrize(("content", "workers"), [("", 1), ("# nothing\n", 1), (None, 1), (None, 2)])
def test_a_file_without_entries_authorizes_nobody(tmp_path: Path, content: str | None, workers: int) -> None:
    """An access file that is emptied, commented out or removed while the server runs ends every access."""
    file = tmp_path / "access.toml"
    token = new_token(file, "old", "--allocate", "*")
    with running(tmp_path, access=file, workers=workers) as server:
        assert ask(server, token) == OK
        if content is None:
            file.unlink()
        else:
            put(file, content)
        until(lambda: ask(server, token) == UNAUTHENTICATED)
        until(lambda: len(lines(server, "access_empty")) == workers)
        assert {ask(server, token) for _ in range(4)} == {UNAUTHENTICATED}
        assert ask(server, "") == UNAUTHENTICATED
        if workers > 1:  # a worker that is started now authorizes nobody either
            [first, *_] = lines(server, "worker_started")
            os.kill(first["pid"], signal.SIGKILL)
            until(lambda: len(lines(server, "worker_started")) == 3)
            assert {ask(server, token) for _ in range(4)} == {UNAUTHENTICATED}
        token = new_token(file, "new", "--allocate", "*")
        until(lambda: ask(server, token) == OK)


def test_a_server_with_quotas_only_asks_when_they_are_removed(tmp_path: Path) -> None:
    """A file without entries authorizes nobody also where no identity was in it before."""
    file = tmp_path / "access.toml"
    put(file, QUOTA)
    with running(tmp_path, access=file) as server:
        assert ask(server, "") == OK
        file.unlink()
        until(lambda: ask(server, "") == UNAUTHENTICATED)


# Makes the terminal on standard output its own, as a shell's, and goes on as the command behind it.
IN_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(1, termios.TIOCSCTTY)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def in_terminal(folder: Path, action: str = "SIG_DFL", **settings: object) -> Iterator[tuple[Server, int]]:
    """Starts a server from a terminal; yields it and the terminal's other end, which closes it.

    Args:
        folder: Where its log and its store go.
        action: What SIGHUP does at the start.
        settings: Settings to give as flags.
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
        said = b""
        while b"\n" not in said:
            said += os.read(ours, 1000)
        yield Server(process, "", said.decode(), log), ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("workers", [1, 2])
def test_closing_the_terminal_ends_the_server(tmp_path: Path, workers: int) -> None:
    """A server that was started from a terminal drains and ends when that is closed."""
    with in_terminal(tmp_path, workers=workers) as (server, terminal):
        os.close(terminal)
        assert server.process.wait(40) == 0
        assert lines(server, "stopped")
        assert not lines(server, "reloading")


@pytest.mark.parametrize("workers", [1, 2])
def test_under_nohup_the_server_outlives_its_terminal(tmp_path: Path, workers: int) -> None:
    """Where SIGHUP is ignored at the start, closing the terminal ends nothing."""
    with in_terminal(tmp_path, "SIG_IGN", workers=workers) as (server, terminal):
        os.close(terminal)
        until(lambda: len(lines(server, "reloading")) >= workers)
        assert server.stop() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reads_access_and_certificates_again(tmp_path: Path, workers: int) -> None:
    """SIGHUP reloads all files at once, changed or not, in each process; the server goes on."""
    file, files = tmp_path / "access.toml", Files(tmp_path)
    new_token(file, "old", "--allocate", "*")
    with running(tmp_path, None, True, access=file, workers=workers, **files.flags) as server:

        def reloaded(times: int) -> bool:
            events = ("reloading", "access_reloaded", "certificates_reloaded")
            return all(len(lines(server, event)) == times * workers for event in events)

        server.send(signal.SIGHUP)
        until(lambda: reloaded(1))
        server.send(signal.SIGHUP)
        until(lambda: reloaded(2))
        files.key.write_text("no key")
        server.send(signal.SIGHUP)
        until(lambda: len(lines(server, "certificates_not_reloaded")) == workers)
        written = files.write()
        server.send(signal.SIGHUP)
        until(lambda: len(lines(server, "certificates_reloaded")) == 3 * workers)
        assert files.shown(server)[0] == written
        assert server.stop() == 0
