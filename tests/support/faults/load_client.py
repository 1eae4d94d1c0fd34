"""A load client: allocates ids in several threads, logs them, and reports its totals at the end.

python -m tests.support.faults.load_client '{"target": "127.0.0.1:50051", "log": "ids.log"}'

It ends after SIGTERM, `seconds` or `calls`, and prints a `Summary` of
``tests/support/faults/scenario.py`` as JSON.
"""

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import idalloc

# How long a thread waits after a failed call, in seconds.
RETRY_PAUSE = 0.02

DEFAULT_OPTIONS: dict[str, Any] = {
    "target": "",
    "log": "",
    "sequence": "orders",
    # Or ids, stream, docids, texts, once, requests (an AllocateStream of the thread) or shared (one
    # of all threads); several take turns.
    "mode": "ranges",
    "id_count": 10,  # ids per call; with "ranges" also a list, whose sizes take turns
    "threads": 1,
    "timeout": 5.0,
    "seconds": None,
    "calls": None,
    "pause": 0.0,
}


def calls(
    client: idalloc.Client, shared: idalloc.AllocateStream, options: dict[str, Any]
) -> Iterator[Callable[[], int]]:
    """Yield functions without end; each makes the next call and returns the number of ids."""
    sequence = options["sequence"]
    sizes = options["id_count"] if isinstance(options["id_count"], list) else [options["id_count"]]
    size, next_size = sizes[0], cycle(sizes)
    ids, requests = client.ids(sequence), client.allocate_stream()

    def stream() -> int:
        return sum(len(each) for each in client.stream_ranges(sequence, size * 20, size, timeout=options["timeout"]))

    make: dict[str, Callable[[], int]] = {
        "ranges": lambda: len(client.allocate_range(sequence, next(next_size))),
        "once": lambda: len(client.allocate_range(sequence, size, idempotent=True)),
        "texts": lambda: len(client.allocate_range(sequence, size, texts=True).texts),
        "ids": lambda: sum(1 for _ in zip(range(size), ids, strict=False)),
        "stream": stream,
        "docids": lambda: len(client.doc_ids(size)),
        "requests": lambda: len(requests.allocate_range(sequence, next(next_size))),
        "shared": lambda: len(shared.allocate_range(sequence, next(next_size))),
    }
    modes = options["mode"].split(",")
    return (make[modes[turn % len(modes)]] for turn in count())


def report_reason(log: str, reason: str) -> None:
    """Append the reason of a failed call to the file that ``ClientProcess.reasons`` reads."""
    with (Path(log).parent / f"reasons-{Path(log).name}").open("a") as file:
        file.write(f"{reason}\n")


def main(options: dict[str, Any]) -> None:
    """Make calls until SIGTERM or a limit, then print the report."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    lock = threading.Lock()
    deadline = time.monotonic() + (options["seconds"] or 1e9)
    left = count(options["calls"] or sys.maxsize, -1)

    def call_in_turn(client: idalloc.Client, shared: idalloc.AllocateStream) -> None:
        for call in calls(client, shared, options):
            if stopped.is_set() or time.monotonic() >= deadline or next(left) <= 0:
                return
            try:
                got = call()
            except idalloc.IdallocError as error:
                with lock:
                    errors[error.reason] += 1
                    if error.reason not in messages:
                        messages[error.reason] = str(error)
                        report_reason(options["log"], error.reason)
                stopped.wait(RETRY_PAUSE)
            else:
                with lock:
                    done["calls"] += 1
                    done["ids"] += got
                if options["pause"]:
                    stopped.wait(options["pause"])

    with idalloc.Client(options["target"], timeout=options["timeout"], log=options["log"]) as client:
        shared = client.allocate_stream()
        threads = [threading.Thread(target=call_in_turn, args=[client, shared]) for _ in range(options["threads"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # Python handles no signal during a join without a timeout
                thread.join(0.1)
    print(json.dumps({"calls": done["calls"], "ids": done["ids"], "errors": errors, "messages": messages}))


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if unknown := chosen.keys() - DEFAULT_OPTIONS.keys():
        raise SystemExit(f"unknown options: {', '.join(unknown)}")
    main(DEFAULT_OPTIONS | chosen)
