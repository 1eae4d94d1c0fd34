"""What a line of the log looks like."""

import os
import pty
import subprocess
import sys

PROGRAM = """
from idalloc_server.telemetry import logs
logs.configure("info")
logs.audit_log.info("audit", sequence="a\x1b[2Jb", why="plain words", count=3)
"""


def test_what_callers_sent_moves_nothing_on_a_terminal() -> None:
    ours, terminal = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as read, os.fdopen(terminal, "wb") as stderr:
        subprocess.run([sys.executable, "-c", PROGRAM], check=True, stderr=stderr)
        line = read.read(10_000)
    assert b"\x1b[2J" not in line
    assert rb"a\x1b[2Jb" in line
    assert b"plain words" in line
