"""Add 1,000 documents at once for some seconds, and print the rate.

The Python of MySQL's client runs it.

usage: xproto_driver.py PORT SECONDS
"""

import json
import sys
import time
from typing import Any

import mysqlx

AT_ONCE = 1000


def main() -> None:
    """Add for the given time, in a new schema."""
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    session = mysqlx.get_session(f"mysqlx://root:@127.0.0.1:{port}?ssl-mode=DISABLED&compression=DISABLED")
    schema = session.create_schema("bench")
    schema.drop_collection("documents")
    documents = schema.create_collection("documents")
    taken = _add(documents, seconds)
    session.drop_schema("bench")
    session.close()
    print(json.dumps({"documents_per_s": AT_ONCE * len(taken) / sum(taken)}))


def _add(documents: Any, seconds: float) -> list[float]:
    """Return the duration of each add."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        content = [{"name": "Ada", "n": number} for number in range(AT_ONCE)]
        started = time.perf_counter()
        made = documents.add(*content).execute().get_generated_ids()
        taken.append(time.perf_counter() - started)
        assert len(made) == AT_ONCE
    return taken


if __name__ == "__main__":
    main()
