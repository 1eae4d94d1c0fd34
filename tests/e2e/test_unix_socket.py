"""Real servers on Unix sockets, and the addresses that native accepts without `insecure`."""

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import idalloc
from tests.support.processes import environment, running, serve_command, start_error

pytestmark = pytest.mark.test_long

TRANSPORTS = pytest.mark.parametrize("transport", ["grpcio", "native"])


@pytest.fixture
def listen() -> Iterator[str]:
    """An address in a folder with a short name, since socket paths are limited."""
    with TemporaryDirectory() as folder:
        yield f"unix:{folder}/ids.sock"


@contextmanager
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def refusal(folder: Path, **settings: object) -> str:
    """Start a server that must refuse to start, and return its error."""
    command = serve_command(store=f"sqlite://{folder}/other.db", **settings)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return start_error(done.stderr)


@TRANSPORTS
def test_a_unix_socket_is_for_the_user_and_group(tmp_path: Path, listen: str, transport: str) -> None:
    """`listen = unix:/PATH` serves the user and group, whatever the umask, and leaves no file."""
    path = Path(listen.removeprefix("unix:"))
    with open_umask(), running(tmp_path, transport=transport, listen=listen) as server:
        assert server.address == listen
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with idalloc.Client(listen) as client:
            assert client.allocate_range("orders", 3).ids == range(1, 4)
            assert sum(len(each) for each in client.stream_ranges("orders", 50, 10)) == 50
        assert server.stop() == 0
    assert not path.exists()


@TRANSPORTS
def test_a_unix_socket_belongs_to_one_server(tmp_path: Path, listen: str, transport: str) -> None:
    """A second server on the same Unix socket is refused; gRPC would take the first one's place."""
    with running(tmp_path, transport=transport, listen=listen), idalloc.Client(listen) as client:
        assert client.allocate_range("orders").ids == range(1, 2)
        line = refusal(tmp_path, transport=transport, listen=listen)
        assert line.startswith(f"listen: cannot serve on {listen}: Address already in use")
        assert client.allocate_range("orders").ids == range(2, 3)


@TRANSPORTS
def test_a_unix_socket_of_a_killed_server_is_reused(tmp_path: Path, listen: str, transport: str) -> None:
    """A server starts on the Unix socket that a killed server left."""
    with running(tmp_path, transport=transport, listen=listen) as server:
        server.stop(signal.SIGKILL)
    assert Path(listen.removeprefix("unix:")).is_socket()
    with running(tmp_path, transport=transport, listen=listen), idalloc.Client(listen) as client:
        assert len(client.allocate_range("orders")) == 1


def test_a_file_that_is_not_a_socket_is_kept(tmp_path: Path, listen: str) -> None:
    """A start never removes a file that is not a socket."""
    path = Path(listen.removeprefix("unix:"))
    path.write_text("content")
    assert "a file exists there that is not a socket" in refusal(tmp_path, listen=listen)
    assert path.read_text() == "content"
    assert "No such file or directory" in refusal(tmp_path, listen=f"unix:{tmp_path}/missing/ids.sock")


def test_workers_cannot_share_a_unix_socket(tmp_path: Path, listen: str) -> None:
    """Several workers on a Unix socket are refused."""
    assert refusal(tmp_path, listen=listen, workers=2).startswith("workers: ")


@pytest.mark.parametrize("value", ["unix:", "unix:ids.sock", "unix:/a b", "unix:/a%20b", f"unix:/{'x' * 103}"])
def test_an_invalid_socket_path_is_refused(tmp_path: Path, value: str) -> None:
    """A socket path that is relative, too long or special in a gRPC target is refused at start."""
    assert "must be unix:/PATH" in refusal(tmp_path, listen=value)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_native_requires_loopback_unless_insecure(tmp_path: Path, host: str) -> None:
    """The native transport listens on loopback and Unix sockets only, unless `insecure`."""
    line = refusal(tmp_path, transport="native", listen=f"{host}:0")
    assert "native unpacks requests of any size before it authenticates a caller" in line
    assert "listen on 127.0.0.1 or on unix:/PATH" in line
    with running(tmp_path, transport="native", listen=f"{host}:0", insecure="true") as server:
        port = server.address.rpartition(":")[2]
        with idalloc.Client(f"localhost:{port}") as client:
            assert client.allocate_range("orders").ids == range(1, 2)
