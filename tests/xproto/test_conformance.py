"""MySQL's own clients get MySQL's answers from idalloc."""

import asyncio
import json
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.mysql import clients, conformance
from tests.support.processes import running

XPROTO = pytest.mark.xproto
REAL_CRATEDB = os.environ.get("IDALLOC_TEST_CRATEDB_URL", "")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("emulator", marks=XPROTO),
        *([pytest.param("cratedb", marks=[XPROTO, pytest.mark.cratedb])] if REAL_CRATEDB else []),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """A kind of store, and the URL of an empty one."""
    if request.param == "emulator":
        async with CrateEmulator() as crate:
            yield "CrateDB's stand-in", f"crate://{crate.host}/?schema=idalloc_test"
    elif request.param == "cratedb":
        schema = f"idalloc_test_{uuid.uuid4().hex[:12]}"
        yield "CrateDB", f"{REAL_CRATEDB.partition('?')[0]}?schema={schema}"
    else:
        yield "SQLite", f"sqlite://{tmp_path}/ids.db"


@pytest.mark.timeout(600)  # including downloads
@pytest.mark.parametrize("client", ["python", *(pytest.param(name, marks=XPROTO) for name in ("node", "java"))])
async def test_a_stock_client_gets_mysqls_answers(
    client: str, store: tuple[str, str], tmp_path: Path, table: list[str]
) -> None:
    """Every scenario has MySQL's answers, but for the named deviations."""
    command = await asyncio.to_thread(clients.driver, client)
    shown = Certificates(tmp_path).client("127.0.0.1")
    # A fixed port, for SET PERSIST.
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "store": store[1],
        "listen": listen,
        "tls_cert": shown.cert,
        "tls_key": shown.key,
        "xproto_listen": "127.0.0.1:0",
        "xproto_max_message": 64 * 2**20,  # MySQL's default
    }
    with ExitStack() as stack:
        # In a thread: the stand-in answers on this event loop.
        server = await asyncio.to_thread(stack.enter_context, running(tmp_path, log_level="warning", **settings))
        port = json.loads(server.serving)["xproto"].rpartition(":")[2]
        driving = await asyncio.create_subprocess_exec(
            *command, "--port", port, "--scenarios", conformance.SCENARIOS, stdout=asyncio.subprocess.PIPE
        )
        answers, _ = await driving.communicate()
        log = server.log.read_text()
    found = conformance.compare(client, answers.decode())
    table.append(f"{client} on {store[0]}: {found}")
    assert "\n".join(found.different) == ""
    assert driving.returncode == 0
    assert "xproto_connection_failed" not in log
