"""Programs in several languages that use the packages at the same time."""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.languages.conftest import Secrets
from tests.packages.node_package import TOTAL, Taker
from tests.packages.test_go import settings
from tests.support.processes import running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]


def test_go_and_node_get_no_id_twice_while_servers_are_killed(
    go_program: Path, node_consumer: Path, secrets: Secrets, tmp_path: Path
) -> None:
    """P1: of a million ids of both none comes twice, and each error is typed."""
    go_ids, node_ids = tmp_path / "go", tmp_path / "node"
    with ExitStack() as stack:
        servers = [stack.enter_context(running(tmp_path, **secrets.settings)) for _ in range(2)]
        target = ",".join(server.address for server in servers)
        node = Taker(node_consumer, node_ids, target, str(secrets.ca), str(secrets.token_file))
        stack.callback(node.process.kill)
        wait_until(lambda: node.size, "ids of Node", seconds=100)
        go = subprocess.Popen(
            [go_program, "pool", target, str(TOTAL)],
            env=settings(secrets),
            stdout=stack.enter_context(go_ids.open("w")),
        )
        stack.callback(go.kill)

        def wait_for_more() -> None:
            sizes = go_ids.stat().st_size, node.size
            wait_until(
                lambda: (go.poll() is not None or go_ids.stat().st_size > sizes[0]) and node.size > sizes[1],
                "both get ids",
                seconds=100,
            )

        for server in servers:
            wait_for_more()
            assert go.poll() is None, "it has ended before the kill"
            server.stop(signal.SIGKILL)
            wait_for_more()
            stack.enter_context(running(tmp_path, **secrets.settings | {"listen": server.address}))
        printed = node.end()
        assert go.wait(timeout=300) == 0
    lines = go_ids.read_text().splitlines()
    taken = [int(line) for line in lines if not line.startswith("error")]
    assert len(taken) == TOTAL
    taken += memoryview(node_ids.read_bytes()).cast("q")
    assert len(set(taken)) == len(taken) == TOTAL + int(str(printed["count"])) >= 2 * TOTAL
    assert "error untyped" not in lines
