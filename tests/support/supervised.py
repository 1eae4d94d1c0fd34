"""A supervisor with fake workers, until the end of a block."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from idalloc_server.domain.errors import (
    StartRefused,
    StoreUnavailable,
)
from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.workers.supervisor import Supervisor
from tests.support.fake_workers import SECONDS, FakeWorker, FakeWorkers


def supervised_settings(store_timeout: str = "40s", count: int = 2) -> Settings:
    return Settings.model_validate(
        {"listen": "127.0.0.1:0", "workers": count, "node_prefix": 3, "store_timeout": store_timeout}
    )


def new_supervisor(settings: Settings) -> Supervisor:
    return Supervisor(settings, NodeSettingsFile(None, "127.0.0.1:0"))


@asynccontextmanager
async def supervised(
    workers: FakeWorkers, store_timeout: str = "40s", count: int = 2
) -> AsyncIterator["asyncio.Task[int]"]:
    running = asyncio.create_task(new_supervisor(supervised_settings(store_timeout, count)).run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.sleep(0)
        for worker in workers.all:
            await worker.exit()
        with suppress(asyncio.CancelledError, StartRefused, StoreUnavailable):
            await asyncio.wait_for(running, SECONDS)


async def start_both(workers: FakeWorkers) -> tuple[FakeWorker, FakeWorker]:
    one, other = await workers.next(), await workers.next()
    await asyncio.gather(one.serve(), other.serve())
    return one, other
