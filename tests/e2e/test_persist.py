"""`idalloc node set --persist` over real restarts."""

import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from idalloc import Client
from tests.support.processes import IDALLOC, Server, environment, running


def prefix(server: Server) -> int:
    with Client(server.address) as client:
        return int(client.doc_ids()[0][:4], 16)


def free_address() -> str:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"  # settings are kept per address


def test_a_persisted_prefix_survives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix set with --persist survives a crash, and a flag overrides it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    listen = free_address()
    with running(tmp_path, listen=listen) as server:
        assert prefix(server) == 0
        done = subprocess.run(
            [IDALLOC, "node", "set", "--prefix", "12", "--persist"],
            env=environment(server=listen),
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert (done.returncode, done.stderr) == (0, "")
        server.stop(signal.SIGKILL)
    with running(tmp_path, listen=listen) as server:
        assert prefix(server) == 12
        server.stop()
    with running(tmp_path, listen=listen, node_prefix=5) as server:
        assert prefix(server) == 5
