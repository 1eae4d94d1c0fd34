"""A worker process: serves as the supervisor directs, and ends with it.

The supervisor runs ``python -m idalloc_server.workers.worker FD``; the descriptor is a socket for
``Pipe``.
"""

import asyncio
import math
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import structlog

from idalloc_server import app
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.errors import (
    InvalidRequest,
    Refusal,
    Retryable,
    ServerDraining,
    StartRefused,
    StoreFailure,
    StoreUnavailable,
)
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.node.answers import answer
from idalloc_server.node.issuers import Issuers
from idalloc_server.node.mode import ProcessMode
from idalloc_server.node.rates import ANSWER_SECONDS
from idalloc_server.node.report import NodeReport
from idalloc_server.settings.installed import installed
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers import messages
from idalloc_server.workers.pipe import Pipe

# The longest drain after the supervisor was killed: a new server needs the port.
ORPHAN_DRAIN_SECONDS = 2.0
# A change is answered after this share of the time that its caller has left, or after
# CHANGE_SECONDS without a deadline. Such a call has None left on grpcio, and centuries on native.
DEADLINE_SHARE = 0.9
CHANGE_SECONDS = 60.0
CENTURIES = 1e10
# The pause before a worker tries again to apply a change.
CHANGE_PAUSE_SECONDS = 5.0

_log = structlog.get_logger("idalloc.worker")


class ChangePending(Retryable, reason="STORE_UNAVAILABLE", status="UNAVAILABLE"):
    """Not all workers of the server have applied a change of the node yet.

    The others continue to try.
    """

    # Longer than LONGEST_PUSHBACK_SECONDS: the caller has no time left in which gRPC's retry policy
    # could try again; it would end the call with DEADLINE_EXCEEDED in place of this error.
    retry_after = 10.0

    def __init__(self, applied: int, workers: int) -> None:
        rest = "the others try until they have" if applied else "it may still be applied, or refused"
        super().__init__(f"{applied} of {workers} workers have applied the change; {rest}")


