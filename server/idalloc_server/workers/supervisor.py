"""The supervisor of several workers: starts them, replaces one that exits, and stops them in order.

It serves no call and creates no gRPC object. Each worker is a fresh process, since a fork of a
process that uses gRPC hangs. A worker has its own leases and start timestamp. The supervisor owns
the address, the state of health, the order of changes of the node's settings, and the sum of the
counts.
"""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

import structlog

from idalloc_server.auth.access_file import AccessFile
from idalloc_server.domain.errors import InvalidRequest, Refusal, StartRefused
from idalloc_server.domain.store.identity import Opening, check_place
from idalloc_server.files.descriptors import spare
from idalloc_server.listen import transport
from idalloc_server.listen.held_address import HeldAddress
from idalloc_server.node import announcements
from idalloc_server.node.mode import stop_signals
from idalloc_server.node.ports import other_ports
from idalloc_server.node.rates import ANSWER_SECONDS
from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import SETTINGS, NodeSettingsFile
from idalloc_server.telemetry import families, logs, service_manager
from idalloc_server.telemetry.metrics import Counts, log_calls
from idalloc_server.telemetry.series import SeriesNames
from idalloc_server.workers import messages
from idalloc_server.workers.messages import Message
from idalloc_server.workers.supervisor_http import SupervisorHttp
from idalloc_server.workers.worker_process import WorkerProcess, ask_all

# A worker that served at least this long is replaced at once; any other one after a growing pause.
STABLE_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
# How long a worker that drained by itself waits: a signal to all processes may reach the supervisor
# last.
SELF_STOP_SECONDS = 1.0
# How much longer than drain_timeout a stop may take, to release leases and the prefix.
STOP_MARGIN_SECONDS = 15.0
# The longest wait for each of the two steps of a start; the first step may also take START_CALLS
# store calls.
REPLY_SECONDS = 10.0
START_CALLS = 5

_log = structlog.get_logger("idalloc.supervisor")


