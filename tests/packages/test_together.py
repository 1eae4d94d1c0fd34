"""Programs in several languages that use the packages at the same time."""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.languages.conftest import Secrets
from tests.packages import java_package
from tests.packages.java_package import Consumer, jdk
from tests.packages.node_package import TOTAL, Taker
from tests.packages.test_go import settings
from tests.packages.test_java import FLOOR, REASONS
from tests.support.processes import running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]


def test_go_java_and_node_get_no_id_twice_while_servers_die(
    go_program: Path, java_consumer: Consumer, node_consumer: Path, secrets: Secrets, tmp_path: Path
) -> None:
    """P1: of the millions of ids of all three none comes twice, and each error is typed."""
    go_ids, node_ids = tmp_path / "go", tmp_path / "node"
    with ExitStack() as stack:
        servers = [stack.enter_context(running(tmp_path, **secrets.settings)) for _ in range(2)]
        target = ",".join(server.address for server in servers)
        node = Taker(node_consumer, node_ids, target, str(secrets.ca), str(secrets.token_file))
        stack.callback(node.process.kill)
        program = java_consumer.command(jdk(FLOOR), "Take", target, "64", "platform", str(TOTAL))
        java = java_package.Taker(tmp_path, program, settings(secrets))
        stack.callback(java.process.kill)
        wait_until(lambda: node.size and java.size, "ids of Node and Java", seconds=100)
        go = subprocess.Popen(
            [go_program, "pool", target, str(TOTAL)],
            env=settings(secrets),
            stdout=stack.enter_context(go_ids.open("w")),
        )
        stack.callback(go.kill)

        def wait_for_more() -> None:
            sizes = go_ids.stat().st_size, node.size, java.size
            wait_until(
                lambda: (
                    (go.poll() is not None or go_ids.stat().st_size > sizes[0])
                    and node.size > sizes[1]
                    and java.size > sizes[2]
                ),
                "all get ids",
                seconds=100,
            )

        for server in servers:
            wait_for_more()
            assert go.poll() is None, "it has ended before the kill"
            server.stop(signal.SIGKILL)
            wait_for_more()
            stack.enter_context(running(tmp_path, **secrets.settings | {"listen": server.address}))
        printed = node.end()
        java_ids, reasons = java.end()
        assert go.wait(timeout=300) == 0
    lines = go_ids.read_text().splitlines()
    taken = [int(line) for line in lines if not line.startswith("error")]
    assert len(taken) == TOTAL
    assert len(java_ids) >= TOTAL
    taken += [*memoryview(node_ids.read_bytes()).cast("q"), *java_ids]
    assert len(set(taken)) == len(taken) == TOTAL + int(str(printed["count"])) + len(java_ids) >= 3 * TOTAL
    assert "error untyped" not in lines
    assert reasons <= REASONS
