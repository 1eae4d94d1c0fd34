"""Fake workers for the tests of the supervisor."""

import pytest

from idalloc_server.workers import supervisor
from idalloc_server.workers.worker_process import WorkerProcess
from tests.support.fake_workers import FakeWorkers


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fakes = FakeWorkers()
    monkeypatch.setattr(WorkerProcess, "start", fakes.start)
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.0)
    return fakes


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a store_timeout with which a silent worker is unresponsive after about two seconds."""
    monkeypatch.setattr(supervisor, "REPLY_SECONDS", 2.0)
    return "10ms"
