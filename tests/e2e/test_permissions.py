"""Modes of the files and folders that a server creates."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.processes import IDALLOC, environment, running

pytestmark = [pytest.mark.test_long, pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file modes")]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the umask of processes that start in the block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(each.relative_to(folder)): stat.S_IMODE(each.stat().st_mode) for each in sorted(folder.rglob("*"))}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o177, 0o277], ids=oct)
def test_files_are_0600_and_folders_0700(tmp_path: Path, mask: int) -> None:
    """Only the user may read database files, kept settings and client logs, whatever the umask."""
    made, state = tmp_path / "made", tmp_path / "state"
    made.mkdir(0o755)
    state.mkdir(0o755)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"  # settings are kept per address
    environ = environment() | {"XDG_STATE_HOME": str(state / "home" / "local")}
    with umask(mask):
        server = running(tmp_path, environ, listen=listen, store=f"sqlite://{made}/a/b/ids.db")
        with server:
            for line in ("allocate orders 3 --log", "node set --prefix 3 --persist"):
                log = [str(made / "a" / "issued.log")] if line.endswith("--log") else []
                command = [IDALLOC, "--server", listen, *line.split(), *log]
                subprocess.run(command, env=environ, check=True, capture_output=True, timeout=50)
            found = modes(made)
            kept = modes(state)
    assert found == {
        "a": 0o700, "a/b": 0o700, "a/issued.log": 0o600 & ~mask,
        "a/b/ids.db": 0o600, "a/b/ids.db-wal": 0o600, "a/b/ids.db-shm": 0o600,
    }  # fmt: skip
    [file] = [name for name in kept if name.endswith(".json")]
    assert kept == {"home": 0o700, "home/local": 0o700, "home/local/idalloc": 0o700, file: 0o600}


def test_existing_files_keep_their_mode(tmp_path: Path) -> None:
    """A server changes the mode of neither an existing folder nor an existing database."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o750)
    store = f"sqlite://{folder}/ids.db"
    with running(tmp_path, store=store) as server:
        server.stop()
    (folder / "ids.db").chmod(0o640)
    with running(tmp_path, store=store):
        assert modes(folder) == {"ids.db": 0o640, "ids.db-shm": 0o640, "ids.db-wal": 0o640}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
