"""Measure the keys a second of each strategy of docs/guides/choosing-a-key.md, as a table.

    python scripts/measure_strategies.py --store 'crate://crate@127.0.0.1:4200/?schema=strategies'

It starts a server on that store. The default is SQLite in a temporary folder, without the rows of
CrateDB's own recipe. Client, server and store share the machine, so compare figures of one run
only.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from urllib.parse import urlsplit

import idalloc

THREADS = 8


@contextmanager
def serving(store: str) -> Iterator[str]:
    """Run a server; yield its address."""
    command = [sys.executable, "-m", "idalloc_server", "--listen=127.0.0.1:0", f"--store={store}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


def rate(take: Callable[[], int], seconds: float) -> float:
    """Return the keys a second of a function that returns how many keys it took."""
    take()  # It opens connections and lets leases grow.
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        count += take()
    return count / (time.perf_counter() - began)


def in_threads(take: Callable[[], int], seconds: float) -> float:
    """Return the keys a second of several concurrent threads."""
    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(lambda _: rate(take, seconds), range(THREADS)))


class Recipe:
    """The sequence table of CrateDB's guide: read a row, write it if its version is the same."""

    def __init__(self, store: str) -> None:
        parts = urlsplit(store)
        self._url = f"http://{parts.hostname}:{parts.port or 4200}/_sql"
        schema = dict(pair.split("=") for pair in parts.query.split("&") if "=" in pair).get("schema", "doc")
        self._table = f'"{schema}"."recipe"'
        self._sql(f"CREATE TABLE IF NOT EXISTS {self._table} (name TEXT PRIMARY KEY, last_value BIGINT)")
        self._sql(f"INSERT INTO {self._table} (name, last_value) VALUES ('orders', 0) ON CONFLICT (name) DO NOTHING")

    def next(self) -> int:
        """Take one id; return 1, or 0 after five failed attempts."""
        pause = 0.1
        for _ in range(5):
            rows = self._sql(f"SELECT last_value, _seq_no, _primary_term FROM {self._table} WHERE name = 'orders'")
            value, seq_no, term = rows[0]
            written = self._sql(
                f"UPDATE {self._table} SET last_value = ? WHERE name = 'orders' AND _seq_no = ? AND _primary_term = ?"
                " RETURNING last_value",
                value + 1,
                seq_no,
                term,
            )
            if written:
                return 1
            time.sleep(pause)
            pause *= 2
        return 0

    def _sql(self, statement: str, *args: object) -> list[list[int]]:
        body = json.dumps({"stmt": statement, "args": args}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            rows: list[list[int]] = json.load(answer)["rows"]
            return rows


def measure(client: idalloc.Client, store: str, seconds: float) -> Iterator[tuple[str, float]]:
    """Yield each strategy with its keys a second."""
    run = uuid.uuid4().hex[:8]
    names = {kind: f"{kind}-{run}" for kind in ("counter", "rising", "timestamp", "text")}
    client.sequences.create(names["rising"], ordering="rising")
    client.sequences.create(names["timestamp"], kind="timestamp-us")
    client.sequences.create(names["text"], format="{value:crockford:8}{check}")

    def one(sequence: str) -> Callable[[], int]:
        return lambda: len(client.allocate_range(sequence, 1))

    ids = client.ids(names["counter"])
    yield "timestamp: `TIMESTAMP_US`, one a call", rate(one(names["timestamp"]), seconds)
    yield (
        "timestamp: `TIMESTAMP_US`, 1,000 a call",
        rate(lambda: len(client.allocate_range(names["timestamp"], 1000)), seconds),
    )
    yield "UUIDv4: `GenerateUuid`, 1,000 a call", rate(lambda: len(client.uuids(1000, version=4)), seconds)
    yield "UUIDv7: `GenerateUuid`, 1,000 a call", rate(lambda: len(client.uuids(1000)), seconds)
    yield "UUIDv4 in the client: Python's `uuid.uuid4`", rate(lambda: len([uuid.uuid4() for _ in range(1000)]), seconds)
    if store.startswith("crate://"):
        recipe = Recipe(store)
        yield "sequence table: the guide's recipe, 1 thread", rate(recipe.next, seconds)
        yield f"sequence table: the guide's recipe, {THREADS} threads", in_threads(recipe.next, seconds)
    yield "sequence: one a call, 1 thread", rate(one(names["counter"]), seconds)
    yield f"sequence: one a call, {THREADS} threads", in_threads(one(names["counter"]), seconds)
    yield "sequence `RISING`: one a call, 1 thread", rate(one(names["rising"]), seconds)
    yield f"sequence `RISING`: one a call, {THREADS} threads", in_threads(one(names["rising"]), seconds)
    yield "sequence: 1,000 a call", rate(lambda: len(client.allocate_range(names["counter"], 1000)), seconds)
    yield "sequence: `client.ids()`, one by one", rate(lambda: sum(1 for _ in islice(ids, 10_000)), seconds)
    yield (
        "formatted: `{value:crockford:8}{check}`, 1,000 a call",
        rate(lambda: len(client.allocate_range(names["text"], 1000, texts=True).texts), seconds),
    )
    yield "document id: 1,000 a call", rate(lambda: len(client.doc_ids(1000)), seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", help="store of the measured server; SQLite by default")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each measurement")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = chosen.store or f"sqlite://{folder}/ids.db"
        with serving(store) as address, idalloc.Client(address, timeout=30) as client:
            print("| how | keys a second |\n|---|---:|")
            for what, figure in measure(client, store, chosen.seconds):
                print(f"| {what} | {figure:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
