"""`idalloc node set --persist` over real restarts."""

import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from idalloc import Client
from idalloc.xprotocol.v1 import statement_pb2
from idalloc_xproto import frames
from tests.support.processes import IDALLOC, Server, environment, running
from tests.xproto.support.client import connected


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


@pytest.mark.test_long
async def test_sql_persists_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart keeps what PERSIST set, also where a later SET GLOBAL differed, and no more."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = {"listen": free_address(), "xproto_listen": "127.0.0.1:0"}
    names = ("auto_increment_increment", "auto_increment_offset", "mysqlx_document_id_unique_prefix")
    read = f"SELECT {', '.join(f'@@{name}' for name in names)}"

    async def run(server: Server, *statements: str) -> list[int]:
        async with connected(server.xproto) as client:
            for statement in statements:
                assert (await client.sql(statement)).code == 0
            reply = await client.sql(read)
            [row] = [payload for kind, payload in reply.frames if kind == frames.ROW]
            return [field[0] for field in statement_pb2.Row.FromString(row).field]

    with running(tmp_path, **settings) as server:
        mixed = "SET GLOBAL auto_increment_increment = 8, PERSIST mysqlx_document_id_unique_prefix = 5"
        twice = "SET PERSIST auto_increment_offset = 3, GLOBAL auto_increment_offset = 4"
        assert await run(server, mixed, twice) == [8, 4, 5]
        server.stop(signal.SIGKILL)
    with running(tmp_path, **settings) as server:
        assert await run(server) == [1, 3, 5]
