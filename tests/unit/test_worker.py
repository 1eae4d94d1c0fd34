"""What a worker tells its supervisor, where that is not seen through real processes."""

import asyncio
import socket
from typing import Any

from idalloc_server.domain.errors import WorkerFailed
from idalloc_server.pipe import Pipe, unpack
from idalloc_server.worker import Worker


class Broken:
    async def change(self, **_: object) -> None:
        raise ZeroDivisionError("of its own")


async def test_a_change_that_fails_by_a_fault_of_the_worker_is_replied_to() -> None:
    one, other = socket.socketpair()
    supervisor = await Pipe.over(one)
    worker = Worker(await Pipe.over(other), 2, 1.0)
    broken: Any = Broken()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.hear())
        supervisor.tell("serve")
        await worker.join(broken, "here")
        assert await supervisor.hear() == {"what": "serves", "welcome": "here"}
        supervisor.tell("change", offset=5)
        reply = await supervisor.hear()
        assert reply is not None
        assert reply["what"] == "refused"
        error = unpack(reply["error"])
        assert isinstance(error, WorkerFailed)
        assert "of its own" in str(error)
        await supervisor.close()
    await worker._pipe.close()
