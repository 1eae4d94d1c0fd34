"""What differs between a process that is the whole server and one of several workers."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.node import announcements
from idalloc_server.node.change import Workers
from idalloc_server.node.report import NodeReport
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.telemetry.metrics import log_calls


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a server.

    SIGHUP is one of them if the process has a controlling terminal, which sends it on close.
    Without a terminal, or under nohup, SIGHUP reloads files.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return numbers
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return numbers  # There is no terminal.
    return (*numbers, signal.SIGHUP)


@dataclass
class ProcessControl:
    """How a process is stopped, and made to reload its files."""

    drain_timeout: float  # how long running calls may continue after a stop, in seconds
    # They drain and end the process. SIGHUP reloads unless it is one of them.
    stop_signals: tuple[signal.Signals, ...]
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    reload_requested: asyncio.Event = field(default_factory=asyncio.Event)  # of the access file and the certificates


class ProcessMode:
    """What a process asks of its server, and what it reports to the server.

    This one is the whole server, so it waits for nobody; ``Worker`` is one of several.

    Args:
        node_settings: Persists settings over restarts.
        drain_timeout: How long running calls may continue after a stop, in seconds.
        created: The file of a store that this start creates; empty for an existing store.
    """

    # All workers; None for a single process, which is the only user of its address and prefix.
    workers: Workers | None = None
    # Whether callers must authenticate even if the access file has no identities.
    requires_authentication = False
    opening: Opening = ANY_STORE  # how the store is opened

    def __init__(self, node_settings: NodeSettingsFile, drain_timeout: float, created: str = "") -> None:
        self.control = ProcessControl(drain_timeout, stop_signals())
        self.node_settings = node_settings
        self._created = created

    async def wait_all_ready(
        self, doc_ids: DocIdGenerator, access_control: AccessControl, store: Mapping[str, str]
    ) -> None:
        """Report this process as ready, and wait until all workers are ready.

        ``store`` is ``Store.opened``.
        """

    def require_authentication(self) -> None:
        """Require authentication in all workers, until the server ends."""

    def report_serving(self, address: str, store: str, prefix: int, ports: Mapping[str, str]) -> None:
        """Report that health is SERVING; the arguments are those of ``announce_serving``."""
        announcements.announce_serving(address, store, prefix, ports, created=self._created)

    async def report(self, report: NodeReport) -> None:
        """Log the calls, or report metrics and checks, every second until cancelled."""
        await log_calls(lambda: report.counts().calls)

    async def wait_all_closed(self) -> None:
        """Report that this process accepts no connections.

        If the whole server stops, wait until no worker does.
        """

    async def wait_all_drained(self) -> bool:
        """Report that this process has drained, and wait for permission to end.

        Returns:
            Whether the whole server ends, and the resources that its processes share can be
            released.
        """
        return True

    def report_end(self, report: NodeReport) -> None:
        """Report the final counts."""
        announcements.announce_stopped(report.final_counts())
