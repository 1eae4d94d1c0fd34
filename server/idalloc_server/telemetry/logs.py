"""Logging to standard error through ``log_queue``: JSON lines, or colours on a terminal.

Each line has ``timestamp``, ``level``, ``event`` and ``logger``; the lines of several workers have
``worker``, too.
"""

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import structlog

from idalloc_server.telemetry import recent
from idalloc_server.telemetry.log_queue import STDERR, STDOUT, LogQueue, Share

# How many lines are queued before other tasks of the event loop run.
LINES_AT_ONCE = 100

# The loggers of libraries that parse requests.
_PARSERS = ("aiohttp.", "grpc", "opentelemetry.baggage.", "opentelemetry.trace.")
# How a terminal names the other ports of a server.
_PORTS = {"http": "", "probes": "probes on ", "xproto": "X Protocol on "}
_ALWAYS = structlog.make_filtering_bound_logger(logging.NOTSET)
_log = structlog.get_logger("idalloc")
# Failed calls and the audit are logged at any ``log_level``.
failed_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=("idalloc.rpc",))
audit_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=("idalloc.audit", Share.AUDIT))
refused_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=("idalloc.audit", Share.REFUSED))


def configure(level: str, **always: object) -> None:
    """Set up logging for the whole process, including libraries and uncaught exceptions.

    Args:
        level: debug, info, warning or error; calls below it cost nothing.
        always: Fields of every line.
    """
    # Open closed standard streams: otherwise a file or socket would get their descriptors.
    while (opened := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(opened, True)
    os.close(opened)
    # Plain tracebacks: local variables may have secrets.
    on_terminal = (_printable, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback))
    structlog.configure(
        processors=[
            lambda logger, method, line: {**line, **always},
            *_COMMON,
            recent.record,
            *(on_terminal if os.isatty(STDERR) else _JSON),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    # By default all of these write to standard error and block on its reader.
    logging.basicConfig(handlers=[LibraryRecords()], force=True)
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _log.critical("crashed", exc_info=error)
    threading.excepthook = sys.unraisablehook = _log_unhandled


def print_line(text: str, stream: int = STDOUT) -> None:
    """Print a line unchanged on ``STDOUT`` or ``STDERR``, without waiting for the reader."""
    queue.put(Share.LOG, text, stream)


def report_serving(
    address: str, store: str, prefix: int, ports: Mapping[str, str], *, workers: int, created: str
) -> None:
    """Report on standard output that the server serves.

    A terminal gets text, anything else the event ``serving``.

    Args:
        address: The address that it serves on.
        store: The address of the store.
        prefix: The prefix of document ids.
        ports: The addresses of its other ports: the URLs ``http`` and ``probes``, and ``xproto``;
            empty if not served.
        workers: The number of processes that serve.
        created: The file of a store that this start has created; empty for an existing store.
    """
    release = version("idalloc")
    if not os.isatty(STDOUT):
        _serving_log.info(
            "serving",
            version=release,
            address=address,
            store=store,
            store_created=bool(created),
            prefix=prefix,
            workers=workers,
            **{name: each for name, each in ports.items() if each},
        )
        return
    processes = f", {workers} workers" if workers > 1 else ""
    shown = "".join(f", {_PORTS[name]}{each}" for name, each in ports.items() if each)
    print_line(f"idalloc {release} serves on {address}, store {store}, prefix {prefix}{processes}{shown}")
    if created:
        print_line(f"store created at {created}")


def report_not_started(error: str, exit_code: int) -> None:
    """Report why the server did not start.

    A terminal gets one line of text, anything else the event ``not_started``.
    """
    if os.isatty(STDERR):
        print_line(f"idalloc: {error}", STDERR)
    else:
        _start_log.error("not_started", error=error, exit_code=exit_code)


def failure_fields(error: object) -> dict[str, object]:
    """Return the fields of an unexpected error that a caller may have caused.

    Its text is left out: it may be the caller's.
    """
    trace = traceback.extract_tb(getattr(error, "__traceback__", None))
    places = [f"{each.filename}:{each.lineno} {each.name}" for each in trace]
    return {"error": type(error).__name__, "places": places}


@dataclass(eq=False)
class _Lines:
    """The logger that structlog wraps: puts lines into the queue."""

    name: str = "idalloc"
    share: Share = Share.LOG
    stream: int = STDERR

    def msg(self, line: str) -> None:
        queue.put(self.share, line, self.stream)

    debug = info = warning = error = critical = exception = msg


class LibraryRecords(logging.Handler):
    """Forwards records of the standard library's logging, such as those of asyncio.

    Of the libraries that parse requests it only counts them, at most one line a second: their texts
    may have a caller's headers.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._counts: Counter[tuple[str, int]] = Counter()
        self._logged_at: dict[tuple[str, int], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record, or count it."""
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        if not record.name.startswith(_PARSERS):
            try:
                message = record.getMessage()
            except Exception:
                message = repr((record.msg, record.args))
            _log.log(level, "library", logger=record.name, message=message, exc_info=record.exc_info)
            return
        kind = (record.name, level)
        self._counts[kind] += 1
        now = self._clock()
        if now - self._logged_at.get(kind, now - 2) >= 1:
            self._logged_at[kind] = now
            cause = failure_fields(record.exc_info[1]) if record.exc_info else {}
            _log.log(level, "library_records", logger=record.name, count=self._counts.pop(kind), **cause)


def _log_unhandled(error: Any) -> None:
    """Log an exception that ended a thread or cannot propagate."""
    _log.error("unhandled_exception", exc_info=(error.exc_type, error.exc_value, error.exc_traceback))


def _printable(logger: object, method: str, line: structlog.types.EventDict) -> structlog.types.EventDict:
    """Escape control characters, since callers choose some values.

    The JSON renderer escapes them itself.
    """
    return {
        name: value.encode("unicode_escape").decode() if isinstance(value, str) and not value.isprintable() else value
        for name, value in line.items()
    }


_COMMON = (
    # The lines of libraries have the names of their own loggers.
    lambda logger, method, line: {"logger": getattr(logger, "name", "idalloc"), **line},
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_JSON = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
# These work without ``configure``, at any ``log_level``.
_serving_log = structlog.wrap_logger(_Lines(stream=STDOUT), processors=[*_COMMON, *_JSON], wrapper_class=_ALWAYS)
_start_log = structlog.wrap_logger(_Lines(), processors=[*_COMMON, *_JSON], wrapper_class=_ALWAYS)
# Returns each line instead of queueing it.
_lost_log = structlog.wrap_logger(structlog.testing.ReturnLogger(), wrapper_class=_ALWAYS)
queue = LogQueue(lambda lost: str(_lost_log.warning("log_lines_lost", **lost)))
flush = queue.flush
atexit.register(flush)


async def log_every_second(*logs: Callable[[], None]) -> None:
    """Write logs every second, until cancelled."""
    while True:
        await asyncio.sleep(1)
        for log in logs:
            log()


async def watch_burned(pop_new: Callable[[], Iterable[tuple[str, str, str, int]]]) -> None:
    """Log burned ids every second, until cancelled.

    ``pop_new`` yields the arguments of ``log_burned`` for new ones; those not consumed stay new.
    """
    while True:
        await asyncio.sleep(1)
        for number, burn in enumerate(pop_new(), start=1):
            log_burned(*burn)
            if number % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)


def log_burned(sequence: str, period: str, cause: str, ids: int) -> None:
    """Log burned ids of a sequence or of one of its periods; each id is in one line only."""
    _log.info("burned", sequence=sequence, **({"period": period} if period else {}), cause=str(cause), ids=ids)
