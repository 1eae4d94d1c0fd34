"""A steady caller under an attack over TLS: its latencies, and the servers' memory."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from idalloc.v1 import id_allocator_pb2 as pb
from tests.support.faults.resources import read_resources
from tests.support.identities import TOKENS, bearer
from tests.support.processes import environment
from tests.support.proxy import secure_channel
from tests.support.server_calls import id_allocator

# What both processes may take, and the steady caller's p99 on a busy machine. On a quiet one it is
# below 250 ms.
MAX_MB, MAX_P99_MS = 400, 1_000
# Each is made by a program of its own: tests/support/faults/attacks.py.
_FLOOD = {"attack": "flood", "number": 10_000, "seconds": 5, "concurrency": 4}
ATTACKS: dict[str, dict[str, Any]] = {
    "gzip_bombs": {"attack": "gzip_bombs", "number": 32},
    "unknown_methods": _FLOOD | {"kind": "unknown_methods"},
    "rapid_resets": _FLOOD | {"kind": "rapid_resets"},
    "continuations": _FLOOD | {"kind": "continuations"},
    "calls_without_a_token": _FLOOD | {"kind": "calls"},
    "rejected_calls": _FLOOD | {"kind": "rejected_calls"},
    "unread_streams": {"attack": "slow_readers", "number": 80},
}
# Attacks on servers that authenticate.
UNAUTHENTICATED = ("calls_without_a_token", "rejected_calls")
# A call every 20 ms.
PAUSE_SECONDS, MIN_CALLS = 0.02, 250


class Measured(NamedTuple):
    """What an attack cost."""

    p99: float  # the steady caller's p99, in milliseconds
    memory: float  # the most memory of the processes together, in MB
    seen: Counter[str]  # the outcomes that the attack counted


def write_access(folder: Path) -> Path:
    """Write an access file with the identity of the steady caller, and return it."""
    file = folder / "access.toml"
    digest = sha256(TOKENS["allocate"].encode()).hexdigest()
    file.write_text(f'[[identity]]\nname = "steady"\ntoken_sha256 = ["{digest}"]\nallocate = ["*"]\n')
    return file


def attack(name: str, address: str, tls: Path, pids: Iterable[int]) -> Measured:
    """Attack an address while a steady caller uses it; each of its calls must succeed.

    Args:
        name: A key of ``ATTACKS``.
        address: The address.
        tls: The folder with a client's certificate: ca.pem, client.pem and client.key.
        pids: The processes whose memory counts.
    """
    command = {"target": address, "tls": str(tls)} | ATTACKS[name]
    latencies: list[float] = []
    memory, seen, pause = 0.0, Counter[str](), threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.faults.attacks", json.dumps(command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout
    out = process.stdout
    complete = threading.Thread(target=lambda: seen.update(json.loads(out.readline())))
    with process, secure_channel(address, tls) as channel:
        complete.start()
        try:
            while complete.is_alive() or len(latencies) < MIN_CALLS:
                began = time.perf_counter()
                request = pb.AllocateRangeRequest(sequence="steady")
                id_allocator(channel).AllocateRange(request, timeout=30, metadata=bearer("allocate"))
                latencies.append(time.perf_counter() - began)
                memory = max(memory, sum(read_resources(pid).memory for pid in pids))
                pause.wait(PAUSE_SECONDS)
        finally:
            process.kill()
            complete.join()
    return Measured(sorted(latencies)[int(len(latencies) * 0.99)] * 1e3, memory, seen)
