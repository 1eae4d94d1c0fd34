"""Logging never blocks on its reader: real processes with a full pipe as standard error."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from idalloc_server.telemetry.log_queue import MAX_QUEUED_BYTES

pytestmark = pytest.mark.test_long

BEGIN = """
import asyncio, gc, logging, os, sys, threading, warnings
from idalloc_server.telemetry import logs
import structlog
logs.configure("info", worker=3)
log = structlog.get_logger()
"""
FILL = """
from idalloc_server.telemetry import log_queue
log_queue.FLUSH_SECONDS = 0.2
for number in range(2_000):
    log.info("filler", text="x" * 1_000)
"""
# Without `configure`, each writes to standard error directly.
OTHERS = {
    "an exception that ends the process": "raise ZeroDivisionError('here')",
    "an exception that ends a thread": """
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
""",
    "an exception in a __del__": """
class Broken:
    def __del__(self):
        1 / 0
Broken()
""",
    "a task's exception that nobody awaits": """
async def fail():
    1 / 0
async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    gc.collect()
asyncio.run(main())
""",
    "a library's own log": "logging.getLogger('asyncio').warning('ZeroDivisionError %s', 'here')",
    "a warning": "warnings.warn('ZeroDivisionError', UserWarning)",
}


def run(script: str, *, read: bool, timeout: float = 40) -> tuple[int, list[dict[str, Any]]]:
    """Run a process; return its exit code and, if ``read``, its log lines."""
    ours, theirs = os.pipe()
    command = [sys.executable, "-c", BEGIN + script]
    with subprocess.Popen(command, stderr=theirs, stdin=subprocess.DEVNULL) as process, os.fdopen(ours, "rb") as pipe:
        os.close(theirs)
        try:
            content = pipe.read() if read else b""
            code = process.wait(timeout)
        finally:
            process.kill()
    return code, [json.loads(line) for line in content.splitlines()]


@pytest.mark.parametrize("what", OTHERS)
def test_all_reports_are_log_lines(what: str) -> None:
    """Libraries, warnings and uncaught exceptions are logged in the format of the log."""
    _, [line] = run(OTHERS[what], read=True)
    assert "ZeroDivisionError" in json.dumps(line)
    assert (line["worker"], line["level"]) in [(3, "critical"), (3, "error"), (3, "warning")]


@pytest.mark.parametrize("what", OTHERS)
def test_reports_do_not_block_on_a_full_pipe(what: str) -> None:
    """A process with a full pipe as standard error still exits."""
    code, _ = run(FILL + OTHERS[what], read=False)
    assert code == (1 if "ends the process" in what else 0)


def test_audit_records_have_their_own_share() -> None:
    """Neither the log nor rejected callers displace administrative audit records."""
    script = """
logs.queue._thread = True  # no writer thread yet
for number in range(3_000):
    log.info("filler", text="x" * 1_000)
    logs.refused_log.info("audit", code="UNAUTHENTICATED", text="x" * 1_000)
for number in range(100):
    if number == 99:
        logs.queue._thread = None  # this line starts the thread
    logs.audit_log.info("audit", code="OK")
"""
    code, lines = run(script, read=True)
    assert code == 0
    assert sum(line.get("code") == "OK" for line in lines) == 100
    lost = [line for line in lines if line["event"] == "log_lines_lost"]
    assert all((line["worker"], line["level"]) == (3, "warning") for line in lost)
    for share, event, code_of in (("log", "filler", None), ("refused", "audit", "UNAUTHENTICATED")):
        written = sum(line["event"] == event and line.get("code") == code_of for line in lines)
        assert written * 1_000 < MAX_QUEUED_BYTES
        assert written + sum(line.get(share, 0) for line in lost) == 3_000


def test_forked_child_logs_only_its_own_lines() -> None:
    """A forked child neither repeats nor loses a line, nor waits for the parent's thread."""
    script = """
log.info("before")
warnings.simplefilter("ignore")  # Python 3.12 warns of a fork beside threads
child = os.fork()
log.info("after", child=not child)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    code, lines = run(script, read=True)
    assert code == 0
    assert sorted((line["event"], line.get("child")) for line in lines) == [
        ("after", False),
        ("after", True),
        ("before", None),
    ]


def test_lines_that_cannot_be_written_are_counted() -> None:
    """A full disk loses lines, not calls; the next written line reports their number."""
    script = """
stderr = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
for number in range(5):
    log.info("lost")
logs.queue.flush()
os.dup2(stderr, 2)
log.info("written")
"""
    code, lines = run(script, read=True)
    assert code == 0
    assert [(line["event"], line.get("log")) for line in lines] == [("log_lines_lost", 5), ("written", None)]


def test_non_blocking_stream_loses_no_line() -> None:
    """A stream that another process made non-blocking loses no line."""
    code, lines = run("os.set_blocking(2, False)\nfor number in range(900):\n    log.info('x' * 1_000)\n", read=True)
    assert code == 0
    assert len(lines) == 900
