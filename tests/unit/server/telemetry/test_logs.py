"""The format of a log line."""

import os
import pty
import subprocess
import sys

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
