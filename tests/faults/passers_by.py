"""Clients that come, use names that nobody used before, and go: what ``tests/faults/client.py`` does not do.

python -m tests.faults.passers_by '{"target": "127.0.0.1:50051", "log": "", "pause": 0.01}'

Of each ten names, one is of a sequence that is created, used, and deleted. It ends as that client does.
"""

import json
import signal
import sys
import threading
from collections import Counter
from itertools import count

import idalloc
from tests.faults.client import WISHES

# How many names one connection asks for.
NAMES = 20


def main(target: str, pause: float, timeout: float) -> None:
    """Calls until it is time."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    for connection in count():
        with idalloc.Client(target, timeout=timeout) as client:
            for turn in range(NAMES):
                if over.wait(pause):
                    print(json.dumps({**done, "errors": errors, "messages": messages}))
                    return
                name = f"passing-{connection}-{turn}"
                try:
                    if turn % 10 == 0:
                        client.sequences.create(name, ordering="rising")
                    done["ids"] += len(client.allocate_range(name, 5))
                    if turn % 10 == 0:
                        client.sequences.delete(name)
                except idalloc.IdallocError as error:
                    errors[error.reason] += 1
                    messages.setdefault(error.reason, str(error))
                else:
                    done["calls"] += 1


if __name__ == "__main__":
    wishes = WISHES | {"pause": 0.01, "timeout": 30.0} | json.loads(sys.argv[1])
    main(wishes["target"], wishes["pause"], wishes["timeout"])
