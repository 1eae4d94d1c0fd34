"""A load client with churn: each connection is short-lived and uses new sequence names.

python -m tests.support.faults.churn_client '{"target": "127.0.0.1:50051", "log": "", "pause":
0.01}'

Every tenth sequence is created explicitly and deleted after its use. It ends and reports as
``tests/support/faults/load_client.py`` does.
"""

import json
import signal
import sys
import threading
from collections import Counter
from itertools import count

import idalloc
from tests.support.faults.load_client import DEFAULT_OPTIONS

# Sequence names per connection.
NAMES = 20


def main(target: str, pause: float, timeout: float) -> None:
    """Make calls until SIGTERM, then print the report."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    for connection in count():
        with idalloc.Client(target, timeout=timeout) as client:
            for turn in range(NAMES):
                if stopped.wait(pause):
                    print(json.dumps({**done, "errors": errors, "messages": messages}))
                    return
                name = f"churn-{connection}-{turn}"
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
    options = DEFAULT_OPTIONS | {"pause": 0.01, "timeout": 30.0} | json.loads(sys.argv[1])
    main(options["target"], options["pause"], options["timeout"])
