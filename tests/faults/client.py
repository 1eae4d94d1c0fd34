"""A client that asks for ids without a pause, logs what it gets, and tells at its end how that went.

python -m tests.faults.client '{"target": "127.0.0.1:50051", "log": "ids.log"}'

It ends after SIGTERM, `seconds`, or `calls`, and then prints a `Summary` of ``tests/faults/scenario.py``.
"""

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any

import idalloc

# How long a caller waits after a call that failed.
PAUSE = 0.02

WISHES: dict[str, Any] = {
    "target": "",
    "log": "",
    "sequence": "orders",
    "mode": "ranges",  # or ids, stream, docids, texts, once
    "id_count": 10,  # or a list: of "ranges", one size after the other
    "threads": 1,
    "timeout": 5.0,
    "seconds": None,
    "calls": None,
    "pause": 0.0,
}


def calls(client: idalloc.Client, wishes: dict[str, Any]) -> Iterator[Callable[[], int]]:
    """Gives what makes the next call, without end; each returns how many ids came."""
    sequence = wishes["sequence"]
    sizes = wishes["id_count"] if isinstance(wishes["id_count"], list) else [wishes["id_count"]]
    size, next_size = sizes[0], cycle(sizes)
    ids = client.ids(sequence)

    def stream() -> int:
        return sum(len(each) for each in client.stream_ranges(sequence, size * 20, size, timeout=wishes["timeout"]))

    make: dict[str, Callable[[], int]] = {
        "ranges": lambda: len(client.allocate_range(sequence, next(next_size))),
        "once": lambda: len(client.allocate_range(sequence, size, exactly_once=True)),
        "texts": lambda: len(client.allocate_texts(sequence, size)),
        "ids": lambda: sum(1 for _ in zip(range(size), ids, strict=False)),
        "stream": stream,
        "docids": lambda: len(client.doc_ids(size)),
    }
    modes = wishes["mode"].split(",")
    return (make[modes[turn % len(modes)]] for turn in count())


def main(wishes: dict[str, Any]) -> None:
    """Calls until it is time."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    lock = threading.Lock()
    deadline = time.monotonic() + (wishes["seconds"] or 1e9)
    left = count(wishes["calls"] or sys.maxsize, -1)

    def call_in_turn(client: idalloc.Client) -> None:
        for call in calls(client, wishes):
            if over.is_set() or time.monotonic() >= deadline or next(left) <= 0:
                return
            try:
                got = call()
            except idalloc.IdallocError as error:
                with lock:
                    errors[error.reason] += 1
                    messages.setdefault(error.reason, str(error))
                over.wait(PAUSE)
            else:
                with lock:
                    done["calls"] += 1
                    done["ids"] += got
                if wishes["pause"]:
                    over.wait(wishes["pause"])

    with idalloc.Client(wishes["target"], timeout=wishes["timeout"], log=wishes["log"]) as client:
        threads = [threading.Thread(target=call_in_turn, args=[client]) for _ in range(wishes["threads"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a join without a limit would keep the signal waiting
                thread.join(0.1)
    print(json.dumps({"calls": done["calls"], "ids": done["ids"], "errors": errors, "messages": messages}))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if unknown := given.keys() - WISHES.keys():
        raise SystemExit(f"unknown wishes: {', '.join(unknown)}")
    main(WISHES | given)
