"""Add documents for some seconds, and print how long each add took.

The Python of MySQL's client runs it.

usage: xproto_driver.py PORT SECONDS
"""

import json
import statistics
import sys
import time
from typing import Any

import mysqlx

AT_ONCE = 1000


def main() -> None:
    """Add single documents, then many at once, each for the given time, in a new schema."""
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    session = mysqlx.get_session(f"mysqlx://root:@127.0.0.1:{port}?ssl-mode=DISABLED&compression=DISABLED")
    schema = session.create_schema("bench")
    schema.drop_collection("documents")
    documents = schema.create_collection("documents")
    single = _add(documents, 1, seconds)
    many = _add(documents, AT_ONCE, seconds)
    session.drop_schema("bench")
    session.close()
    rate = AT_ONCE * len(many) / sum(many)
    print(json.dumps({"p50": statistics.median(single), "documents_per_s": rate}))


def _add(documents: Any, count: int, seconds: float) -> list[float]:
    """Return the duration of each add."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        content = [{"name": "Ada", "n": number} for number in range(count)]
        started = time.perf_counter()
        made = documents.add(*content).execute().get_generated_ids()
        taken.append(time.perf_counter() - started)
        assert len(made) == count
    return taken


if __name__ == "__main__":
    main()
