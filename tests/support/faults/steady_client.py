"""A client that makes calls of each kind at a steady rate, and logs each call with its result.

python -m tests.support.faults.steady_client '{"target": "127.0.0.1:1", "log": "ids.log", "pause":
0.1, "timeout": 120}'

It ends after SIGTERM, and prints a `Summary` of ``tests/support/faults/scenario.py`` as JSON. A
call is a line of the file `calls-LOG`: the kind, when it was sent and when it ended (in nanoseconds
of the boot clock), and the reason of its error.
"""

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import IO, Any

import grpc

import idalloc
from idalloc._issued_log.log import IssuedLog
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.support.faults.issued_ranges import boot_time_ns
from tests.support.faults.steady_callers import BATCH, BATCHES, FORMATTED, KINDS, MANY, ONE, SIZES, TEN, TEXTS


class BatchError(Exception):
    """A result of a batch that is an error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Batches:
    """Makes calls of ``BatchAllocateRanges``, which the SDK does not have."""

    def __init__(self, target: str, log: str, timeout: float) -> None:
        # ``Scenario.verify`` reads this log beside that of the client.
        self._log = IssuedLog(f"{log}.batches")
        self._stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(grpc.insecure_channel(target))
        self._timeout = timeout
        self._requests = [pb.AllocateRangeRequest(sequence=KINDS[BATCHES], id_count=count) for count in BATCH]

    def call(self) -> int:
        """Make one call; return the number of ids."""
        asked, batch = self._log.now(), pb.BatchAllocateRangesRequest(requests=self._requests)
        try:
            results = self._stub.BatchAllocateRanges(batch, timeout=self._timeout).results
        except grpc.RpcError as error:
            raise BatchError(error.code().name) from error
        for request, result in zip(self._requests, results, strict=True):
            if not result.HasField("response"):
                raise BatchError(result.error.message)
            self._log.range(request, result.response, asked)
        return sum(BATCH)


def main(options: dict[str, Any]) -> None:
    """Make calls of each kind until SIGTERM, then print the report."""
    stopped, lock = threading.Event(), threading.Lock()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    target, log, timeout = options["target"], options["log"], options["timeout"]

    def repeat(kind: str, call: Callable[[], int], calls: IO[str]) -> None:
        while not stopped.is_set():
            asked, reason = boot_time_ns(), ""
            try:
                ids = call()
            except (idalloc.IdallocError, BatchError) as error:
                ids, reason = 0, error.reason
            with lock:
                print(json.dumps([kind, asked, boot_time_ns(), reason]), file=calls, flush=True)
                done["calls"] += not reason
                done["ids"] += ids
                if reason:
                    errors[reason] += 1
                    messages.setdefault(reason, f"{kind}: {reason}")
            stopped.wait(options["pause"])

    path = Path(log)
    with (
        idalloc.Client(target, timeout=timeout, log=log) as client,
        path.with_name(f"calls-{path.name}").open("a") as calls,
    ):
        sizes = cycle(SIZES)
        make: dict[str, Callable[[], int]] = {
            ONE: lambda: len(client.allocate_range(KINDS[ONE], 1)),
            TEN: lambda: len(client.allocate_range(KINDS[TEN], 10)),
            MANY: lambda: len(client.allocate_range(KINDS[MANY], next(sizes))),
            BATCHES: Batches(target, log, timeout).call,
            FORMATTED: lambda: len(client.allocate_range(KINDS[FORMATTED], TEXTS, texts=True).texts),
        }
        threads = [threading.Thread(target=repeat, args=[kind, call, calls]) for kind, call in make.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # Python handles no signal during a join without a timeout
                thread.join(0.1)
    print(json.dumps({"calls": done["calls"], "ids": done["ids"], "errors": errors, "messages": messages}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
