"""MySQL's own clients log in with a token over TLS, and show why any other login fails."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import running
from tests.xproto.e2e.test_server import Access
from tests.xproto.support.mysql import clients

pytestmark = [pytest.mark.xproto, pytest.mark.timeout(600)]


@pytest.mark.parametrize("client", ["python", "node", "java"])
async def test_a_stock_client_shows_why_a_login_fails(client: str, tmp_path: Path) -> None:
    """Each client shows that TLS is required; over TLS a wrong token is denied."""
    command = await asyncio.to_thread(clients.driver, client)
    access = Access(tmp_path)
    access.add("root", "--allocate", "*", "--read", "*", "--admin", "*")
    right: dict[str, Any] = {"user": "root", "password": access.tokens["root"]}
    wrong = right | {"password": "wrong", "tls": True}
    options = [right, right | {"auth": "MYSQL41"}, right | {"auth": "SHA256_MEMORY"}, wrong, right | {"tls": True}]
    steps = [{"op": "connect", "options": each} for each in options]
    scenarios = tmp_path / "scenarios.json"
    scenarios.write_text(json.dumps([{"name": "logins", "bare": True, "steps": steps}]))
    with running(tmp_path, **access.settings, **access.certificate) as server:
        port = server.xproto.rpartition(":")[2]
        driving = await asyncio.create_subprocess_exec(
            *command, "--port", port, "--scenarios", scenarios, stdout=asyncio.subprocess.PIPE
        )
        answers, _ = await driving.communicate()
    results = [json.loads(line)["result"] for line in answers.splitlines()]
    assert results.pop() == "connected"
    reasons = ["Connections using insecure transport are prohibited: use TLS"] * 3 + ["Access denied for user 'root'@"]
    assert len(results) == len(reasons)
    for result, reason in zip(results, reasons, strict=True):
        assert reason in json.dumps(result["error"])
