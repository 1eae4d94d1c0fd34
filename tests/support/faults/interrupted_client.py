"""A program whose signal handler raises inside the client's code, and which goes on allocating.

python -m tests.support.faults.interrupted_client '{"target": "127.0.0.1:50051", "log": "ids.jsonl",
"signals": 2000, "seed": 1}'

After each exception it allocates ids by each method without a signal, which must succeed. It prints
as JSON: delivered signals, ids received, repeated ids, other errors during signals, errors after
them, and the longest time of one method after a signal, in seconds.
"""

import faulthandler
import json
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from google.protobuf.duration_pb2 import Duration

import idalloc
from idalloc._core import pool
from idalloc.v1 import id_allocator_pb2 as pb

# After this time, in seconds, a program that hangs prints its stack and ends.
PATIENCE = 60.0


class SignalError(Exception):
    """Raised by the signal handler."""


class SignalTimer:
    """Raises ``SignalError`` once from a signal handler, unless it is disarmed before."""

    def __init__(self) -> None:
        self.armed = False  # whether the handler raises
        self.delivered = 0  # how often it raised
        signal.signal(signal.SIGALRM, self._interrupt)

    def start(self, seconds: float) -> None:
        """Arm the timer."""
        self.armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _interrupt(self, *_: object) -> None:
        if self.armed:
            self.armed = False
            self.delivered += 1
            raise SignalError


class InMemoryStub:
    """A stub that answers at once, without gRPC, so that most signals hit the client's own code."""

    def __init__(self) -> None:
        self._last = 0

    def rpc(self, _: pb.AllocateRangeRequest) -> "InMemoryStub":
        return self

    def future(self, request: pb.AllocateRangeRequest, **_: object) -> "CompletedCall":
        count = request.id_count
        self._last += count
        ids = pb.IdRange(first_id=self._last - count + 1, last_id=self._last, step=1, id_count=count)
        return CompletedCall(pb.AllocateRangeResponse(range=ids, ttl=Duration(seconds=60)))


@dataclass(eq=False)
class CompletedCall:
    """A completed call."""

    response: pb.AllocateRangeResponse

    def result(self, timeout: float | None = None) -> pb.AllocateRangeResponse:
        return self.response

    def add_done_callback(self, done: Callable[["CompletedCall"], object]) -> None:
        done(self)


Methods = list[Callable[[], None]]


def methods_of(client: idalloc.Client, taken: list[int], *, has_server: bool) -> tuple[Methods, Methods]:
    """Return functions that add ids to ``taken``: to interrupt, and to call after an exception."""
    ids = client.ids("orders")
    requests = client.allocate_stream()

    def over_stream() -> None:
        taken.extend(requests.allocate_range("orders", 10))

    def one_by_one() -> None:
        for _ in range(50):
            taken.append(next(ids))  # noqa: PERF401 - as in loop()

    def loop() -> None:
        for value in islice(ids, 50):
            taken.append(value)  # noqa: PERF402 - keeps the ids before an exception

    def stream() -> None:
        for each in client.stream_ranges("orders", 30, 10):
            taken.extend(each)

    def call() -> None:
        taken.extend(client.allocate_range("orders", 10))

    server_methods: Methods = [stream, call, over_stream] * has_server
    return [one_by_one, loop] * 6 + server_methods, [lambda: taken.append(next(ids)), *server_methods]


def main(target: str, log: str, signals: int, seed: int) -> None:
    """Allocate ids by several methods until ``signals`` came; without a target, from memory."""
    chance = random.Random(seed)
    shortest, longest = (20e-6, 4e-3) if target else (5e-6, 300e-6)
    client = idalloc.Client(target or "memory:1", timeout=10, log=log)
    if not target:
        memory = InMemoryStub()
        pool.MAX_RANGE_SIZE = 16  # frequent refills
        for each in client._connections:
            each._open_stubs = lambda: memory  # type: ignore[assignment,return-value]
    taken: list[int] = []
    methods, probes = methods_of(client, taken, has_server=bool(target))
    # The client leaves the channel of an interrupted call open.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    timer = SignalTimer()
    seen: set[int] = set()
    twice: list[int] = []
    errors, errors_after = Counter[str](), Counter[str]()
    slowest = 0.0
    while timer.delivered < signals:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        method = chance.choice(methods)
        before = timer.delivered
        try:
            timer.start(chance.uniform(shortest, longest))
            method()
            timer.armed = False
        except SignalError:
            pass
        except Exception as error:  # the signal hit gRPC's or threading's code
            timer.armed = False
            errors[f"{type(error).__name__}: {error}"[:200]] += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        for probe in probes * (timer.delivered > before):
            begun = time.monotonic()
            try:
                probe()
            except Exception as error:
                errors_after[f"{type(error).__name__}: {error}"[:200]] += 1
            slowest = max(slowest, time.monotonic() - begun)
        twice += seen.intersection(taken)
        twice += (value for value, count in Counter(taken).items() if count > 1)
        seen.update(taken)
        taken.clear()
    faulthandler.cancel_dump_traceback_later()
    found = {"signals": timer.delivered, "ids": len(seen), "twice": twice}
    print(json.dumps(found | {"errors": errors, "errors_after": errors_after, "slowest": slowest}))


if __name__ == "__main__":
    options: dict[str, Any] = json.loads(sys.argv[1])
    main(**options)
