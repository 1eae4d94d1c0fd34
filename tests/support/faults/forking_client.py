"""A program that forks while its client holds ids; then parent and children continue to allocate.

python -m tests.support.faults.forking_client '{"how": "os.fork", "target": "127.0.0.1:50051",
"log": "ids.jsonl", "received": "received"}'

Each process writes the ids that it received to RECEIVED.PID, a JSON list or an error message per
line. So a test sees ids of another process's ranges even if the log of issued ids does not have
them.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import idalloc
from tests.support.waiting import hold_for

# A child that hangs ends by an alarm after this time, in seconds.
CHILD_SECONDS = 120
# After this many ids the client's prefetched ranges are large.
WARM_UP_IDS = 3000

DEFAULT_OPTIONS: dict[str, Any] = {
    "how": "os.fork",  # or fork, forkserver, spawn (of multiprocessing), or prefork
    "target": "",
    "log": "",
    "received": "",
    "children": 2,
    "turns": 5,
    "threads": 0,  # threads that allocate during the fork
    "patience": 150.0,  # how long children may run, in seconds
}


class IdTaker:
    """Allocates ids by every method that prefetches, and records the ids that it received."""

    def __init__(self, target: str, log: str, received: str) -> None:
        self._received = received
        self.client = idalloc.Client(target, timeout=10, log=log)
        self._ids = self.client.ids("orders")
        self._requests = self.client.allocate_stream()
        self._begin()
        self._methods: list[Callable[[], list[int] | list[str]]] = [
            lambda: list(next(self._stream)),
            lambda: [next(self._ids) for _ in range(50)],
            lambda: list(islice(self._loop, 50)),
            lambda: list(self.client.allocate_range("orders", 10)),
            lambda: list(self._requests.allocate_range("orders", 10)),
            lambda: self.client.doc_ids(10),
        ]

    def warm(self) -> None:
        """Prefetch many ids, open a stream, and leave a prefetch request pending."""
        self._write(list(islice(self._loop, WARM_UP_IDS)))
        self.take()
        while self._ids._refills.current is None:
            self._write([next(self._loop)])

    def take(self, turns: int = 1) -> None:
        """Allocate ids by each method."""
        for method in self._methods * turns:
            self._take(method)

    def take_in_thread(self) -> None:
        """Allocate ids by each method that is safe for threads: all but the stream."""
        for method in self._methods[1:]:
            self._take(method)

    def end(self) -> None:
        """Record a regular end."""
        self._write("end")

    def _take(self, method: Callable[[], list[int] | list[str]]) -> None:
        try:
            self._write(method())
        except (RuntimeError, idalloc.IdallocError) as error:
            self._write(f"{type(error).__name__}: {error}")
            self._begin()  # an iterator that failed has ended

    def _begin(self) -> None:
        self._loop = iter(self._ids)
        self._stream = self.client.stream_ranges("orders", 10**9, 10)

    def _write(self, what: list[int] | list[str] | str) -> None:
        # Opened for each line, so that a child inherits no descriptor.
        file = os.open(f"{self._received}.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, json.dumps(what).encode() + b"\n")
        os.close(file)


def work(taker: IdTaker, turns: int) -> None:
    """Run a child with the inherited client."""
    signal.alarm(CHILD_SECONDS)
    taker.take(turns)
    taker.end()


def work_with_new_client(target: str, log: str, received: str, turns: int) -> None:
    """Run a child that inherits no client."""
    work(IdTaker(target, f"{log}.{os.getpid()}.jsonl", received), turns)


def fork(job: Callable[[], None]) -> int:
    """Run a job in a forked child, and return the child's process id."""
    if pid := os.fork():
        return pid
    try:
        job()
    finally:
        os._exit(0)


def serve_before_and_after_fork(taker: IdTaker, options: dict[str, Any]) -> None:
    """Run a prefork server: fork workers after loading the application; replace the dead ones.

    Ends after SIGTERM, which it sends to its children, too.
    """
    stopped = threading.Event()

    def serve() -> None:
        ending = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
        while not ending.is_set():
            signal.alarm(CHILD_SECONDS)
            taker.take()
        taker.end()

    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    children: set[int] = set()
    while not stopped.is_set():
        while len(children) < options["children"]:
            children.add(fork(serve))
        taker.take()
        while (gone := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            children.discard(gone)
    for child in children:
        os.kill(child, signal.SIGTERM)
    for child in children:
        os.waitpid(child, 0)


def end_all(pids: list[int], patience: float) -> None:
    """Wait for children, and kill those that run longer than ``patience`` seconds."""
    deadline = time.monotonic() + patience
    for pid in pids:
        gone = 0
        while not (gone := os.waitpid(pid, os.WNOHANG)[0]) and time.monotonic() < deadline:
            hold_for(0.02, "before the next look at the child")
        if not gone:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(options: dict[str, Any]) -> None:
    """Fork as the options say."""
    shared = (options["target"], options["log"], options["received"])
    taker = IdTaker(*shared)
    taker.warm()
    stopped = threading.Event()

    def take_in_thread() -> None:
        while not stopped.is_set():
            taker.take_in_thread()

    threads = [threading.Thread(target=take_in_thread) for _ in range(options["threads"])]
    for thread in threads:
        thread.start()

    if options["how"] == "prefork":
        serve_before_and_after_fork(taker, options)
    elif options["how"] == "os.fork":
        pids = [fork(lambda: work(taker, options["turns"])) for _ in range(options["children"])]
        taker.take(options["turns"])
        end_all(pids, options["patience"])
    else:
        context: Any = multiprocessing.get_context(options["how"])
        job = (
            (work, (taker, options["turns"]))
            if options["how"] == "fork"
            else (work_with_new_client, (*shared, options["turns"]))
        )
        children = [context.Process(target=job[0], args=job[1]) for _ in range(options["children"])]
        for child in children:
            child.start()
        taker.take(options["turns"])
        for child in children:
            child.join()
    stopped.set()
    for thread in threads:
        thread.join()
    taker.take(options["turns"])
    taker.end()


def read_received(received: Path) -> dict[int, list[Any]]:
    """Return the records of each process, by process id: lists of ids, and messages.

    Args:
        received: The option of this name.
    """
    found = {}
    for file in sorted(received.parent.glob(f"{received.name}.*")):
        whole = file.read_text().rpartition("\n")[0]
        found[int(file.name.rpartition(".")[2])] = [json.loads(line) for line in whole.splitlines()]
    return found


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if unknown := chosen.keys() - DEFAULT_OPTIONS.keys():
        raise SystemExit(f"unknown options: {', '.join(unknown)}")
    main(DEFAULT_OPTIONS | chosen)
