"""Logs: JSON lines, or colours on a terminal; always on standard error."""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TextIO, cast

import structlog

# So many lines are written in one go, so that very many do not hold up the event loop.
LINES_AT_ONCE = 100

_log = structlog.get_logger("idalloc")
# The audit is written whatever ``log_level`` is: it is no matter of how much somebody wants to read.
audit_log = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))


def configure(level: str, **always: object) -> None:
    """Sets up logging for the whole process.

    Args:
        level: debug, info, warning or error; what lies below costs nothing.
        always: What every line says.
    """
    on_terminal = sys.stderr.isatty()
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
        # It writes each line in one go: several processes may share the stream.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Lossy(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def _printable(logger: object, method: str, line: structlog.types.EventDict) -> structlog.types.EventDict:
    """Escapes what would move the cursor, or worse: some of it is what callers sent. JSON does so by itself."""
    return {
        name: value.encode("unicode_escape").decode() if isinstance(value, str) and not value.isprintable() else value
        for name, value in line.items()
    }


class _Lossy:
    """A stream that loses what cannot be written, as on a disk that is full: no log is worth a call, or the server."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


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
