import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import idalloc
from tests.support.certificates import Certificates
from tests.support.fake_server import FakeServer, serving
from tests.support.paths import ROOT
from tests.unit.client.clients import KINDS

_IN_CHILD = "IDALLOC_TEST_IN_CHILD"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with the mark ``child`` in a process of its own.

    Python 3.11 rarely crashes while it traces gRPC's tasks, which would end a worker of pytest.
    """
    if pyfuncitem.get_closest_marker("child") is None or _IN_CHILD in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", pyfuncitem.nodeid]
    environment = os.environ | {_IN_CHILD: "1"}
    run = partial(subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True)
    done = run()
    if done.returncode == -signal.SIGSEGV:
        done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    return True


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of a client."""
    return str(request.param)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture(params=["issued.log", "issued.jsonl"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file for a log of issued ids, of each format."""
    return tmp_path / str(request.param)


@pytest.fixture
def client(server: FakeServer) -> Iterator[idalloc.Client]:
    with idalloc.Client(server.target) as client:
        yield client
