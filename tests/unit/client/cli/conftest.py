"""Fixtures of the command's tests: a fake server, and the command in this process."""

from collections.abc import Iterator

import pytest

from tests.support.command_line import Command
from tests.support.fake_server import FakeServer, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with serving() as server:
        monkeypatch.setenv("IDALLOC_SERVER", server.target)
        monkeypatch.delenv("IDALLOC_TIMEOUT", raising=False)
        yield server


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)
