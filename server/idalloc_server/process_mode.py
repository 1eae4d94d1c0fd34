"""What differs between a server that is one process and one that has several workers."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Protocol

import structlog

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.document_ids.generator import DocIdGenerator, NodeSettings
from idalloc_server.listen.address import Address
from idalloc_server.rpc.node import Workers
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.metrics import Counts, log_calls

_log = structlog.get_logger("idalloc")


def stop_signals() -> tuple[signal.Signals, ...]:
    """Returns the signals that stop a server.

    SIGHUP is one of them where it means that the terminal is closed which the server was started from; elsewhere, and
    under nohup, it has files read again.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return numbers
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return numbers  # There is no terminal.
    return (*numbers, signal.SIGHUP)


class ProcessMode(Protocol):
    """What a serving process is: all of a server, or one of its workers.

    Attributes:
        shares_port: Whether others serve on the same port.
        workers: All workers, where there are several.
        node_settings: Who keeps settings over restarts; None where the process cannot do it alone.
        stop_signals: The signals that drain and end the process; SIGHUP is ``reloading`` where it is none of them.
        stopping: Set when the process is to drain and to end.
        reloading: Set when it is to read its access file and its certificates again.
        drain_timeout: How long running calls may then go on, in seconds.
        asks: Whether it asks who calls even where the access file names nobody who may.
    """

    shares_port: bool
    workers: Workers | None
    node_settings: NodeSettings | None
    stop_signals: tuple[signal.Signals, ...]
    stopping: asyncio.Event
    reloading: asyncio.Event
    drain_timeout: float
    asks: bool

    def take(self, listen: str) -> None:
        """Takes the address, so that no second server does.

        Raises:
            StartRefused: It is in use, or cannot be used.
        """
        ...

    async def join(self, doc_ids: DocIdGenerator, access_control: AccessControl, welcome: str) -> None:
        """Waits until the whole server serves, once this process does."""
        ...

    def ask(self) -> None:
        """Has the whole server ask who calls, for ever, since this process does."""
        ...

    def joined(self) -> None:
        """Tells that health is SERVING."""
        ...

    async def watch(self, counts: Callable[[], Counts]) -> None:
        """Passes on what is counted, each second, for ever. Its owner cancels it."""
        ...

    async def closed(self) -> None:
        """Waits until the whole server takes no connection, once this process does not."""
        ...

    async def leave(self) -> bool:
        """Waits until the whole server has drained, once this process has.

        Returns:
            Whether the server is at its end: what its processes share may be given up.
        """
        ...

    def left(self, counts: Counts) -> None:
        """Passes on what was counted in all."""
        ...


class SingleProcess:
    """A server that is one process; see ``ProcessMode``.

    Args:
        node_settings: Who keeps settings over restarts.
        drain_timeout: How long running calls may go on at the end, in seconds.
        created: What to print of a store that this start creates; empty for one that exists.
    """

    shares_port = False
    asks = False
    workers: Workers | None = None

    def __init__(self, node_settings: NodeSettings, drain_timeout: float, created: str = "") -> None:
        self.node_settings: NodeSettings | None = node_settings
        self.stop_signals = stop_signals()
        self.stopping = asyncio.Event()
        self.reloading = asyncio.Event()
        self.drain_timeout = drain_timeout
        self._address: Address | None = None
        self._created = created
        self._welcome = ""

    def take(self, listen: str) -> None:
        """See ``ProcessMode.take``."""
        self._address = Address(listen)

    async def join(self, doc_ids: DocIdGenerator, access_control: AccessControl, welcome: str) -> None:
        """See ``ProcessMode.join``."""
        self._welcome = welcome

    def ask(self) -> None:
        """See ``ProcessMode.ask``: there is no other process."""

    def joined(self) -> None:
        """See ``ProcessMode.joined``."""
        say_welcome(self._welcome, self._created)

    async def watch(self, counts: Callable[[], Counts]) -> None:
        """See ``ProcessMode.watch``."""
        await log_calls(lambda: counts().calls)

    async def closed(self) -> None:
        """See ``ProcessMode.closed``: there is no other process."""

    async def leave(self) -> bool:
        """See ``ProcessMode.leave``."""
        return True

    def left(self, counts: Counts) -> None:
        """See ``ProcessMode.left``."""
        log_stopped(counts)


def say_welcome(welcome: str, created: str) -> None:
    """Print that the server serves, and which store it created."""
    logs.print_line("\n".join(filter(None, (welcome, created))))


def log_stopped(counts: Counts) -> None:
    """Logs the end of a server, what it burned, and how many lines its log lost."""
    totals = {"burned": dict(counts.burned), "log_lines_lost": dict(counts.log_lines_lost)}
    _log.info("stopped", **{name: total for name, total in totals.items() if total})
