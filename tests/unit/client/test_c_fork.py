"""Forks that bypass Python, as uWSGI's: libc's `fork()`, called in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_server import FakeServer

pytestmark = [pytest.mark.test_long, pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")]

# fork() iterates over a function's values in the parent and in two children, and prints the values
# of each up to an error, and the error, the parent's first. PyDLL keeps the GIL, as uWSGI does.
# Otherwise another thread could hold it, and never release it in the child. For the same reason no
# thread of gRPC may wait for it: Python resets the GIL in the child of os.fork() only.
FORK = """
import asyncio, ctypes, json, mmap, os, signal, sys, threading
from itertools import chain, islice

if sys.argv[2] == "process id":
    class Emulated(mmap.mmap):
        def madvise(self, *arguments):
            pass
    mmap.mmap = Emulated

import idalloc
from tests.support.waiting import hold_for, wait_until
target = sys.argv[1]
before = []

def given(function):
    values = []
    try:
        values.extend(function())
    except Exception as error:
        values.append(f"{type(error).__name__}: {error}")
    return values

def fork(function, threads=1):
    wait_until(lambda: threading.active_count() <= threads)
    hold_for(0.1, "gRPC's own threads, which Python does not count, wait")
    pipes = [os.pipe() for _ in range(2)]
    for _, write in pipes:
        if ctypes.PyDLL(None).fork() == 0:
            signal.alarm(15)
            with os.fdopen(write, "w") as file:
                file.write(json.dumps(given(function)))
            os._exit(0)
        os.close(write)
    by_parent = given(function)
    by_children = [json.loads(os.fdopen(read).read() or "null") for read, _ in pipes]
    print(json.dumps([before, by_parent, *by_children]))
    sys.stdout.flush()
    os._exit(0)
"""

WAYS = ["page", "process id"]


def run(server: FakeServer, script: str, way: str = "page", *, fork_support: bool = True) -> list[Any]:
    """Return the values before the fork, of the parent after it, and of each child."""
    env = os.environ | {
        "GRPC_ENABLE_FORK_SUPPORT": str(int(fork_support)),
        "GRPC_VERBOSITY": "NONE",
        "IDALLOC_SERVER": server.target,
    }
    command = [sys.executable, "-c", FORK + script, server.target, way]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=50)
    assert done.stdout, done.stderr
    given: list[Any] = json.loads(done.stdout)
    return given


def all_different(given: list[Any]) -> bool:
    values = [value for each in given for value in each]
    assert all(isinstance(value, int) for value in values), [value for value in values if isinstance(value, str)]
    return len(set(values)) == len(values)


# After 2,000 ids a range has some hundred ids, most of which are prefetched.
IDS = """
ids = idalloc.Client(target).ids("orders")
loop = iter(ids)
before += islice(loop, 2000)
fork(lambda: chain((next(ids) for _ in range(500)), islice(loop, 500)))
"""

PREFETCHED = """
ids = idalloc.Client(target).ids("orders")
loop = iter(ids)
before += islice(loop, 2000)
while ids._refills.current is None:
    before.append(next(loop))
wait_until(lambda: ids._refills.current.attempts.open[0].has_ended)
fork(lambda: islice(loop, 3000))
"""

DEFAULT = """
from idalloc.ext.sqlalchemy import idalloc_default
default = idalloc_default("orders")
before += [default() for _ in range(2000)]
fork(lambda: (default() for _ in range(1000)))
"""

STREAM = """
stream = idalloc.Client(target).stream_ranges("orders", 500, 10)
before += next(stream)
fork(lambda: chain.from_iterable(stream), threads=2)
"""

# A thread of the stream waits in gRPC, and takes the GIL each 0.1 s: it might do so at the fork.
REQUESTS = """
import grpc
grpc._common.MAXIMUM_WAIT_TIMEOUT = 5
stream = idalloc.Client(target).allocate_stream()
before += stream.allocate_range("orders", 10)
fork(lambda: (value for _ in range(50) for value in stream.allocate_range("orders", 10)), threads=4)
"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "script", [IDS, PREFETCHED, DEFAULT, STREAM, REQUESTS], ids=["ids", "coming", "default", "stream", "requests"]
)
def test_a_c_fork_returns_ids_of_its_own(server: FakeServer, script: str, way: str) -> None:
    """P8: the child of a fork that bypasses Python never returns its parent's ids."""
    given = run(server, script, way)
    assert all_different(given)
    assert all(len(each) >= 490 for each in given[1:])


@pytest.mark.parametrize("way", WAYS)
def test_a_c_fork_without_grpcs_support_raises(server: FakeServer, way: str) -> None:
    """P8: if gRPC does not survive the fork, the child gets an error and no prefetched id."""
    before, parent, *children = run(server, IDS, way, fork_support=False)
    assert all_different([before, parent])
    for [refusal] in children:
        assert refusal.startswith("RuntimeError: ")
        assert "GRPC_ENABLE_FORK_SUPPORT=1" in refusal


WARM_LOOP = """
client = idalloc.aio.Client(target)
loop = asyncio.new_event_loop()
parent = os.getpid()

async def one():
    return await anext(source)

def go_on():
    own = loop if os.getpid() == parent else asyncio.new_event_loop()
    for _ in range(40):
        yield own.run_until_complete(one())
"""

AIO_IDS = """
source = client.ids("orders")
before += (loop.run_until_complete(one()) for _ in range(2000))
fork(go_on, threads=2)
"""

AIO_STREAM = """
source = client.stream_ranges("orders", 500, 10)
before += loop.run_until_complete(one())
fork(lambda: chain.from_iterable(go_on()), threads=2)
"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("script", [AIO_IDS, AIO_STREAM], ids=["ids", "stream"])
def test_a_c_fork_of_asyncio_raises(server: FakeServer, script: str, way: str) -> None:
    """P8: an asyncio client returns no id of the parent in the child; its error says why."""
    before, parent, *children = run(server, WARM_LOOP + script, way)
    assert all_different([before, parent])
    for [refusal] in children:
        assert refusal.startswith("RuntimeError: ")
        assert "asyncio" in refusal


LOGGED = """
client = idalloc.Client(target, log=sys.argv[2] + ".jsonl")
before += client.allocate_range("orders", 10)
fork(lambda: client.allocate_range("orders", 10))
"""


def test_a_c_fork_writes_a_log_of_its_own(server: FakeServer, tmp_path: Path) -> None:
    """P8: the child writes nothing into its parent's log."""
    given = run(server, LOGGED, str(tmp_path / "issued"))
    assert all_different(given)
    logs = sorted(path.read_text().splitlines()[1:] for path in tmp_path.glob("issued.jsonl*"))
    assert sorted(json.loads(line)["first"] for lines in logs for line in lines) == sorted(each[0] for each in given)
    assert sorted(map(len, logs)) == [1, 1, 2]
