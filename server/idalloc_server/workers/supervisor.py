"""The process above several workers: starts them, replaces one that dies, and stops all in order.

It serves no call and makes no gRPC object. Each worker is a fresh process (a fork of one that uses gRPC would hang),
with leases and start timestamps of its own; what all have in common is decided here: the address, whether the server as
a whole serves, a change of the node, and the sum of what is counted.
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
from idalloc_server.listen.address import Address
from idalloc_server.node_settings import NodeSettingsFile
from idalloc_server.process_mode import log_stopped, say_welcome, stop_signals
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import Counts, log_calls
from idalloc_server.workers.pipe import Message, decode_error, encode_error
from idalloc_server.workers.worker_process import WorkerEnded, WorkerProcess

# A worker that served that long is replaced at once when it dies; any other one after a pause that grows.
STEADY_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
# How long a worker waits that drained without being told to: a signal to all processes may reach us last.
OWN_END_SECONDS = 1.0
# How much longer than drain_timeout a stop may take in all: to give ids back, and to release the prefix.
END_SECONDS = 15.0
# A worker that takes longer than this for what it was told, its calls to the store apart, hangs. A change (the store's
# clock, and a claim) and a start have so many of those, one after the other; each may take store_timeout.
ANSWER_SECONDS = 10.0
CHANGE_CALLS, START_CALLS = 2, 5
# What UpdateNode changes, and the setting that it is.
_SETTINGS = {"prefix": "node_prefix", "offset": "auto_increment_offset", "increment": "auto_increment_increment"}

_log = structlog.get_logger("idalloc.supervisor")


class Supervisor:
    """Runs a server of several workers.

    Args:
        settings: All settings.
        persisted: Where the node keeps those that are changed while it runs.
        created: What to print of a store that this start creates; empty for one that exists.
    """

    def __init__(self, settings: Settings, persisted: NodeSettingsFile, created: str = "") -> None:
        self._settings = settings
        self._created = created
        self._persisted = persisted
        self._workers: dict[int, WorkerProcess] = {}
        self._hearing: dict[int, asyncio.Task[int]] = {}
        self._past = Counts()  # of the workers that ended
        self._welcome = ""
        self._stopping = asyncio.Event()
        self._at_once: asyncio.Future[int] | None = None
        # Whether any worker asked who calls: all do from then on, and those started later, whatever the file says.
        self._asks = False
        # Held by a start and by a change of the node: no worker starts with settings that are just being changed.
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        self._fault: BaseException | None = None

    def counts(self) -> Counts:
        """Returns what all processes counted, those that ended included; no more than about a second old."""
        total = Counts(log_lines_lost=Counter(logs.lost_lines()))
        for each in (self._past.to_json(), *(worker.counts for worker in self._workers.values())):
            total.add(each)
        return total

    async def run(self) -> int:
        """Serves until a signal says stop, then stops all workers in order; a second one ends them at once.

        Returns:
            The exit code: 0, 1 where a worker had to be killed, or as a shell says it of a second signal.

        Raises:
            StartRefused: A setting does not allow a start, or the store does not.
            StoreFailure: The store could not be reached within ``store_timeout``, or refused a statement.
        """
        if sys.platform != "linux":
            raise StartRefused("workers", "several processes can share a port on Linux only; set it to 1")
        if self._settings.access:
            self._asks = bool(AccessFile(self._settings.access).read().identities)
        address = Address(self._settings.listen, shared=True)
        self._settings = self._settings.model_copy(update={"listen": address.name})
        loop, numbers = asyncio.get_running_loop(), stop_signals()
        self._at_once = loop.create_future()
        if signal.SIGHUP not in numbers:
            loop.add_signal_handler(signal.SIGHUP, self._tell_all, "reload")
        try:
            await self._start_all()
            for number in numbers:
                loop.add_signal_handler(number, self._signalled, number)
            say_welcome(f"{self._welcome}, {self._settings.workers} workers", self._created)
            keepers = (self._keep(each) for each in range(1, self._settings.workers + 1))
            self._background = [self._begin(job) for job in (*keepers, log_calls(lambda: self.counts().calls))]
            await self._stopping.wait()
        finally:
            code = await self._stop_all()
            address.close()
        if self._fault is not None:
            raise self._fault
        log_stopped(self.counts())
        return code

    def drained(self, worker: WorkerProcess) -> None:
        """Lets a worker end that drained by itself, as SIGTERM makes it, unless all are to end."""
        if not self._stopping.is_set():
            asyncio.get_running_loop().call_later(OWN_END_SECONDS, self._end_one, worker)

    def asked(self, worker: WorkerProcess, question: Message) -> None:
        """Answers a worker, once there is an answer."""
        if question["about"] == "change":
            self._begin(self._change(worker, question))
        else:
            count = sum(each.counts["lease_count"] for each in self._workers.values() if each is not worker)
            worker.tell("answer", number=question["number"], lease_count=count)

    def require_authentication(self) -> None:
        """Has all workers ask who calls, since one does: not each of them sees all that the access file ever said."""
        if not self._asks:
            self._asks = True
            self._tell_all("asks")

    def _tell_all(self, what: str) -> None:
        for each in self._workers.values():
            each.tell(what)

    async def _start_all(self) -> None:
        numbers = range(1, self._settings.workers + 1)
        async with self._turn:
            # Health turns only in the second step, when all of them answer.
            for step in (self._start, self._let_serve):
                found = await asyncio.gather(*(step(each) for each in numbers), return_exceptions=True)
                for error in found:
                    if isinstance(error, WorkerEnded | WorkerFailed):
                        raise StartRefused("workers", "one ended while it started; the log says more") from None
                    if isinstance(error, BaseException):
                        raise error

    async def _start(self, number: int) -> None:
        worker = await WorkerProcess.start(number)
        self._workers[number] = worker
        self._hearing[number] = asyncio.create_task(worker.hear(self))
        worker.tell("start", number=number, settings=dict(self._settings), asks=self._asks)
        reply = await worker.reply(self._patience(START_CALLS))
        if reply["what"] == "failed":
            raise decode_error(reply["error"])
        self._welcome = reply["welcome"]
        _log.info("worker_started", worker=number, pid=worker.process.pid)

    async def _let_serve(self, number: int) -> None:
        worker = self._workers[number]
        worker.tell("serve")
        await worker.reply(ANSWER_SECONDS)
        worker.serves = True
        worker.began = asyncio.get_running_loop().time()

    def _patience(self, calls: int) -> float:
        """Returns how long a worker may take for what has so many calls to the store, in seconds."""
        return calls * self._settings.store_timeout + ANSWER_SECONDS

    async def _keep(self, number: int) -> None:
        """Replaces a worker whenever it ends, for ever."""
        pause = 0.0
        while True:
            worker = self._workers[number]
            code = await asyncio.shield(self._hearing[number])
            self._settle(worker)
            if asyncio.get_running_loop().time() - worker.began >= STEADY_SECONDS:
                pause = 0.0
            _log.warning("worker_ended", worker=number, pid=worker.process.pid, exit_code=code, restart_in=pause)
            while self._workers[number] is worker:  # again where not even a process could be made
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                await self._replace(number)

    async def _replace(self, number: int) -> None:
        """Starts a worker in the place of one that ended; where it fails, that is logged."""
        try:
            async with self._turn:
                await self._start(number)
                await self._let_serve(number)
        except (StartRefused, Refusal, OSError) as error:
            # The others go on from what they hold, so this one waits for the store to come back.
            _log.warning("worker_not_started", worker=number, error=str(error))
        except WorkerEnded:
            pass  # `_keep` sees it

    def _settle(self, worker: WorkerProcess) -> None:
        """Keeps what a worker counted that is no more."""
        counts = Counts()
        counts.add(worker.counts)
        counts.end()
        self._past.add(counts.to_json())
        worker.counts = Counts().to_json()

    async def _change(self, worker: WorkerProcess, question: Message) -> None:
        error = None
        try:
            async with self._turn:
                await self._change_all(question["given"], persist=question["persist"])
        except Refusal as refusal:
            error = encode_error(refusal)
        worker.tell("answer", number=question["number"], error=error)

    async def _change_all(self, given: dict[str, int], *, persist: bool) -> None:
        """Changes all workers or none.

        Each makes ready first, which may fail: a new prefix needs a start timestamp. What follows cannot fail. One that
        dies meanwhile is replaced by one that starts with the new settings. One that hangs cannot make ready; where it
        hangs later, it is as one that dies.
        """
        settings = {_SETTINGS[name]: value for name, value in given.items()}
        if persist:
            self._persisted.check(settings)
        workers = [each for each in self._workers.values() if each.serves]
        for each in workers:
            each.tell("change", **given)
        replies = await asyncio.gather(*(self._reply(each) for each in workers))
        ready = [each for each, reply in zip(workers, replies, strict=True) if reply and reply["what"] == "ready"]
        try:
            for reply in replies:
                if reply and reply["what"] == "refused":
                    raise decode_error(reply["error"])
            if persist:
                await self._persisted.save(settings)
        except BaseException:
            await self._decide(ready, agreed=False)
            raise
        self._settings = self._settings.model_copy(update=settings)
        await self._decide(ready, agreed=True)

    async def _decide(self, workers: list[WorkerProcess], *, agreed: bool) -> None:
        for each in workers:
            each.tell("decide", agreed=agreed)
        await asyncio.gather(*(self._reply(each) for each in workers))

    async def _reply(self, worker: WorkerProcess) -> Message | None:
        """Returns a worker's reply on a change, None where it ended instead."""
        try:
            return await worker.reply(self._patience(CHANGE_CALLS))
        except WorkerFailed as error:
            return {"what": "refused", "error": encode_error(error)}
        except WorkerEnded:
            return None

    def _end_one(self, worker: WorkerProcess) -> None:
        if not self._stopping.is_set():
            worker.tell("end", all=False)  # the others still hold what they share

    def _signalled(self, number: int) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
        elif self._at_once is not None and not self._at_once.done() and number != signal.SIGHUP:  # which comes twice
            self._at_once.set_result(number)

    async def _stop_all(self) -> int:
        """Drains all, then ends all; what has not ended in time, or at a second signal, is killed.

        Returns:
            The exit code, see ``run``.
        """
        self._stopping.set()
        for task in self._background:  # and not those that answer a call
            task.cancel()
        workers = list(self._workers.values())
        for each in workers:
            each.tell("stop")
            if not each.serves:
                each.kill()
        stop = asyncio.create_task(asyncio.wait_for(self._end(workers), self._settings.drain_timeout + END_SECONDS))
        waiting: set[asyncio.Future[Any]] = {stop, *([self._at_once] if self._at_once else [])}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        late = [each.number for each in workers if not self._hearing[each.number].done()]
        code = 128 + self._at_once.result() if self._at_once and self._at_once.done() else int(bool(late))
        if late:
            _log.warning("killed", workers=late, exit_code=code)
        stop.cancel()
        for each in workers:
            each.kill()
        await asyncio.gather(*self._hearing.values(), stop, return_exceptions=True)
        return code

    async def _end(self, workers: list[WorkerProcess]) -> None:
        await asyncio.gather(*(each.closed.wait() for each in workers))
        for each in workers:
            each.tell("refuse")
        await asyncio.gather(*(each.drained.wait() for each in workers))
        for each in workers:
            each.tell("end", all=True)
        await asyncio.gather(*(asyncio.shield(each) for each in self._hearing.values()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finish)
        return task

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()):
            # A fault of this program: better no server than one without a supervisor.
            self._fault = fault
            self._stopping.set()
