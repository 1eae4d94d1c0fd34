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


def test_a_prefix_that_was_kept_holds_after_a_crash_and_a_flag_beats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"  # what is kept is kept for an address
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
