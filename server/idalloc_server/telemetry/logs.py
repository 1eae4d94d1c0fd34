"""Logs: JSON lines, or colours on a terminal; always on standard error."""

import logging
import sys

import structlog


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
            *([] if on_terminal else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if on_terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # It writes each line in one go: several processes may share the stream.
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
