"""Logs: JSON lines, or colours on a terminal; always on standard error, written by a thread (``log_queue``)."""

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

# So many lines are queued in one go, so that very many do not hold up the event loop.
LINES_AT_ONCE = 100

_ALWAYS = structlog.make_filtering_bound_logger(logging.NOTSET)
_log = structlog.get_logger("idalloc")
# Why calls fail, and the audit, are written whatever ``log_level`` is.
failed_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS)
audit_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=(Share.AUDIT,))
refused_log = structlog.wrap_logger(None, wrapper_class=_ALWAYS, logger_factory_args=(Share.REFUSED,))


def configure(level: str, **always: object) -> None:
    """Sets up logging for the whole process, also of what libraries log and of exceptions that nobody catches.

    Args:
        level: debug, info, warning or error; what lies below costs nothing.
        always: What every line says.
    """
    _open_streams()
    on_terminal = os.isatty(STDERR)
    structlog.configure(
        processors=[
            lambda logger, method, line: {**line, **always},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _printable if on_terminal else structlog.processors.format_exc_info,
            # Plain: the local variables that it shows otherwise may be secrets.
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if on_terminal
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    # All of these print to standard error otherwise, and so wait for its reader.
    logging.basicConfig(handlers=[_Records()], force=True)
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: _log.critical("crashed", exc_info=error)
    threading.excepthook = sys.unraisablehook = _log_unhandled


def _open_streams() -> None:
    """Opens the standard streams that were closed at the start: a file or a socket would get their descriptors."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(opened, True)
    os.close(opened)


def print_line(text: str, stream: int = STDOUT) -> None:
    """Prints a line as it is, without waiting for its reader.

    Args:
        text: The line.
        stream: ``STDOUT`` or ``STDERR``.
    """
    _queue.put(Share.LOG, text, stream)


def lost_lines() -> Counter[str]:
    """Returns how many lines of this process's log were lost, by ``Share``."""
    return _queue.lost


class _Lines:
    """What structlog writes its lines to."""

    def __init__(self, name: object = None) -> None:
        self._share = name if isinstance(name, Share) else Share.LOG

    def msg(self, line: str) -> None:
        _queue.put(self._share, line)

    debug = info = warning = error = critical = exception = msg


class _Records(logging.Handler):
    """Logs what libraries give to the standard library's logging, such as asyncio and grpcio."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            message = repr((record.msg, record.args))
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        _log.log(level, "library", logger=record.name, message=message, exc_info=record.exc_info)


def _log_unhandled(found: Any) -> None:
    """Logs an exception that ended a thread, or that was raised where Python cannot pass it on."""
    _log.error("unhandled", exc_info=(found.exc_type, found.exc_value, found.exc_traceback))


def _lost_line(lost: Counter[str]) -> str:
    """Returns the line that says how many were lost: it has its own way to the stream."""
    line: str = _lost_log.warning("log_lines_lost", **lost)
    return line


def _printable(logger: object, method: str, line: structlog.types.EventDict) -> structlog.types.EventDict:
    """Escapes what would move the cursor, or worse: some of it is what callers sent. JSON does so by itself."""
    return {
        name: value.encode("unicode_escape").decode() if isinstance(value, str) and not value.isprintable() else value
        for name, value in line.items()
    }


# Returns each line instead of writing it.
_lost_log = structlog.wrap_logger(structlog.testing.ReturnLogger(), wrapper_class=_ALWAYS)
_queue = LogQueue(_lost_line)
atexit.register(_queue.flush)


async def watch_burned(pop_new: Callable[[], Iterable[tuple[str, str, str, int]]]) -> None:
    """Logs each second which ids were burned, for ever. Its owner cancels it.

    Args:
        pop_new: Gives what is new, as ``log_burned`` takes it. What has not been taken of it stays new.
    """
    while True:
        await asyncio.sleep(1)
        for number, burn in enumerate(pop_new(), start=1):
            log_burned(*burn)
            if number % LINES_AT_ONCE == 0:
                await asyncio.sleep(0)


def log_burned(sequence: str, period: str, cause: str, ids: int) -> None:
    """Logs how many ids of a sequence, or of one period of it, were burned: no other line counts the same ones."""
    _log.info("burned", sequence=sequence, **({"period": period} if period else {}), cause=str(cause), ids=ids)
