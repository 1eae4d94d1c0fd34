"""A worker process: serves as the supervisor directs, and ends with it.

The supervisor runs ``python -m idalloc_server.workers.worker FD``; the descriptor is a socket for ``Pipe``.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import count
from typing import Any

import structlog

from idalloc_server import app
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.config import Settings
from idalloc_server.domain import change_events
from idalloc_server.domain.document_ids.generator import DocIdGenerator, NodeSettings
from idalloc_server.domain.errors import Refusal, ServerDraining, StartRefused, StoreFailure, WorkerFailed
from idalloc_server.rpc.node import Workers
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers.pipe import Message, Pipe, decode_error, encode_error

# The longest drain after the supervisor was killed: a new server needs the port.
ORPHAN_DRAIN_SECONDS = 2.0

_log = structlog.get_logger("idalloc.worker")


class Worker:
    """The ``ProcessMode`` of a worker, and its side of the pipe to the supervisor.

    Args:
        pipe: The connection to the supervisor.
        workers: How many workers the server has.
        drain_timeout: How long running calls may continue after a stop, in seconds.
        requires_authentication: Whether another worker requires authentication already.
    """

    shares_port = True
    # When a terminal closes, SIGHUP reaches the supervisor, too.
    stop_signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    node_settings: NodeSettings | None = None  # the supervisor persists settings

    def __init__(self, pipe: Pipe, workers: int, drain_timeout: float, requires_authentication: bool = False) -> None:
        self.count = workers
        self.workers: Workers | None = self
        self.stop_requested = asyncio.Event()
        self.reload_requested = asyncio.Event()
        self.drain_timeout = drain_timeout
        self.requires_authentication = requires_authentication
        self.is_ready = False
        self._pipe = pipe
        self._doc_ids: DocIdGenerator | None = None
        self._access_control: AccessControl | None = None
        self._all_ready = asyncio.Event()
        self._all_stop = False
        self._all_closed = asyncio.Event()
        self._all_drained: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._commit: asyncio.Future[bool] | None = None
        self._responses: dict[int, asyncio.Future[Message]] = {}
        self._request_ids = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    async def receive_until_orphaned(self) -> None:
        """Handle the supervisor's messages until it exits."""
        while (message := await self._pipe.receive()) is not None:
            match message.pop("kind"):
                case "serve":
                    self._all_ready.set()
                case "require_authentication":
                    self.requires_authentication = True
                    if self._access_control is not None:
                        self._access_control.require_authentication()
                case "change":
                    self._create_task(self._change(message))
                case "decide":
                    if self._commit is not None and not self._commit.done():
                        self._commit.set_result(message["commit"])
                case "response":
                    response = self._responses.pop(message["id"])
                    if not response.done():  # the caller may have cancelled
                        response.set_result(message)
                case "reload":
                    self.reload_requested.set()
                case "stop":
                    self._all_stop = True
                    self.stop_requested.set()
                case "all_closed":
                    self._all_closed.set()
                case "exit":
                    self._allow_exit(message["all_drained"])
        self._on_orphaned()

    # ProcessMode: reports to the supervisor.

    def reserve_address(self, listen: str) -> None:
        """See ``ProcessMode``: the supervisor has reserved it."""

    async def wait_all_ready(self, doc_ids: DocIdGenerator, access_control: AccessControl, welcome: str) -> None:
        """See ``ProcessMode``."""
        self.is_ready = True
        self._doc_ids = doc_ids
        self._access_control = access_control
        if self.requires_authentication:  # the message may have come during the start
            access_control.require_authentication()
        if access_control.requires_authentication:
            self.require_authentication()
        self._pipe.send("ready", welcome=welcome)
        stop_requested = asyncio.create_task(self.stop_requested.wait())
        all_ready = asyncio.create_task(self._all_ready.wait())
        await asyncio.wait({stop_requested, all_ready}, return_when=asyncio.FIRST_COMPLETED)
        stop_requested.cancel()
        all_ready.cancel()

    def require_authentication(self) -> None:
        """See ``ProcessMode``."""
        if not self.requires_authentication:
            self.requires_authentication = True
            self._pipe.send("require_authentication")

    def report_serving(self) -> None:
        """See ``ProcessMode``."""
        self._pipe.send("serving")

    async def report_counts(self, counts: Callable[[], Counts]) -> None:
        """See ``ProcessMode``."""
        while True:
            await asyncio.sleep(1)
            self._pipe.send("counts", counts=counts().to_json())

    async def wait_all_closed(self) -> None:
        """See ``ProcessMode``: a rejected caller must not reconnect to a worker that is about to close."""
        self._pipe.send("closed")
        if self._all_stop:
            await self._all_closed.wait()

    async def wait_all_drained(self) -> bool:
        """See ``ProcessMode``."""
        self._pipe.send("drained")
        return await self._all_drained

    def report_final_counts(self, counts: Counts) -> None:
        """See ``ProcessMode``."""
        self._pipe.send("counts", counts=counts.to_json())

    # Workers: requests to the supervisor.

    async def change(self, given: Mapping[str, int], *, persist: bool) -> None:
        """See ``Workers.change``."""
        before = self._settings()

        def publish(done: asyncio.Future[Message]) -> None:
            if done.exception() is None and done.result()["error"] is None:
                # Concurrent calls may change other settings.
                changed = [name for name in before if name.removeprefix("auto_increment_") in given]
                after = self._settings()
                change_events.publish_settings(
                    {name: before[name] for name in changed}, {name: after[name] for name in changed}
                )

        response = self._request("change", given=dict(given), persist=persist)
        response.add_done_callback(publish)
        answer = await asyncio.shield(response)  # A cancelled caller does not stop the change or its event.
        if answer["error"] is not None:
            raise decode_error(answer["error"])

    async def lease_count(self) -> int:
        """See ``Workers.lease_count``."""
        lease_count: int = (await self._request("lease_count"))["lease_count"]
        return lease_count

    def _settings(self) -> dict[str, int]:
        return {} if self._doc_ids is None else self._doc_ids.settings

    def _request(self, method: str, **values: object) -> asyncio.Future[Message]:
        if self._all_drained.done():
            raise ServerDraining
        request_id = next(self._request_ids)
        response: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._responses[request_id] = response
        self._pipe.send("request", id=request_id, method=method, **values)
        return response

    # Requests of the supervisor.

    async def _change(self, given: Message) -> None:
        """Prepare a change, and commit it once all workers have prepared it; see ``Supervisor``."""
        self._commit = asyncio.get_running_loop().create_future()
        try:
            if self._doc_ids is None:
                raise ServerDraining
            await self._doc_ids.change(**given, node_settings=_TwoPhaseCommit(self._pipe, self._commit))
        except Refusal as refusal:
            self._pipe.send("rejected", error=encode_error(refusal))
        except Exception as fault:
            # All workers wait for the reply.
            _log.error("change_failed", exc_info=fault)
            self._pipe.send("rejected", error=encode_error(WorkerFailed(f"a worker failed: {fault!r}; see its log")))
        else:
            self._pipe.send("changed")

    def _create_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_orphaned(self) -> None:
        self.drain_timeout = min(self.drain_timeout, ORPHAN_DRAIN_SECONDS)
        self.stop_requested.set()
        self._all_closed.set()
        self._allow_exit(True)
        if self._commit is not None and not self._commit.done():
            self._commit.set_result(False)
        for response in self._responses.values():
            if not response.done():
                response.set_exception(ServerDraining())

    def _allow_exit(self, all_drained: bool) -> None:
        if not self._all_drained.done():
            self._all_drained.set_result(all_drained)


