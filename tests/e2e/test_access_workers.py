"""Authentication with several workers: once one of them requires it, all do, also later ones."""

import os
import signal
from pathlib import Path

import grpc
import pytest

from tests.e2e.test_access import allocate_status, new_token
from tests.support.processes import Server, running
from tests.support.server_calls import log_events, wait_until

# Each test starts several processes, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(180)

QUOTA = "[[quota]]\nsequence = '*'\ncalls_per_second = 1000\n"


def replace(file: Path, content: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(content)
    other.replace(file)


def statuses(server: Server, token: str = "") -> set[grpc.StatusCode]:
    """Return the statuses of calls on enough connections to reach each worker."""
    return {allocate_status(server, token) for _ in range(16)}


@pytest.mark.test_long
def test_replaced_workers_keep_requiring_authentication(tmp_path: Path) -> None:
    """Once one worker requires authentication, every later worker does."""
    file = tmp_path / "access.toml"
    file.write_text(QUOTA)
    with running(tmp_path, access_file=file, workers=2) as server:
        assert statuses(server) == {grpc.StatusCode.OK}
        token = new_token(file, "old", "--allocate", "*")
        wait_until(lambda: len(log_events(server, "access_reloaded")) == 2, seconds=60)
        assert statuses(server) == {grpc.StatusCode.UNAUTHENTICATED}
        assert statuses(server, token) == {grpc.StatusCode.OK}
        replace(file, QUOTA)
        wait_until(lambda: len(log_events(server, "access_reloaded")) == 4, seconds=60)
        for line in log_events(server, "worker_started"):
            os.kill(line["pid"], signal.SIGKILL)
        wait_until(lambda: len(log_events(server, "worker_started")) == 4, seconds=60)
        wait_until(lambda: allocate_status(server, "") != grpc.StatusCode.UNAVAILABLE, seconds=60)
        assert statuses(server) == {grpc.StatusCode.UNAUTHENTICATED}
        assert server.stop() == 0
