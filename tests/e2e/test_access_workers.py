"""Several workers that ask who calls: once one of them has asked, all do, and those that come later."""

import os
import signal
from pathlib import Path

import grpc
import pytest

from tests.e2e.test_access import ask, lines, new_token, until
from tests.support.processes import Server, running

# Each starts several processes, which take their time on a machine that does other things.
pytestmark = pytest.mark.timeout(180)

QUOTA = "[[quota]]\nsequence = '*'\ncalls_per_second = 1000\n"


def replace(file: Path, content: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(content)
    other.replace(file)


def let_in(server: Server, token: str = "") -> set[grpc.StatusCode]:
    """Asks on so many connections that each worker has some."""
    return {ask(server, token) for _ in range(16)}


def test_a_replacement_asks_where_the_file_named_somebody_while_it_ran(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(QUOTA)
    with running(tmp_path, access=file, workers=2) as server:
        assert let_in(server) == {grpc.StatusCode.OK}
        token = new_token(file, "old", "--allocate", "*")
        until(lambda: len(lines(server, "access_reloaded")) == 2)
        assert let_in(server) == {grpc.StatusCode.UNAUTHENTICATED}
        assert let_in(server, token) == {grpc.StatusCode.OK}
        replace(file, QUOTA)
        until(lambda: len(lines(server, "access_reloaded")) == 4)
        for line in lines(server, "worker_started"):
            os.kill(line["pid"], signal.SIGKILL)
        until(lambda: len(lines(server, "worker_started")) == 4)
        until(lambda: ask(server, "") != grpc.StatusCode.UNAVAILABLE)
        assert let_in(server) == {grpc.StatusCode.UNAUTHENTICATED}
        assert server.stop() == 0
