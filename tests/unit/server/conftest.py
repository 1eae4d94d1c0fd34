"""The server's unit tests run in virtual time, except those of real connections and processes."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from idalloc_server.store.sqlite import database
from tests.support.virtual_time import VirtualTimeLoop, WatchedJobThread

REAL_TIME = [Path(__file__).parent / folder for folder in ("listen", "telemetry")]


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if any(folder in item.path.parents for folder in REAL_TIME):
        return {"real": asyncio.new_event_loop}
    return {"virtual": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def watched_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "JobThread", WatchedJobThread)
