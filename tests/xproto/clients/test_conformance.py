"""MySQL's own clients get MySQL's answers from idalloc."""

import asyncio
import socket
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.paths import ROOT
from tests.support.processes import running_beside
from tests.support.store_backends import REAL_CRATEDB, empty_store
from tests.xproto.support.mysql import clients, conformance

XPROTO = pytest.mark.xproto
CRATEDB = [pytest.param("cratedb", marks=[XPROTO, pytest.mark.cratedb])] if REAL_CRATEDB else []
NAMES = {"sqlite": "SQLite", "emulator": "CrateDB's stand-in", "cratedb": "CrateDB"}


@pytest.mark.test_long
@pytest.mark.timeout(600)  # including downloads
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("emulator", marks=XPROTO), *CRATEDB])
@pytest.mark.parametrize("client", ["python", *(pytest.param(name, marks=XPROTO) for name in ("node", "java"))])
async def test_a_stock_client_gets_mysqls_answers(
    client: str, kind: str, tmp_path: Path, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every scenario has MySQL's answers but for named deviations; the guide has the numbers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # for what SET PERSIST writes
    command = await asyncio.to_thread(clients.driver, client)
    shown = Certificates(tmp_path).client("127.0.0.1")
    # A fixed port, for SET PERSIST.
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "listen": listen,
        "tls_cert": shown.cert,
        "tls_key": shown.key,
        "xproto_listen": "127.0.0.1:0",
    }
    async with (
        empty_store(kind, tmp_path) as store,
        running_beside(tmp_path, log_level="warning", store=store, **settings) as server,
    ):
        port = server.xproto.rpartition(":")[2]
        driving = await asyncio.create_subprocess_exec(
            *command, "--port", port, "--scenarios", conformance.SCENARIOS, stdout=asyncio.subprocess.PIPE
        )
        answers, _ = await driving.communicate()
        log = server.log.read_text()
    found = conformance.compare(client, answers.decode())
    table.append(f"{client} on {NAMES[kind]}: {found}")
    assert "\n".join(found.different) == ""
    assert driving.returncode == 0
    row = f"| {client.title()} | {found.equal} | {found.deviating} | {found.out_of_scope} | 0 |"
    assert row in (ROOT / "docs/guides/mysql-xdevapi.md").read_text()
    assert "connection_failed" not in log
