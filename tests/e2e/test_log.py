"""The log of issued ids is complete for clients that are killed by SIGKILL."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import issued_log
from tests.support.processes import environment, running

# Each script prints every id as soon as it has received it.
LOOPS = {
    "ranges": """
while True:
    for value in client.allocate_range("orders", 3):
        show(value)
""",
    "pool": """
for value in client.ids("orders"):
    show(value)
""",
    "streams": """
while True:
    for ids in client.stream_ranges("orders", 100, 7):
        for value in ids:
            show(value)
""",
    "documents": """
while True:
    for value in client.doc_ids(3):
        show(value)
""",
    "tasks": """
import asyncio

async def caller(client):
    while True:
        for value in await client.allocate_range("orders", 2):
            show(value)

async def main():
    client = idalloc.aio.Client(sys.argv[1], log=sys.argv[2] + ".tasks" + sys.argv[3])
    await asyncio.gather(*(caller(client) for _ in range(10)))

asyncio.run(main())
""",
}
BEGIN = """
import os, sys
import idalloc

def show(value):
    os.write(1, b"%s\\n" % str(value).encode())

client = idalloc.Client(sys.argv[1], log=sys.argv[2] + sys.argv[3])
"""


def printed_before_the_kill(script: str, address: str, log: Path, lines: int) -> list[str]:
    """Run a client, kills it while it prints ids, and return the complete lines."""
    command = [sys.executable, "-c", BEGIN + script, address, str(log.with_suffix("")), log.suffix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout
        try:
            begun = [process.stdout.readline() for _ in range(lines)]
        finally:
            os.kill(process.pid, signal.SIGKILL)
        *rest, _ = process.stdout.read().split(b"\n")
    return [line.decode().strip() for line in [*begun, *rest]]


@pytest.mark.parametrize("ending", [".log", pytest.param(".jsonl", marks=pytest.mark.test_long)])
def test_every_id_of_a_killed_client_is_in_its_log(tmp_path: Path, ending: str) -> None:
    """P1: the log of a client killed by SIGKILL has every id that it received."""
    with running(tmp_path) as server:
        for turn, (loop, script) in enumerate(LOOPS.items()):
            log = tmp_path / f"{loop}{ending}"
            printed = printed_before_the_kill(script, server.address, log, 200 + 77 * turn)
            logged = issued_log.read(log if loop != "tasks" else tmp_path / f"tasks.tasks{ending}")
            ids = logged.texts if loop == "documents" else [str(value) for value in logged.ids]
            assert len(printed) >= 200
            assert set(printed) <= set(ids), loop
            assert len(ids) == len(set(ids))
            assert all(record.node > 0 and record.generation > 0 for record in logged.records if not record.doc_ids)
