"""The counter document of OpenSearch's users beside idalloc, on one node: `make bench-opensearch`.

The recipe is one scripted `_update` a call, with `upsert` and `retry_on_conflict=10`; a call that
answers 409 has no id. Both take turns on the same OpenSearch, which is started from Maven Central's
artifacts (see tests/support/opensearch/real.py). IDALLOC_BENCH_OPENSEARCH_HOST names a running one
in its place.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

import idalloc
from bench import document, machine, sdk
from bench.drivers import in_threads
from bench.servers import prepare_to_drive, running
from bench.turns import Contender, Turn, ratio, take_turns, to_json
from tests.support.opensearch.real import RELEASES, OpenSearchNode, missing

HOST = "IDALLOC_BENCH_OPENSEARCH_HOST"
CALLERS = 64
# What users take at once to call less often.
BULK = 100
_CONFLICT = 409
_UPDATE = "/idalloc-bench-recipe/_update/orders?_source=last_value&retry_on_conflict=10"


class Writer:
    """A client of the recipe, with its own connection to HOST:PORT, for ``count`` ids a call."""

    def __init__(self, host: str, count: int) -> None:
        name, _, port = host.rpartition(":")
        self._connection = HTTPConnection(name, int(port), timeout=60)
        script = {"source": "ctx._source.last_value += params.n", "lang": "painless", "params": {"n": count}}
        self._body = json.dumps({"script": script, "upsert": {"last_value": count}})
        self._count = count

    def take(self) -> int:
        """Make one call; return the number of its ids, 0 if it was refused."""
        self._connection.request("POST", _UPDATE, self._body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status == _CONFLICT:
            return 0
        if answer.status not in (200, 201):
            raise RuntimeError(f"OpenSearch answered {answer.status}: {content[:200]!r}")
        return self._count

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def recipe(host: str, count: int, seconds: float) -> Turn:
    """Take ids by the recipe, with all callers on one document."""
    writers = [Writer(host, count) for _ in range(CALLERS)]
    try:
        return in_threads([each.take for each in writers], seconds)
    finally:
        for each in writers:
            each.close()


def refused(contender: Contender, count: int) -> float | None:
    """Return the share of the calls without an id; None without turns."""
    calls = sum(turn.calls for turn in contender.turns.values())
    return 1 - sum(turn.ids for turn in contender.turns.values()) / count / calls if calls else None


@contextmanager
def opensearch(folder: Path) -> Iterator[str]:
    """Yield HOST:PORT of the OpenSearch to measure.

    Raises:
        SystemExit: Java or Maven is not installed.
    """
    if host := os.environ.get(HOST):
        yield host
        return
    release = RELEASES["3.8.0"]
    if reason := missing(release):
        sys.exit(f"{reason}; or set {HOST}")
    with OpenSearchNode(release, folder) as node:
        yield node.host


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a turn is")
    parser.add_argument("--output", type=Path, default=document.OPENSEARCH)
    chosen = parser.parse_args()
    began, found = time.monotonic(), machine.describe()
    prepare_to_drive()
    serve = ("idalloc_server", "--listen=127.0.0.1:0")
    with (
        tempfile.TemporaryDirectory(dir=machine.DISK) as folder,
        opensearch(Path(folder)) as host,
        running(*serve, f"--store=opensearch://{host}/?prefix=idalloc-bench") as server,
        idalloc.Client(server.address, timeout=30) as client,
    ):
        one = Contender("the recipe, one id a call", partial(recipe, host, 1), CALLERS, "Python threads")
        bulk = Contender(f"the recipe, {BULK} ids a call", partial(recipe, host, BULK), CALLERS, "Python threads")
        calls = Contender("idalloc, one id a call", sdk.ranges(client, CALLERS), CALLERS, "SDK")
        ids = Contender("idalloc, `ids()`", sdk.ids(client, CALLERS), CALLERS, "SDK")
        contenders = [one, bulk, calls, ids]
        rounds = take_turns(contenders, chosen.rounds, chosen.seconds, began + 600)
    shares = [refused(one, 1), refused(bulk, BULK), refused(calls, 1), None]
    result = {
        "machine": found,
        "rounds": rounds,
        "seconds": chosen.seconds,
        "contenders": [to_json(each) | {"refused": share} for each, share in zip(contenders, shares, strict=True)],
        "name": f"{calls.name} / {one.name}",
        "ratio": ratio(calls, one, "ids_rate"),
    }
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(result, indent=2) + "\n")
    print(document.counter_document(result))
    document.write()


if __name__ == "__main__":
    main()
