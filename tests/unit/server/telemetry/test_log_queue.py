"""What a process writes while it runs waits for no reader: real processes, whose standard error is a full pipe."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from idalloc_server.telemetry.log_queue import MAX_QUEUED_BYTES

BEGIN = """
import asyncio, gc, logging, os, sys, threading, warnings
from idalloc_server.telemetry import logs
import structlog
logs.configure("info", worker=3)
log = structlog.get_logger()
"""
FILL = """
for number in range(2_000):
    log.info("filler", text="x" * 1_000)
"""
# Each printed to standard error by itself.
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
    "a library's own log": "logging.getLogger('grpc').warning('ZeroDivisionError %s', 'here')",
    "a warning": "warnings.warn('ZeroDivisionError', UserWarning)",
}


def run(script: str, *, read: bool, timeout: float = 40) -> tuple[int, list[dict[str, Any]]]:
    """Runs a process; returns its exit code and, where its standard error is read, its lines."""
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
def test_whatever_is_reported_is_a_line_of_the_log(what: str) -> None:
    """Libraries, warnings and exceptions that nobody catches have the log's form and its queue."""
    _, [line] = run(OTHERS[what], read=True)
    assert "ZeroDivisionError" in json.dumps(line)
    assert (line["worker"], line["level"]) in [(3, "critical"), (3, "error"), (3, "warning")]


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_is_reported_waits_for_no_reader(what: str) -> None:
    """The same behind a full pipe: the process ends by itself."""
    code, _ = run(FILL + OTHERS[what], read=False)
    assert code == (1 if "ends the process" in what else 0)


def test_an_audit_record_finds_its_place_in_a_full_queue() -> None:
    """Neither the log nor callers that are refused take the place of administrative records."""
    script = """
gate, logs._queue._start = logs._queue._start, lambda: None  # no reader
for number in range(3_000):
    log.info("filler", text="x" * 1_000)
    logs.refused_log.info("audit", code="UNAUTHENTICATED", text="x" * 1_000)
for number in range(100):
    logs.audit_log.info("audit", code="OK")
gate()
"""
    code, lines = run(script, read=True)
    assert code == 0
    assert sum(line.get("code") == "OK" for line in lines) == 100
    lost = [line for line in lines if line["event"] == "log_lines_lost"]
    assert all((line["worker"], line["level"]) == (3, "warning") for line in lost)
    for share, event, code_of in (("log", "filler", None), ("refused", "audit", "UNAUTHENTICATED")):
        came = sum(line["event"] == event and line.get("code") == code_of for line in lines)
        assert came * 1_000 < MAX_QUEUED_BYTES
        assert came + sum(line.get(share, 0) for line in lost) == 3_000


def test_a_forked_child_logs_its_own_lines_alone() -> None:
    """P8's kin: the child of a fork neither repeats nor loses a line, nor waits for the parent's thread."""
    script = """
log.info("before")
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


def test_a_line_that_cannot_be_written_is_counted() -> None:
    """A full disk loses lines, not calls; the next line that can be written says how many."""
    script = """
kept = os.dup(2)
os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
for number in range(5):
    log.info("lost")
logs._queue.flush()
os.dup2(kept, 2)
log.info("written")
"""
    code, lines = run(script, read=True)
    assert code == 0
    assert [(line["event"], line.get("log")) for line in lines] == [("log_lines_lost", 5), ("written", None)]


def test_a_stream_that_does_not_block_loses_nothing() -> None:
    """Another process of a terminal, or of a pipe, may have set O_NONBLOCK."""
    code, lines = run("os.set_blocking(2, False)\nfor number in range(900):\n    log.info('x' * 1_000)\n", read=True)
    assert code == 0
    assert len(lines) == 900