class Worker(ProcessMode):
    """The ``ProcessMode`` and ``Workers`` of a worker: its side of the pipe to the supervisor.

    Args:
        pipe: The connection to the supervisor.
        start: Its first message.
    """

    def __init__(self, pipe: Pipe, start: messages.Start) -> None:
        self.settings = installed().settings.model_construct(**start.settings)  # The supervisor has validated them.
        super().__init__(NodeSettingsFile(**start.node_settings), self.settings.drain_timeout)
        # When a terminal closes, the supervisor gets SIGHUP, too.
        self.control.stop_signals = (signal.SIGTERM, signal.SIGINT)
        self.workers = self
        self.count = self.settings.workers
        self.requires_authentication = start.requires_authentication
        self.opening = ANY_STORE if start.store is None else Opening(creates=False, expected=start.store)
        self._pipe = pipe
        self._access_control: AccessControl | None = None
        self._answer: Callable[[messages.Asked], object] | None = None  # begins an answer, during ``report``
        self._doc_ids: DocIdGenerator
        self._is_ready = False

    async def receive_until_orphaned(self, serving: asyncio.Task[None]) -> None:
        """Handle the supervisor's messages until it exits; then drain, or end the start."""
        try:
            while (message := await self._pipe.receive()) is not None:
                match message:
                    case messages.AuthenticationRequired():
                        self.requires_authentication = True
                        if self._access_control is not None:
                            self._access_control.authenticator.require_authentication()
                    case messages.Asked() if self._answer is not None:
                        self._answer(message)
                    case messages.Reload():
                        self.control.reload_requested.set()
                    case messages.Stop():
                        self.control.stop_requested.set()
        finally:
            self.control.drain_timeout = min(self.control.drain_timeout, ORPHAN_DRAIN_SECONDS)
            self.control.stop_requested.set()
            if not self._is_ready:
                serving.cancel()

    async def _send_answer(self, issuers: Issuers, asked: messages.Asked) -> None:
        error = ""
        result = None
        try:
            result = await answer(issuers, asked.question, asked.arguments)
        except Refusal as refusal:
            error = str(refusal)
        except Exception as fault:
            error = f"the question {asked.question} failed: {fault!r}"
        self._pipe.send(messages.Answered(asked.number, error, result))

    # ProcessMode: reports to the supervisor.

    async def wait_all_ready(
        self, doc_ids: DocIdGenerator, access_control: AccessControl, store: Mapping[str, str]
    ) -> None:
        self._doc_ids = doc_ids
        self._is_ready = True
        self._access_control = access_control
        if self.requires_authentication:  # the supervisor may have sent it during the start
            access_control.authenticator.require_authentication()
        if access_control.requires_authentication:
            self.require_authentication()
        self._pipe.send(messages.Ready(store))
        await self._pipe.wait_for(messages.Serve, messages.Stop)

    def require_authentication(self) -> None:
        if not self.requires_authentication:
            self.requires_authentication = True
            self._pipe.send(messages.AuthenticationRequired())

    def report_serving(self, address: str, store: str, prefix: int, ports: Mapping[str, str]) -> None:
        self._pipe.send(messages.Serving(address, store, prefix))

    async def report(self, report: NodeReport) -> None:
        async with asyncio.TaskGroup() as answering:
            self._answer = lambda asked: answering.create_task(self._send_answer(report.issuers, asked))
            try:
                while True:
                    report.series.set_series(self._node.series)
                    self._send_report(report, report.counts())
                    await asyncio.sleep(1)
            finally:
                self._answer = None

    def _send_report(self, report: NodeReport, counts: Counts) -> None:
        self._pipe.send(messages.Report(counts.to_json(), report.checks(), report.series.candidates()))

    async def wait_all_closed(self) -> None:
        self._pipe.send(messages.Closed())
        if self._pipe.has(messages.Stop):  # a rejected caller must not reconnect to a worker about to close
            await self._pipe.wait_for(messages.AllClosed)

    async def wait_all_drained(self) -> bool:
        self._pipe.send(messages.Drained())
        await self._pipe.wait_for(messages.Exit)
        allowed = self._pipe.newest(messages.Exit)
        return allowed is None or allowed.with_all

    def report_end(self, report: NodeReport) -> None:
        self._send_report(report, report.final_counts())

    # Workers: what the others hold, and changes of the node's settings.

    @property
    def other_lease_count(self) -> int:
        return self._node.other_leases

    async def other_rates(self, counters: list[str]) -> Mapping[str, float]:
        rates: Mapping[str, float] = {}
        with suppress(StoreUnavailable):  # the supervisor has exited
            rates = await self._pipe.ask("rates", {"counters": counters}, 2 * ANSWER_SECONDS)
        return rates

    async def change(self, given: Mapping[str, int], persist: bool, timeout: float | None) -> None:
        seconds = CHANGE_SECONDS if timeout is None or timeout > CENTURIES else timeout * DEADLINE_SHARE
        revision = math.inf
        try:
            async with asyncio.timeout(seconds):
                await self._pipe.wait_for(messages.Serve)
                if not self._pipe.has_ended:
                    await self._doc_ids.change(**given, save=partial(self._number, persist))
                revision = self._node.revision  # at least that of this change
                await self._pipe.wait_until(lambda: min(self._node.applied) >= revision)
        except TimeoutError:
            applied = 0 if revision == math.inf else sum(each >= revision for each in self._node.applied)
            raise ChangePending(applied, self.count) from None
        if self._pipe.has_ended:
            raise ServerDraining

    async def _number(self, persist: bool, given: Mapping[str, int]) -> None:
        """Let the supervisor persist and number a change, and send it to all workers."""
        try:
            refused = await self._pipe.ask("change", {"given": dict(given), "persist": persist}, None)
        except StoreUnavailable:  # the supervisor has exited
            raise ServerDraining from None
        if refused:
            raise InvalidRequest("persist", refused)

    async def apply_changes(self) -> None:
        """Apply the newest settings of the node; retry failures, until the supervisor exits."""
        await self._pipe.wait_for(messages.Serve)
        applied = 0
        while not self._pipe.has_ended:
            newest = self._node
            pause = None
            if newest.revision > applied:
                try:
                    await self._doc_ids.change(**newest.settings, save=None)
                    applied = newest.revision
                    self._pipe.send(messages.Applied(applied))
                except Exception as error:
                    _log.warning("change_failed", error=str(error), exc_info=not isinstance(error, Refusal))
                    pause = CHANGE_PAUSE_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._pipe.wait_until(lambda: self._node.revision > newest.revision)  # noqa: B023

    @property
    def _node(self) -> messages.NodeState:
        """The newest state of the node; the supervisor sends one before ``Serve``."""
        return self._pipe.newest(messages.NodeState) or messages.NodeState(0, {}, [0])


async def run_worker(connection: socket.socket) -> None:
    """Serve as the supervisor directs.

    Args:
        connection: The connection to the supervisor.
    """
    pipe = await Pipe.over(connection)
    start = await pipe.receive()
    if not isinstance(start, messages.Start):
        return
    worker = Worker(pipe, start)
    logs.configure(worker.settings.log_level, worker=start.number)
    serving = asyncio.create_task(app.serve(worker.settings, worker))
    receiving = asyncio.create_task(worker.receive_until_orphaned(serving))
    applying = asyncio.create_task(worker.apply_changes())
    try:
        await serving
    except (StartRefused, StoreFailure) as error:
        pipe.send(messages.StartFailed(getattr(error, "reason", ""), str(error)))
    except asyncio.CancelledError:
        pass  # The supervisor exited during the start.
    except Exception:
        # Before the pipe closes: then the supervisor may kill this process.
        sys.excepthook(*sys.exc_info())
        logs.flush()
        raise SystemExit(1) from None
    finally:
        background = {receiving, applying}
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        await pipe.close()


if __name__ == "__main__":
    from uvloop import run

    # Until the worker serves. Ctrl-C reaches all processes of a terminal; only the supervisor
    # reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run(run_worker(socket.socket(fileno=int(sys.argv[1]))))
