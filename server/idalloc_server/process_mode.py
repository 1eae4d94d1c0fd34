"""The process mode: what differs between a single-process server and one with several workers."""

import asyncio
import os
import signal

import structlog

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.node_report import NodeReport
from idalloc_server.rpc.node import Workers
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.telemetry import families, logs, service_manager
from idalloc_server.telemetry.metrics import Counts, log_calls

_log = structlog.get_logger("idalloc")


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a server.

    SIGHUP is one of them if the process has a controlling terminal, which sends it on close. Without a terminal, or
    under nohup, SIGHUP reloads files.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return numbers
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return numbers  # There is no terminal.
    return (*numbers, signal.SIGHUP)


class ProcessMode:
    """How a process runs: this class as a whole server, ``workers.worker.Worker`` as one of its workers.

    Attributes:
        workers: All workers; None for a single process, which is the only user of its address and prefix.
        node_settings: Persists settings over restarts.
        drain_timeout: How long running calls may continue after a stop, in seconds.
        stop_signals: The signals that drain and end the process; SIGHUP requests a reload if it is none of them.
        stop_requested: Set to drain and end the process.
        reload_requested: Set to reload the access file and the certificates.
        requires_authentication: Whether callers must authenticate even if the access file has no identities.

    Args:
        node_settings: Persists settings over restarts.
        drain_timeout: How long running calls may continue after a stop, in seconds.
        created: The file of a store that this start creates; empty for an existing store.
    """

    workers: Workers | None = None
    requires_authentication = False

    def __init__(self, node_settings: NodeSettingsFile, drain_timeout: float, created: str = "") -> None:
        self.node_settings = node_settings
        self.drain_timeout = drain_timeout
        self.stop_signals = stop_signals()
        self.stop_requested = asyncio.Event()
        self.reload_requested = asyncio.Event()
        self._created = created

    async def wait_all_ready(self, doc_ids: DocIdGenerator, access_control: AccessControl) -> None:
        """Report this process as ready, and wait until all workers are ready."""

    def require_authentication(self) -> None:
        """Require authentication in all workers, until the server ends."""

    def report_serving(
        self, address: str, store: str, prefix: int, workers: int = 1, http: str = "", xproto: str = ""
    ) -> None:
        """Report that health is SERVING, as ``logs.report_serving`` does, and notify the service manager."""
        logs.report_serving(address, store, prefix, workers, http, self._created, xproto)
        service_manager.notify("READY=1")

    def report_stopping(self) -> None:
        """Notify the service manager that the server stops."""
        service_manager.notify("STOPPING=1")

    async def report(self, report: NodeReport) -> None:
        """Report the metrics and the checks of readiness every second, until cancelled."""
        await log_calls(lambda: report.counts().calls)

    async def wait_all_closed(self) -> None:
        """Report that this process accepts no connections. If the whole server stops, wait until no worker does."""

    async def wait_all_drained(self) -> bool:
        """Report that this process has drained, and wait for permission to end.

        Returns:
            Whether the whole server ends, and the resources that its processes share can be released.
        """
        return True

    def report_final_counts(self, counts: Counts) -> None:
        """Report the final counts."""
        logged = {"burned": families.IDS_BURNED, "log_lines_lost": families.LOG_LINES_LOST}
        totals = {name: dict(+counts.counters[family]) for name, family in logged.items()}
        _log.info("stopped", **{name: total for name, total in totals.items() if total})
