"""The format of a log line."""

import logging
import os
import pty
import subprocess
import sys

from structlog.testing import capture_logs

from idalloc_server.telemetry.logs import LibraryRecords

PROGRAM = """
from idalloc_server.telemetry import logs
logs.configure("info")
logs.audit_log.info("audit", sequence="a\x1b[2Jb", why="plain words", count=3)
"""


def test_control_characters_are_escaped_on_a_terminal() -> None:
    """Control characters from callers do not reach a terminal."""
    ours, terminal = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as read, os.fdopen(terminal, "wb") as stderr:
        subprocess.run([sys.executable, "-c", PROGRAM], check=True, stderr=stderr)
        line = read.read(10_000)
    assert b"\x1b[2J" not in line
    assert rb"a\x1b[2Jb" in line
    assert b"plain words" in line


def test_records_of_grpc_are_counted_without_their_text() -> None:
    """A library that parses headers adds at most one line a second, without its text."""
    now = 5.0
    records = LibraryRecords(clock=lambda: now)

    def log(level: int) -> None:
        try:
            b"Bearer secret \xff".decode()
        except UnicodeDecodeError:
            text = "Invalid encoding on %s"
            trace = sys.exc_info()
            records.handle(logging.LogRecord("grpc._cython.cygrpc", level, "f", 1, text, (b"secret",), trace))

    with capture_logs() as lines:
        for _ in range(3):
            log(logging.ERROR)
        log(logging.INFO)
        now += 1
        log(logging.ERROR)
    assert [(line["log_level"], line["count"]) for line in lines] == [("error", 1), ("info", 1), ("error", 3)]
    assert {(line["event"], line["logger"]) for line in lines} == {("library_records", "grpc._cython.cygrpc")}
    assert "secret" not in str(lines)
    assert all(line["error"] == "UnicodeDecodeError" and line["places"] for line in lines)
