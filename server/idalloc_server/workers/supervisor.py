"""The supervisor of several workers: starts them, replaces a worker that exits, and stops them in order.

It serves no call and creates no gRPC object. Each worker is a fresh process, since a fork of a process that uses gRPC
hangs. A worker has its own leases and start timestamp. The supervisor owns the address, the state of health, changes of
the node's settings, and the sum of the counts.
"""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import structlog

from idalloc_server.auth.access_file import AccessFile
from idalloc_server.config import Settings
from idalloc_server.domain.errors import Refusal, StartRefused, WorkerFailed
from idalloc_server.listen.reservation import ReservedAddress
from idalloc_server.node_settings import NodeSettingsFile
from idalloc_server.process_mode import log_stopped, print_welcome, stop_signals
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import Counts, log_calls
from idalloc_server.workers.pipe import Message, decode_error, encode_error
from idalloc_server.workers.worker_process import WorkerExited, WorkerProcess

# A worker that served at least this long is replaced at once; any other one after a growing pause.
STABLE_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
# How long a worker that drained by itself waits: a signal to all processes may reach the supervisor last.
SELF_STOP_SECONDS = 1.0
# How much longer than drain_timeout a stop may take, to release leases and the prefix.
STOP_MARGIN_SECONDS = 15.0
# The longest wait for a reply, in addition to store_timeout for each store call that it needs.
REPLY_SECONDS = 10.0
# The most sequential store calls of a change and of a start.
CHANGE_CALLS, START_CALLS = 2, 5
# The setting of each field that UpdateNode changes.
_SETTINGS = {"prefix": "node_prefix", "offset": "auto_increment_offset", "increment": "auto_increment_increment"}

_log = structlog.get_logger("idalloc.supervisor")


