"""The HTTP port of a server with several workers.

The supervisor serves it, also while no worker is alive.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.access_file import AccessFile
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.rpc.methods import METHOD_TYPES
from idalloc_server.settings.model import Settings
from idalloc_server.store.urls import open_witness
from idalloc_server.telemetry import recent
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.workers.messages import Report, Serving
from idalloc_server.workers.worker_process import WorkerProcess, ask_all


class SupervisorHttp:
    """Serves what the workers report; a ``Source`` of the HTTP port.

    Args:
        policy: Identities and quotas; None if every caller may do everything.
        access_file: The file that ``policy`` is from.
        workers: The present workers.
        counts: Returns the metrics of the server.
    """

    def __init__(
        self,
        settings: Settings,
        policy: AccessPolicy | None,
        access_file: AccessFile | None,
        workers: Collection[WorkerProcess],
        counts: Callable[[], Counts],
    ) -> None:
        clock = SystemClock()
        self._workers = workers
        self.counts = counts  # see ``Source``
        self.access_file = access_file if settings.http_listen else None
        self.access_control = AccessControl(
            clock,
            settings.max_ids_per_call,
            policy,
            certificates=ClientCertificates(clock) if settings.tls_client_ca else None,
        )
        self.port = None
        if settings.http_listen or settings.probe_listen:
            from idalloc_server.http.port import HttpPort  # only here: see HttpPort

            self.port = HttpPort(settings, self.access_control, clock, METHOD_TYPES)
            self.port.source = self
        self._described = {}
        if settings.http_listen and settings.witness:
            self._described["witness"] = open_witness(settings.witness, settings.store).address
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind the address and answer requests.

        Raises:
            StartRefused: The address is in use, or cannot be bound.
        """
        if self.port:
            await self.port.open()
        if self.access_file:
            self._following = asyncio.create_task(self.access_file.follow(self.access_control.apply_policy))

    async def close(self) -> None:
        """Close the address and all connections."""
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self.port:
            await self.port.close()
        self.access_control.audit.log_totals()

    def describe(self) -> Mapping[str, Any]:
        newest = (each.pipe.newest(Serving) for each in self._workers if each.is_serving)
        serving = next(filter(None, newest), Serving("", "", 0))
        return {"address": serving.address, "store": serving.store, **self._described}

    async def ask(self, question: str, arguments: Mapping[str, Any], timeout: float) -> Any:
        worker = next((each for each in self._workers if each.is_serving), None)
        if worker is None:
            raise StoreUnavailable("no worker serves")
        return await worker.pipe.ask(question, arguments, timeout)

    async def ask_all(self, question: str, arguments: Mapping[str, Any], timeout: float) -> list[Any]:
        """See ``Source``: the supervisor has a log of its own, and nothing else to answer."""
        answers = await ask_all(self._workers, question, arguments, timeout)
        return [*answers, recent.lines()] if question == "recent" else answers

    def pids(self) -> Mapping[str, int]:
        workers = {f"worker {each.number}": each.process.pid for each in self._workers if not each.pipe.has_ended}
        return {"supervisor": os.getpid(), **workers}

    def checks(self) -> Mapping[str, str]:
        """See ``Source``: a check fails if it fails in any worker that serves."""
        reports = [each.pipe.newest(Report) for each in self._workers if each.is_serving]
        checks = {"workers": "" if any(reports) else "no worker serves"}
        for report in filter(None, reports):
            for name, problem in report.checks.items():
                checks[name] = checks.get(name) or problem
        return checks
