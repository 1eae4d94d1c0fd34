"""A server whose connections begin with GOAWAY costs a client little; no caller sees a drain."""

import json
import subprocess
import sys

import pytest

import idalloc
import idalloc.aio
from tests.support.fake_server import serving
from tests.support.goaway import serving_goaway

# Makes all calls of a kind at once. Prints how they end, or after 5 s that they have not; and the
# memory in MB and seconds of the processor that they cost.
SCRIPT = """
import asyncio, json, os, resource, sys, threading, time
import idalloc, idalloc.aio
from idalloc._core import pipeline, resumption
from idalloc.cli._health import check

pipeline.INITIAL_BACKOFF = resumption.INITIAL_BACKOFF = 0.001
resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
peak = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024

def report(*ends):
    print(json.dumps([ends, peak() - peak_before, time.process_time() - cpu_before]), flush=True)
    os._exit(0)

async def main(target, kind):
    threads = idalloc.Client(target, timeout=10)
    tasks = idalloc.aio.Client(target, timeout=10)
    chunks = tasks.stream_ranges("orders", 1)
    thread = asyncio.to_thread
    calls = {
        "unary": [tasks.node(), thread(threads.node), thread(check, target, "", 10, {})],
        "stream": [anext(chunks), thread(list, threads.stream_ranges("orders", 1))],
        "requests": [tasks.allocate_stream().doc_ids(), thread(threads.allocate_stream().doc_ids)],
    }[kind]
    report(*(type(each).__name__ for each in await asyncio.gather(*calls, return_exceptions=True)))

peak_before, cpu_before = peak(), time.process_time()
threading.Timer(5, report).start()
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["unary", "stream", "requests"])
def test_connections_that_begin_with_goaway_cost_little(kind: str) -> None:
    """Calls to a server that ends each connection at once fail soon, also without a timeout."""
    with serving_goaway() as target:
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, target, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    ends, megabytes, cpu_seconds = json.loads(done.stdout)
    assert megabytes < 20
    assert cpu_seconds < 1
    assert set(ends) == {"ServerUnreachable"}


async def test_a_call_outlasts_connections_that_begin_with_goaway() -> None:
    """A call reaches its server after two connections that a drain ended before it was sent."""
    with serving() as server:
        with serving_goaway(then=server.target) as target, idalloc.Client(target) as client:
            assert len(client.allocate_range("orders", 3)) == 3
        with serving_goaway(then=server.target) as target:
            async with idalloc.aio.Client(target) as other:
                assert len(await other.allocate_range("orders", 3)) == 3
