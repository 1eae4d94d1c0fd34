"""A program whose client is warm when it forks; all of its processes then go on taking ids, each as if it were alone.

python -m tests.faults.forking '{"how": "os.fork", "target": "127.0.0.1:50051", "log": "ids.jsonl", "given": "given"}'

What a process was really given it writes to GIVEN.PID: a line of JSON for each few ids, or for why there were none. So
one that gives ids out of another one's ranges is seen, also where its log does not tell of them.
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

# A child that hangs is ended by itself; and by its parent, where gRPC does not let it come that far.
CHILD_SECONDS = 120
# How many ids make a client's ranges so large that much is at hand when it forks.
WARM = 3000

WISHES: dict[str, Any] = {
    "how": "os.fork",  # or fork, forkserver, spawn, those of multiprocessing; or prefork
    "target": "",
    "log": "",
    "given": "",
    "children": 2,
    "turns": 5,
    "threads": 0,  # how many threads take ids while it forks
    "patience": 150.0,  # how long children may take, in seconds
}


class Taker:
    """Takes ids in every way that keeps some at hand, and writes down what it was given."""

    def __init__(self, target: str, log: str, given: str) -> None:
        self._given = given
        self.client = idalloc.Client(target, timeout=10, log=log)
        self._ids = self.client.ids("orders")
        self._begin()
        self._ways: list[Callable[[], list[int] | list[str]]] = [
            lambda: list(next(self._stream)),
            lambda: [next(self._ids) for _ in range(50)],
            lambda: list(islice(self._loop, 50)),
            lambda: list(self.client.allocate_range("orders", 10)),
            lambda: self.client.doc_ids(10),
        ]

    def warm(self) -> None:
        """Has much at hand, an open stream, and a range that was asked for ahead."""
        self._write(list(islice(self._loop, WARM)))
        self.take()
        while self._ids._prefetch is None:
            self._write([next(self._loop)])

    def take(self, turns: int = 1) -> None:
        """Takes ids in each way."""
        for way in self._ways * turns:
            self._take(way)

    def take_beside(self) -> None:
        """Takes ids in the ways that threads may share: a stream is for one."""
        for way in self._ways[1:]:
            self._take(way)

    def end(self) -> None:
        """Writes that it came to its end."""
        self._write("end")

    def _take(self, way: Callable[[], list[int] | list[str]]) -> None:
        try:
            self._write(way())
        except (RuntimeError, idalloc.IdallocError) as error:
            self._write(f"{type(error).__name__}: {error}")
            self._begin()  # an iterator that failed has ended

    def _begin(self) -> None:
        self._loop = iter(self._ids)
        self._stream = self.client.stream_ranges("orders", 10**9, 10)

    def _write(self, what: list[int] | list[str] | str) -> None:
        # Opened for each line: no descriptor is shared with the child of a fork.
        file = os.open(f"{self._given}.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, json.dumps(what).encode() + b"\n")
        os.close(file)


def work(taker: Taker, turns: int) -> None:
    """What a child does."""
    signal.alarm(CHILD_SECONDS)
    taker.take(turns)
    taker.end()


def work_alone(target: str, log: str, given: str, turns: int) -> None:
    """What a child does that has no client of its parent's."""
    work(Taker(target, f"{log}.{os.getpid()}.jsonl", given), turns)


def fork(job: Callable[[], None]) -> int:
    """Runs a job in the child of a fork, which ends with it."""
    if pid := os.fork():
        return pid
    try:
        job()
    finally:
        os._exit(0)


def serve_before_and_after_fork(taker: Taker, wishes: dict[str, Any]) -> None:
    """Keeps so many children as a server does that loads the application first: one that dies is replaced.

    Until SIGTERM, which its children get, too.
    """
    over = threading.Event()

    def serve() -> None:
        ending = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
        while not ending.is_set():
            signal.alarm(CHILD_SECONDS)
            taker.take()
        taker.end()

    signal.signal(signal.SIGTERM, lambda *_: over.set())
    children: set[int] = set()
    while not over.is_set():
        while len(children) < wishes["children"]:
            children.add(fork(serve))
        taker.take()
        while (gone := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            children.discard(gone)
    for child in children:
        os.kill(child, signal.SIGTERM)
    for child in children:
        os.waitpid(child, 0)


def end_all(pids: list[int], patience: float) -> None:
    """Waits for children, and ends those that hang."""
    deadline = time.monotonic() + patience
    for pid in pids:
        while not (gone := os.waitpid(pid, os.WNOHANG)[0]) and time.monotonic() < deadline:
            time.sleep(0.02)
        if not gone:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(wishes: dict[str, Any]) -> None:
    """Forks in the way that is asked for."""
    shared = (wishes["target"], wishes["log"], wishes["given"])
    taker = Taker(*shared)
    taker.warm()
    over = threading.Event()

    def take_meanwhile() -> None:
        while not over.is_set():
            taker.take_beside()

    threads = [threading.Thread(target=take_meanwhile) for _ in range(wishes["threads"])]
    for thread in threads:
        thread.start()

    if wishes["how"] == "prefork":
        serve_before_and_after_fork(taker, wishes)
    elif wishes["how"] == "os.fork":
        pids = [fork(lambda: work(taker, wishes["turns"])) for _ in range(wishes["children"])]
        taker.take(wishes["turns"])
        end_all(pids, wishes["patience"])
    else:
        context: Any = multiprocessing.get_context(wishes["how"])
        job = (work, (taker, wishes["turns"])) if wishes["how"] == "fork" else (work_alone, (*shared, wishes["turns"]))
        children = [context.Process(target=job[0], args=job[1]) for _ in range(wishes["children"])]
        for child in children:
            child.start()
        taker.take(wishes["turns"])
        for child in children:
            child.join()
    over.set()
    for thread in threads:
        thread.join()
    taker.take(wishes["turns"])
    taker.end()


def read(given: Path) -> dict[int, list[Any]]:
    """Returns what the processes were given, by process id: lists of ids, and texts.

    Args:
        given: What the program was told.
    """
    found = {}
    for file in sorted(given.parent.glob(f"{given.name}.*")):
        whole = file.read_text().rpartition("\n")[0]
        found[int(file.name.rpartition(".")[2])] = [json.loads(line) for line in whole.splitlines()]
    return found


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    if unknown := told.keys() - WISHES.keys():
        raise SystemExit(f"unknown wishes: {', '.join(unknown)}")
    main(WISHES | told)