class Supervisor:
    """Runs a server of several workers; ``_supervise`` replaces one that exits.

    Args:
        settings: All settings.
        node_settings: Persists settings that UpdateNode changes.
        created: The line to print about a store that this start creates; empty for an existing store.
    """

    def __init__(self, settings: Settings, node_settings: NodeSettingsFile, created: str = "") -> None:
        self._settings = settings
        self._created = created
        self._node_settings = node_settings
        self._workers: dict[int, WorkerProcess] = {}
        self._exits: dict[int, asyncio.Task[int]] = {}  # each returns the exit code
        self._exited_counts = Counts()
        self._welcome = ""
        self._stop_requested = asyncio.Event()
        self._second_signal: asyncio.Future[int] | None = None
        # Stays true once any worker required authentication, whatever the access file says later.
        self._requires_authentication = False
        # Held by a start and by a change, so that no worker starts with settings that are about to change.
        self._change_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        self._fault: BaseException | None = None

    def counts(self) -> Counts:
        """Return the sum over all processes, exited ones included; at most about a second old."""
        total = Counts(log_lines_lost=Counter(logs.lost_lines()))
        for each in (self._exited_counts.to_json(), *(worker.counts for worker in self._workers.values())):
            total.add(each)
        return total

    async def run(self) -> int:
        """Serve until a stop signal, then stop all workers in order; a second signal kills them.

        Returns:
            The exit code: 0, 1 if a worker had to be killed, or 128 plus the number of the second signal.

        Raises:
            StartRefused: A setting or the store prevents the start.
            StoreFailure: The store was not reached within ``store_timeout``, or rejected a statement.
        """
        if sys.platform != "linux":
            raise StartRefused("workers", "several processes can share a port on Linux only; set it to 1")
        if self._settings.access:
            self._requires_authentication = bool(AccessFile(self._settings.access).read().identities)
        address = ReservedAddress(self._settings.listen, shared=True)
        self._settings = self._settings.model_copy(update={"listen": address.name})
        loop, numbers = asyncio.get_running_loop(), stop_signals()
        self._second_signal = loop.create_future()
        if signal.SIGHUP not in numbers:
            loop.add_signal_handler(signal.SIGHUP, self._broadcast, "reload")
        try:
            await self._start_all()
            for number in numbers:
                loop.add_signal_handler(number, self._on_stop_signal, number)
            print_welcome(f"{self._welcome}, {self._settings.workers} workers", self._created)
            loops = (self._supervise(each) for each in range(1, self._settings.workers + 1))
            self._background = [self._create_task(job) for job in (*loops, log_calls(lambda: self.counts().calls))]
            await self._stop_requested.wait()
        finally:
            code = await self._stop_all()
            address.close()
        if self._fault is not None:
            raise self._fault
        log_stopped(self.counts())
        return code

    def on_drained(self, worker: WorkerProcess) -> None:
        """Let a worker exit that drained by itself, as after SIGTERM, unless all stop."""
        if not self._stop_requested.is_set():
            asyncio.get_running_loop().call_later(SELF_STOP_SECONDS, self._allow_exit, worker)

    def on_request(self, worker: WorkerProcess, request: Message) -> None:
        """Respond to a worker's request, without waiting for a change."""
        if request["method"] == "change":
            self._create_task(self._handle_change(worker, request))
        else:
            count = sum(each.counts["lease_count"] for each in self._workers.values() if each is not worker)
            worker.send("response", id=request["id"], lease_count=count)

    def require_authentication(self) -> None:
        """Require authentication in all workers: a later one may not have seen the access file that required it."""
        if not self._requires_authentication:
            self._requires_authentication = True
            self._broadcast("require_authentication")

    def _broadcast(self, kind: str) -> None:
        for each in self._workers.values():
            each.send(kind)

    async def _start_all(self) -> None:
        numbers = range(1, self._settings.workers + 1)
        async with self._change_lock:
            # Health becomes SERVING in the second step, when all of them answer.
            for step in (self._start_worker, self._make_serving):
                results = await asyncio.gather(*(step(each) for each in numbers), return_exceptions=True)
                for error in results:
                    if isinstance(error, WorkerExited | WorkerFailed):
                        raise StartRefused("workers", "a worker exited while it started; see the log") from None
                    if isinstance(error, BaseException):
                        raise error

    async def _start_worker(self, number: int) -> None:
        worker = await WorkerProcess.start(number)
        self._workers[number] = worker
        self._exits[number] = asyncio.create_task(worker.receive_until_exit(self))
        state = {"settings": dict(self._settings), "requires_authentication": self._requires_authentication}
        worker.send("start", number=number, **state)
        reply = await worker.wait_reply(self._reply_timeout(START_CALLS))
        if reply["kind"] == "start_failed":
            raise decode_error(reply["error"])
        self._welcome = reply["welcome"]
        _log.info("worker_started", worker=number, pid=worker.process.pid)

    async def _make_serving(self, number: int) -> None:
        worker = self._workers[number]
        worker.send("serve")
        await worker.wait_reply(REPLY_SECONDS)
        worker.is_serving = True
        worker.serving_since = asyncio.get_running_loop().time()

    def _reply_timeout(self, store_calls: int) -> float:
        """Return the longest wait for a reply that takes so many store calls, in seconds."""
        return store_calls * self._settings.store_timeout + REPLY_SECONDS

    async def _supervise(self, number: int) -> None:
        """Replace a worker whenever it exits, until cancelled."""
        pause = 0.0
        while True:
            worker = self._workers[number]
            code = await asyncio.shield(self._exits[number])
            self._keep_counts(worker)
            if asyncio.get_running_loop().time() - worker.serving_since >= STABLE_SECONDS:
                pause = 0.0
            _log.warning("worker_ended", worker=number, pid=worker.process.pid, exit_code=code, restart_in=pause)
            while self._workers[number] is worker:  # until a process could be created
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                await self._replace(number)

    async def _replace(self, number: int) -> None:
        """Start a worker in place of an exited one; log a failure."""
        try:
            async with self._change_lock:
                await self._start_worker(number)
                await self._make_serving(number)
        except (StartRefused, Refusal, OSError) as error:
            # The other workers serve from their leases, so this one can wait until the store is back.
            _log.warning("worker_not_started", worker=number, error=str(error))
        except WorkerExited:
            pass  # `_supervise` handles it

    def _keep_counts(self, worker: WorkerProcess) -> None:
        """Add an exited worker's counts to the sum of all exited workers."""
        counts = Counts()
        counts.add(worker.counts)
        counts.end()
        self._exited_counts.add(counts.to_json())
        worker.counts = Counts().to_json()

    async def _handle_change(self, worker: WorkerProcess, request: Message) -> None:
        error = None
        try:
            async with self._change_lock:
                await self._change_workers(request["given"], persist=request["persist"])
        except Refusal as refusal:
            error = encode_error(refusal)
        worker.send("response", id=request["id"], error=error)

    async def _change_workers(self, given: dict[str, int], *, persist: bool) -> None:
        """Change all workers or none, in two phases.

        A prepare may fail, since a new prefix needs a start timestamp; a commit cannot. The replacement of a worker
        that exits meanwhile has the new settings. An unresponsive worker is killed; its prepare counts as failed.
        """
        settings = {_SETTINGS[name]: value for name, value in given.items()}
        if persist:
            self._node_settings.check(settings)
        workers = [each for each in self._workers.values() if each.is_serving]
        for each in workers:
            each.send("change", **given)
        replies = await asyncio.gather(*(self._change_reply(each) for each in workers))
        prepared = [each for each, reply in zip(workers, replies, strict=True) if reply and reply["kind"] == "prepared"]
        try:
            for reply in replies:
                if reply and reply["kind"] == "rejected":
                    raise decode_error(reply["error"])
            if persist:
                await self._node_settings.save(settings)
        except BaseException:
            await self._decide(prepared, commit=False)
            raise
        self._settings = self._settings.model_copy(update=settings)
        await self._decide(prepared, commit=True)

    async def _decide(self, workers: list[WorkerProcess], *, commit: bool) -> None:
        for each in workers:
            each.send("decide", commit=commit)
        await asyncio.gather(*(self._change_reply(each) for each in workers))

    async def _change_reply(self, worker: WorkerProcess) -> Message | None:
        """Return a worker's reply to a change, or None if the worker exited."""
        try:
            return await worker.wait_reply(self._reply_timeout(CHANGE_CALLS))
        except WorkerFailed as error:
            return {"kind": "rejected", "error": encode_error(error)}
        except WorkerExited:
            return None

    def _allow_exit(self, worker: WorkerProcess) -> None:
        if not self._stop_requested.is_set():
            worker.send("exit", all_drained=False)  # the other workers still use the prefix

    def _on_stop_signal(self, number: int) -> None:
        if not self._stop_requested.is_set():
            self._stop_requested.set()
        # A closed terminal sends SIGHUP twice.
        elif self._second_signal is not None and not self._second_signal.done() and number != signal.SIGHUP:
            self._second_signal.set_result(number)

    async def _stop_all(self) -> int:
        """Drain and release all workers; kill those left after the timeout or a second signal.

        Returns:
            The exit code, see ``run``.
        """
        self._stop_requested.set()
        for task in self._background:  # tasks that answer a request go on
            task.cancel()
        workers = list(self._workers.values())
        for each in workers:
            each.send("stop")
            if not each.is_serving:
                each.kill()
        timeout, second = self._settings.drain_timeout + STOP_MARGIN_SECONDS, self._second_signal
        stop = asyncio.create_task(asyncio.wait_for(self._drain_all(workers), timeout))
        waiting: set[asyncio.Future[Any]] = {stop, *([second] if second else [])}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        late = [each.number for each in workers if not self._exits[each.number].done()]
        code = 128 + second.result() if second and second.done() else int(bool(late))
        if late:
            _log.warning("workers_killed", workers=late, exit_code=code)
        stop.cancel()
        for each in workers:
            each.kill()
        await asyncio.gather(*self._exits.values(), stop, return_exceptions=True)
        return code

    async def _drain_all(self, workers: list[WorkerProcess]) -> None:
        await asyncio.gather(*(each.closed.wait() for each in workers))
        for each in workers:
            each.send("all_closed")
        await asyncio.gather(*(each.drained.wait() for each in workers))
        for each in workers:
            each.send("exit", all_drained=True)
        await asyncio.gather(*(asyncio.shield(each) for each in self._exits.values()))

    def _create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            # A bug: stop the server, since nothing would supervise the workers.
            self._fault = fault
            self._stop_requested.set()
