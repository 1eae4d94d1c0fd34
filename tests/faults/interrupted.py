"""A program whose signals raise amid its client's code, and which then goes on taking ids.

python -m tests.faults.interrupted '{"target": "127.0.0.1:50051", "log": "ids.jsonl", "signals": 2000, "seed": 1}'

It prints as JSON how many signals were delivered, how many ids were taken, which ids came twice, and other errors.
"""

import faulthandler
import json
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import idalloc

# A program that hangs says where, and ends.
PATIENCE = 60.0
# How long until a signal comes, in seconds: about as long as some calls take.
SHORTEST, LONGEST = 20e-6, 4e-3


class SoftLimit(Exception):
    """What the handler raises."""


def interrupt(*_: object) -> None:
    """The handler."""
    raise SoftLimit


def main(target: str, log: str, signals: int, seed: int) -> None:
    """Takes ids in several ways until so many signals were delivered."""
    chance = random.Random(seed)
    client = idalloc.Client(target, timeout=10, log=log)
    ids = client.ids("orders")
    taken: list[int] = []

    def one_by_one() -> None:
        for _ in range(30):
            taken.append(next(ids))  # noqa: PERF401 - as in loop()

    def loop() -> None:
        for value in islice(ids, 30):
            taken.append(value)  # noqa: PERF402 - what came before the exception counts

    def stream() -> None:
        for each in client.stream_ranges("orders", 30, 10):
            taken.extend(each)

    def call() -> None:
        taken.extend(client.allocate_range("orders", 10))

    ways: list[Callable[[], None]] = [one_by_one, loop] * 6 + [stream, call]
    # The client leaves a channel open whose call was interrupted while it began.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGALRM, interrupt)
    seen: set[int] = set()
    twice: list[int] = []
    errors = Counter[str]()
    delivered = 0
    while delivered < signals:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        way = chance.choice(ways)
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(SHORTEST, LONGEST))
            way()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except SoftLimit:
            delivered += 1
        except (RuntimeError, idalloc.IdallocError) as error:  # of gRPC, whose code the exception hit
            signal.setitimer(signal.ITIMER_REAL, 0)
            errors[f"{type(error).__name__}: {error}"[:200]] += 1
            delivered += 1
        twice += seen.intersection(taken)
        twice += (value for value, count in Counter(taken).items() if count > 1)
        seen.update(taken)
        taken.clear()
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"signals": delivered, "ids": len(seen), "twice": twice, "errors": errors}))


if __name__ == "__main__":
    wishes: dict[str, Any] = json.loads(sys.argv[1])
    main(**wishes)
