"""Measures a flood: steady callers and probes meanwhile, and the server's highest usage."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.floods.callers import CALL_SECONDS, Observed
from tests.floods.flooder import STRANGERS
from tests.floods.targets import KINDS, Target
from tests.support.processes import environment

CALLERS_ADDRESS = "127.0.0.1"
P99_GOAL_MS = 250
_SAMPLE_SECONDS, _END_SECONDS = 0.1, 30.0


class Result(NamedTuple):
    """What a flood cost."""

    flood: str  # its name; empty without a flood
    callers: dict[str, Observed]  # what each caller saw, by name
    probes: Observed  # what the probes saw
    descriptors: int  # the most open descriptors of the server
    memory_mb: float  # the most resident memory of the server, in MB
    cpu: float  # the share of one core that the server used
    # The seconds in which a thread of the server could have run, and other work had the cores.
    waited: float
    sent: Counter[str]  # the counts of the flooder
    has_ended: bool = False  # whether a process of the server ended

    @property
    def p99_ms(self) -> float:
        """The highest p99 of a caller."""
        return max(each.p99_ms for each in self.callers.values())

    def misses(self, p99_goal_ms: float = P99_GOAL_MS) -> list[str]:
        """Return which goals were missed, with their figures."""
        found = [f"{name}: {dict(each.errors)}" for name, each in self.callers.items() if each.errors]
        found += [
            f"{name}: p99 {each.p99_ms:.0f} ms" for name, each in self.callers.items() if each.p99_ms >= p99_goal_ms
        ]
        if self.probes.errors:
            found.append(f"probes: {dict(self.probes.errors)}")
        if self.has_ended:
            found.append("the server ended")
        return found


def measure(target: Target, kind: str, flood: str, seconds: float, *, same_address: bool = False) -> Result:
    """Flood a target while its callers call.

    Args:
        kind: A key of ``KINDS``.
        flood: The flood; empty for none.
        same_address: Whether the flooder has the callers' address.
    """
    options = {
        "protocol": KINDS[kind].protocol,
        "flood": flood,
        "address": target.address,
        "seconds": seconds,
        "sources": [CALLERS_ADDRESS] if same_address else STRANGERS,
        "tls": str(target.tls) if target.tls else "",
        "tokens": dict(target.guests),
    }
    with ExitStack() as stack:
        programs = [("callers", target.callers | {"seconds": seconds})] + [("flooder", options)] * bool(flood)
        # All have started before any is measured.
        calling, *flooding = [
            stack.enter_context(_program(f"{KINDS[kind].package}.{name}", each)) for name, each in programs
        ]
        with _used(target.pids) as used:
            for each in (*flooding, calling):
                assert each.stdin
                each.stdin.write("\n")
                each.stdin.flush()
            found = json.loads(_output(calling, seconds))
            sent = Counter[str]()
            for each in flooding:
                sent.update(json.loads(_output(each, seconds)))
    seen = {name: Observed(each["latencies"], Counter(each["errors"])) for name, each in found.items()}
    probes = seen.pop("probes")
    return Result(flood, seen, probes, used.descriptors, used.memory_mb, used.cpu, used.waited, sent, used.has_ended)


@contextmanager
def _program(module: str, options: dict[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    """Run a program, wait until it is ready, and kill it at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    with process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n", f"{module} did not start"
            yield process
        finally:
            process.kill()


def _output(process: "subprocess.Popen[str]", seconds: float) -> str:
    out, _ = process.communicate(timeout=seconds + CALL_SECONDS + _END_SECONDS)
    assert process.returncode == 0, process.args
    return out


@dataclass
class _Used:
    """What processes used together; complete at the end of the block."""

    descriptors: int = 0  # the most open descriptors
    memory_mb: float = 0.0  # the sum of the peaks of their memory, in MB
    cpu: float = 0.0  # the share of one core that they used
    waited: float = 0.0  # the seconds that their threads waited for a core, at most
    has_ended: bool = False  # whether one of them ended


@contextmanager
def _used(pids: list[int]) -> Iterator[_Used]:
    """Measure processes until the end of the block."""
    used, stop = _Used(), threading.Event()

    def sample() -> None:
        while not stop.wait(_SAMPLE_SECONDS):
            with suppress(OSError):
                now = sum(len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in pids)
                used.descriptors = max(used.descriptors, now)

    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    began, before, waited = time.monotonic(), sum(map(_cpu_seconds, pids)), _waits(pids)
    sampling = threading.Thread(target=sample)
    sampling.start()
    try:
        yield used
    finally:
        stop.set()
        sampling.join()
        used.cpu = max(0.0, sum(map(_cpu_seconds, pids)) - before) / (time.monotonic() - began)
        used.waited = max((each - waited.get(thread, 0.0) for thread, each in _waits(pids).items()), default=0.0)
        peaks = [_peak_mb(pid) for pid in pids]
        used.memory_mb, used.has_ended = sum(peaks), not all(peaks)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process; 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _waits(pids: list[int]) -> dict[Path, float]:
    """Return how many seconds each thread of the processes has waited for a core so far."""
    found = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                found[file] = int(file.read_text().split()[1]) / 1e9
    return found


def _peak_mb(pid: int) -> float:
    """Return the peak of a process's memory since ``clear_refs``; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0
