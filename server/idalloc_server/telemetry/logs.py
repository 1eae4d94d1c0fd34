"""Logging to standard error through ``log_queue``: JSON lines, or colours on a terminal."""

import asyncio
import atexit
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from idalloc_server.telemetry.log_queue import STDERR, STDOUT, LogQueue, Share

# How many lines are queued before other tasks of the event loop run.
LINES_AT_ONCE = 100

_ALWAYS = structlog.make_filtering_bound_logger(logging.NOTSET)
_log = structlog.get_logger("idalloc")
# Failed calls and the audit are logged at any ``log_level``.
failed_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS)
audit_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=(Share.AUDIT,))
refused_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=(Share.REFUSED,))


def configure(level: str, **always: object) -> None:
    """Set up logging for the whole process, including libraries and uncaught exceptions.

    Args:
        level: debug, info, warning or error; calls below it cost nothing.
        always: Fields of every line.
    """
    _open_streams()
    on_terminal = os.isatty(STDERR)
    structlog.configure(
        processors=[
            lambda logger, method, line: {**line, **always},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _printable if on_terminal else structlog.processors.format_exc_info,
            # Plain: local variables may have secrets.
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if on_terminal
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    # By default all of these write to standard error and block on its reader.
    logging.basicConfig(handlers=[_Records()], force=True)
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _log.critical("crashed", exc_info=error)
    threading.excepthook = sys.unraisablehook = _log_unhandled


def _open_streams() -> None:
    """Open standard streams that are closed: otherwise a file or socket would get their descriptors."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(opened, True)
    os.close(opened)


def print_line(text: str, stream: int = STDOUT) -> None:
    """Print a line unchanged, without waiting for the reader.

    Args:
        text: The line.
        stream: ``STDOUT`` or ``STDERR``.
    """
    _queue.put(Share.LOG, text, stream)


def lost_lines() -> Counter[str]:
    """Return how many log lines this process lost, by ``Share``."""
    return _queue.lost


class _Lines:
    """The logger that structlog wraps: puts lines into the queue."""

    def __init__(self, name: object = None) -> None:
        self._share = name if isinstance(name, Share) else Share.LOG

    def msg(self, line: str) -> None:
        _queue.put(self._share, line)

    debug = info = warning = error = critical = exception = msg


class _Records(logging.Handler):
    """Forwards records of the standard library's logging, such as those of asyncio and grpcio."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            message = repr((record.msg, record.args))
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        _log.log(level, "library", logger=record.name, message=message, exc_info=record.exc_info)


def _log_unhandled(error: Any) -> None:
    """Log an exception that ended a thread or cannot propagate."""
    _log.error("unhandled_exception", exc_info=(error.exc_type, error.exc_value, error.exc_traceback))


def _lost_line(lost: Counter[str]) -> str:
    """Return the line that reports lost lines; it bypasses the queue."""
    line: str = _lost_log.warning("log_lines_lost", **lost)
    return line


def _printable(logger: object, method: str, line: structlog.types.EventDict) -> structlog.types.EventDict:
    """Escape control characters, since callers choose some values. The JSON renderer escapes them itself."""
    return {
        name: value.encode("unicode_escape").decode() if isinstance(value, str) and not value.isprintable() else value
        for name, value in line.items()
    }


# Returns each line instead of queueing it.
_lost_log = structlog.wrap_logger(structlog.testing.ReturnLogger(), wrapper_class=_ALWAYS)
_queue = LogQueue(_lost_line)
flush = _queue.flush
atexit.register(flush)


async def watch_burned(pop_new: Callable[[], Iterable[tuple[str, str, str, int]]]) -> None:
    """Log burned ids every second, until cancelled.

    Args:
        pop_new: Yields the arguments of ``log_burned`` for new burned ids; those not consumed stay new.
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