class _TwoPhaseCommit:
    """A ``NodeSettings`` that delays a change until all workers have prepared it."""

    def __init__(self, pipe: Pipe, commit: asyncio.Future[bool]) -> None:
        self._pipe = pipe
        self._commit = commit

    def check(self, settings: Iterable[str]) -> None:
        """See ``NodeSettings``: the supervisor checks."""

    async def save(self, settings: Mapping[str, int]) -> None:
        """See ``NodeSettings``."""
        self._pipe.send("prepared")
        if not await self._commit:
            raise ServerDraining  # The supervisor knows the cause, and drops this error.


async def run_worker(connection: socket.socket) -> None:
    """Serve as the supervisor directs.

    Args:
        connection: The connection to the supervisor.
    """
    pipe = await Pipe.over(connection)
    start = await pipe.receive()
    if start is None:
        return
    # The supervisor has validated them.
    settings = Settings.model_construct(**start["settings"])
    logs.configure(settings.log_level, worker=start["number"])
    worker = Worker(pipe, settings.workers, settings.drain_timeout, start["requires_authentication"])
    serving = asyncio.create_task(app.serve(settings, worker))
    receiving = asyncio.create_task(worker.receive_until_orphaned())
    await asyncio.wait({serving, receiving}, return_when=asyncio.FIRST_COMPLETED)
    if not worker.is_ready:
        serving.cancel()  # The supervisor is gone.
    try:
        await serving
    except (StartRefused, StoreFailure) as error:
        pipe.send("start_failed", error=encode_error(error))
    except asyncio.CancelledError:
        pass
    finally:
        receiving.cancel()
        await pipe.close()


if __name__ == "__main__":
    from uvloop import run

    # Until the worker serves. Ctrl-C reaches all processes of a terminal; the supervisor alone reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run(run_worker(socket.socket(fileno=int(sys.argv[1]))))