class Supervisor:
    """Runs a server of several workers; ``_supervise`` replaces one that exits.

    Args:
        node_settings: Persists settings over restarts.
        created: The file of a store that this start creates; empty for an existing store.
    """

    def __init__(self, settings: Settings, node_settings: NodeSettingsFile, created: str = "") -> None:
        self._settings = settings  # with the newest ones of the node
        self._revision = 0  # of the node's settings
        self._node_settings = node_settings
        self._created = created
        self._workers: dict[int, WorkerProcess] = {}
        self._exited_counts = Counts()
        self._exits = 0
        self._series = SeriesNames()
        self._addresses: dict[str, str] = {}  # of the ports of other packages
        # Stays true once any worker required authentication, even if the access file is emptied
        # later.
        self._requires_authentication = False
        self._store: Mapping[str, str] | None = None  # what the first worker opened
        self._change_lock = asyncio.Lock()  # around the number of a change and its write to the file
        self._answering: set[asyncio.Task[None]] = set()  # questions of workers
        self._serving: asyncio.Task[None]
        self._http: SupervisorHttp
        self._stopping = False
        self._exit_code = 0

    def counts(self) -> Counts:
        """Return the sum over all processes, exited ones included; at most about a second old."""
        total = Counts()
        total.counters[families.LOG_LINES_LOST].update(logs.queue.lost)
        total.counters[families.WORKER_EXITS][""] = self._exits
        families.count_rejections(total.counters, self._http.access_control.audit.rejected)
        total.gauges[families.WORKERS][""] = 0
        for each in (self._exited_counts.to_json(), *(each.counts for each in self._workers.values())):
            total.add(each)
        return total

    async def run(self) -> int:
        """Serve until a stop signal, then stop all workers in order; a second signal kills them.

        Returns:
            The exit code: 0, 1 if a worker had to be killed, or 128 plus the number of the second
            signal.

        Raises:
            StartRefused: A setting or the store prevents the start.
            StoreFailure: The store was not reached within ``store_timeout``, or rejected a
                statement.
        """
        if sys.platform != "linux":
            raise StartRefused("workers", "several processes can share a port on Linux only; set it to 1")
        # First: a signal without a handler would end only this process, and a start may take long.
        loop = asyncio.get_running_loop()
        numbers = stop_signals()
        for number in numbers:
            loop.add_signal_handler(number, self._on_stop_signal, number)
        if signal.SIGHUP not in numbers:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        access_file = AccessFile(self._settings.access_file) if self._settings.access_file else None
        policy = access_file.read() if access_file else None
        self._requires_authentication = bool(policy and policy.identities)
        transport.check_settings(self._settings, requires_authentication=self._requires_authentication)
        self._http = SupervisorHttp(
            self._settings, policy, access_file, workers=self._workers.values(), counts=self.counts
        )
        address = HeldAddress(self._settings.listen, shared=True)
        self._settings = self._settings.model_copy(update={"listen": address.name})
        others = self._hold_other_ports()
        spare.fill()
        self._serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait({self._serving})
        finally:
            await self._stop_all()
            await self._http.close()
            address.close()
            spare.close()
            for each in others:
                each.close()
        if not self._serving.cancelled():
            self._serving.result()  # It raises.
        announcements.announce_stopped(self.counts())
        return self._exit_code

    def _hold_other_ports(self) -> list[HeldAddress]:
        """Hold the addresses of further ports, which all workers share.

        Put the ports in use into the settings.
        """
        held = []
        for name, factory in other_ports(self._settings).items():
            factory.check_settings(self._settings, requires_authentication=self._requires_authentication)
            setting = f"{name}_listen"
            held.append(HeldAddress(getattr(self._settings, setting), shared=True, setting=setting))
            self._settings = self._settings.model_copy(update={setting: held[-1].name})
            self._addresses[name] = held[-1].name
        return held

    async def _serve(self) -> None:
        """Start all workers, then replace those that exit, until cancelled."""
        await self._http.start()
        numbers = range(1, self._settings.workers + 1)
        # Health becomes SERVING in the second step, when all of them answer.
        for step in (self._start_worker, self._make_serving):
            for result in await asyncio.gather(*(step(each) for each in numbers), return_exceptions=True):
                if result is not None:
                    raise result
        serving = self._workers[1].pipe.newest(messages.Serving) or messages.Serving("", "", 0)
        announcements.announce_serving(
            serving.address,
            serving.store,
            serving.prefix,
            {**(self._http.port.addresses if self._http.port else {}), **self._addresses},
            workers=self._settings.workers,
            created=self._created,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(log_calls(lambda: self.counts().calls))
            tasks.create_task(spare.refill())
            for each in numbers:
                tasks.create_task(self._supervise(each))

    async def _start_worker(self, number: int) -> None:
        worker = await WorkerProcess.start(number)
        self._workers[number] = worker
        worker.exit = asyncio.create_task(self._receive_until_exit(worker))
        worker.pipe.send(
            messages.Start(
                number,
                dict(self._settings),
                self._node_settings.arguments,
                requires_authentication=self._requires_authentication,
                store=self._store,
            )
        )
        await worker.wait_started(messages.Ready, START_CALLS * self._settings.store_timeout + REPLY_SECONDS)
        # The first workers start at once, and create the store if it is new.
        if (ready := worker.pipe.newest(messages.Ready)) and self._store is None:
            self._store = ready.store
        elif ready:
            check_place(Opening(expected=self._store), ready.store)
        _log.info("worker_started", worker=number, pid=worker.process.pid)

    async def _make_serving(self, number: int) -> None:
        worker = self._workers[number]
        self._send_state(worker)
        worker.pipe.send(messages.Serve())
        await worker.wait_started(messages.Serving, REPLY_SECONDS)
        worker.serving_since = asyncio.get_running_loop().time()

    async def _supervise(self, number: int) -> None:
        """Replace a worker whenever it exits, until cancelled."""
        pause = 0.0
        while True:
            worker = self._workers[number]
            code = await asyncio.shield(worker.exit)
            if asyncio.get_running_loop().time() - worker.serving_since >= STABLE_SECONDS:
                pause = 0.0
            _log.warning("worker_ended", worker=number, pid=worker.process.pid, exit_code=code, restart_in=pause)
            while self._workers[number] is worker:  # until a process could be created
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
                try:
                    await self._start_worker(number)
                    await self._make_serving(number)
                except (StartRefused, Refusal, OSError) as error:
                    # The other workers serve from their leases, so this one can wait until the
                    # store is back.
                    _log.warning("worker_not_started", worker=number, error=str(error))

    async def _receive_until_exit(self, worker: WorkerProcess) -> int:
        """Handle a worker's messages until it exits.

        Returns:
            Its exit code, negative for a signal.
        """
        while (message := await worker.pipe.receive()) is not None:
            self._handle(worker, message)
        last = Counts()
        last.add(worker.counts)
        last.end()
        self._exited_counts.add(last.to_json())
        worker.counts = Counts().to_json()
        self._exits += not self._stopping
        await worker.pipe.close()
        return await worker.process.wait()

    def _handle(self, worker: WorkerProcess, message: Message) -> None:
        match message:
            case messages.Report(counts):
                worker.counts = counts
                self._decide_series()
                self._send_state(worker)
            case messages.Asked():
                task = asyncio.create_task(self._send_answer(worker, message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            case messages.AuthenticationRequired() if not self._requires_authentication:
                # A later worker may not have seen the access file that required it.
                self._requires_authentication = True
                self._broadcast(messages.AuthenticationRequired())
                self._http.access_control.authenticator.require_authentication()
            case messages.Applied():
                self._send_state(*self._workers.values())
            case messages.Drained():
                # By itself, as after SIGTERM, unless all stop.
                asyncio.get_running_loop().call_later(SELF_STOP_SECONDS, self._allow_exit, worker)

    async def _send_answer(self, worker: WorkerProcess, asked: messages.Asked) -> None:
        """Answer ``change``, or ``rates`` by sums: all answers could be too long for a message."""
        if asked.question == "change":
            result: Any = await self._change(**asked.arguments)
        else:
            answers = await ask_all(self._others(worker), asked.question, asked.arguments, ANSWER_SECONDS)
            result = {name: sum(each.get(name, 0.0) for each in answers) for name in asked.arguments["counters"]}
        worker.pipe.send(messages.Answered(asked.number, "", result))

    def _decide_series(self) -> None:
        """Give series to sequences with enough ids in all workers."""
        issued: Counter[str] = Counter()
        for each in self._workers.values():
            if (report := each.pipe.newest(messages.Report)) and not each.pipe.has_ended:
                issued.update(report.candidates)
        self._series.decide(issued)

    async def _change(self, given: Mapping[str, int], persist: bool) -> str:
        """Persist and number a change of the node, and send it to all workers; the last one wins.

        Returns:
            Why the settings cannot be persisted, and nothing changes; empty if they change.
        """
        async with self._change_lock:  # a restart must read the last one, too
            if persist:
                try:
                    await self._node_settings.update(given)
                except InvalidRequest as refusal:
                    return refusal.rule
            self._settings = self._settings.model_copy(update={SETTINGS[field]: given[field] for field in given})
            self._revision += 1
            self._send_state(*self._workers.values())
        return ""

    def _others(self, worker: WorkerProcess) -> list[WorkerProcess]:
        return [each for each in self._workers.values() if each is not worker]

    def _send_state(self, *workers: WorkerProcess) -> None:
        settings = {field: getattr(self._settings, setting) for field, setting in SETTINGS.items()}
        every = self._workers.values()
        applied = [(each.pipe.newest(messages.Applied) or messages.Applied(0)).revision for each in every]
        for worker in workers:
            leases = sum(each.counts["gauges"][families.LEASES].get("", 0) for each in self._others(worker))
            names = self._series.names
            worker.pipe.send(messages.NodeState(self._revision, settings, applied, other_leases=leases, series=names))

    def _broadcast(self, message: Message) -> None:
        for each in self._workers.values():
            each.pipe.send(message)

    def _reload(self) -> None:
        self._broadcast(messages.Reload())
        if self._http.access_file:
            self._http.access_file.watch.requested.set()

    def _allow_exit(self, worker: WorkerProcess) -> None:
        if not self._stopping:
            worker.pipe.send(messages.Exit(with_all=False))  # the other workers still use the prefix

    def _on_stop_signal(self, number: int) -> None:
        if not self._stopping:
            self._stopping = True
            self._serving.cancel()
        elif number != signal.SIGHUP:  # A closed terminal sends SIGHUP twice.
            self._kill_workers(128 + number)

    def _kill_workers(self, exit_code: int) -> None:
        """Kill the workers that have not exited; if there are any, this is the exit code."""
        if late := [each for each in self._workers.values() if not each.exit.done()]:
            self._exit_code = exit_code
            _log.warning("workers_killed", workers=[each.number for each in late], exit_code=exit_code)
        for each in late:
            each.kill()

    async def _stop_all(self) -> None:
        """Drain and release all workers; kill those that are late."""
        self._stopping = True
        service_manager.notify("STOPPING=1")
        self._serving.cancel()
        await asyncio.wait({self._serving})
        workers = self._workers.values()
        for each in workers:
            each.pipe.send(messages.Stop())
            if not each.pipe.has(messages.Serving):
                each.kill()
        try:
            async with asyncio.timeout(self._settings.drain_timeout + STOP_MARGIN_SECONDS):
                await asyncio.gather(*(each.pipe.wait_for(messages.Closed) for each in workers))
                self._broadcast(messages.AllClosed())
                await asyncio.gather(*(each.pipe.wait_for(messages.Drained) for each in workers))
                self._broadcast(messages.Exit(with_all=True))
                await asyncio.gather(*(asyncio.shield(each.exit) for each in workers), return_exceptions=True)
        except TimeoutError:
            self._kill_workers(1)
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*(each.exit for each in workers), *self._answering, return_exceptions=True)
