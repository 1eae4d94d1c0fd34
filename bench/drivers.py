"""Load drivers: ghz or `idalloc bench` for unary gRPC, and loops in Python."""

import json
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.turns import Turn, percentile

CONNECTIONS = 8
UNARY_DRIVER = "ghz" if shutil.which("ghz") else "idalloc bench"


def unary(
    address: str, seconds: float, in_flight: int, sequence: str = "bench", connections: int = CONNECTIONS, rps: int = 0
) -> Turn:
    """Drive AllocateRange with one id a call.

    Args:
        address: The server's address.
        seconds: The duration.
        in_flight: The number of concurrent calls.
        sequence: The sequence's name.
        connections: The maximum number of connections.
        rps: Calls a second; 0 for the maximum. Only ghz supports it.
    """
    connections = min(connections, in_flight)
    length = f"{round(seconds * 1000)}ms"
    if UNARY_DRIVER == "ghz":
        command = [
            "ghz",
            "--config=examples/ghz/allocate_range_flat.json",
            "--proto=protos/idalloc/v1/id_allocator.proto",  # the no-op server has no reflection
            "--import-paths=protos,third_party/googleapis",
            f"--data={json.dumps({'sequence': sequence})}",
            f"--duration={length}",
            "--duration-stop=wait",
            f"--concurrency={in_flight}",
            f"--connections={connections}",
            f"--rps={rps}",
            "--format=json",
            address,
        ]
    elif rps:
        raise RuntimeError("a steady rate needs ghz on the PATH")
    else:
        command = [
            str(Path(sys.executable).with_name("idalloc")),
            "bench",
            f"--sequence={sequence}",
            f"--duration={length}",
            "--warm-up=0s",
            f"--concurrency={in_flight}",
            f"--connections={connections}",
            f"--server={address}",
            "--json",
        ]
    output, cpu = run(command, seconds)
    return read_ghz(output, cpu)


def read_ghz(output: str, cpu: float) -> Turn:
    """Return the turn of a ghz report with calls for one id each.

    Raises:
        RuntimeError: A call failed.
    """
    report = json.loads(output)
    if set(report["statusCodeDistribution"]) != {"OK"}:
        raise RuntimeError(f"calls failed: {report['statusCodeDistribution']}")
    latencies = {each["percentage"]: each["latency"] / 1e9 for each in report["latencyDistribution"]}
    calls = report["count"]
    return Turn(calls, calls, report["total"] / 1e9, latencies.get(50), latencies.get(99), cpu)


def run(command: list[str], seconds: float) -> tuple[str, float]:
    """Run a load generator; return its output and its CPU seconds.

    Raises:
        RuntimeError: It failed.
    """
    before = _children_cpu()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout, _children_cpu() - before


def loop(take: Callable[[], int], seconds: float, calls: int = 1) -> Turn:
    """Take ids repeatedly in this thread.

    Args:
        take: Takes ids and returns their number.
        seconds: The duration.
        calls: How many calls ``take`` makes; 0 if unknown.
    """
    return in_threads([take], seconds, calls)


def in_threads(takes: list[Callable[[], int]], seconds: float, calls: int = 1) -> Turn:
    """Take ids repeatedly in one thread per function.

    With several threads, calls that end after ``seconds`` do not count: a pausing thread would
    lengthen the time.
    """
    latencies: list[float] = []
    alone = len(takes) == 1
    ids = [0] * len(takes)
    ready = threading.Barrier(len(takes))

    def work(number: int) -> None:
        take, own, count = takes[number], [], 0
        ready.wait()
        until = time.perf_counter() + seconds
        while (before := time.perf_counter()) < until:
            received = take()
            after = time.perf_counter()
            if alone or after <= until:
                count += received
                own.append(after - before)
        ids[number] = count
        latencies.extend(own)

    cpu, began = time.process_time(), time.perf_counter()
    if alone:
        work(0)
    else:
        with ThreadPoolExecutor(len(takes)) as threads:
            list(threads.map(work, range(len(takes))))
    elapsed = time.perf_counter() - began if alone else seconds
    cpu = time.process_time() - cpu
    p50, p99 = (percentile(latencies, each) if calls else None for each in (50, 99))
    longest = max(latencies, default=None) if calls else None
    return Turn(len(latencies) * calls, sum(ids), elapsed, p50, p99, cpu, longest=longest)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
