"""Get ids from an idalloc server in six ways.

The programs in examples/go, examples/java and examples/node do the same.

    pip install idalloc
    python six_ways.py --total 100000

Prints a line for each way. An error is one line on stderr with its reason; the exit code is then 1,
and 2 for wrong arguments. Once the server has answered, the program continues over a restart of the
server.
"""

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or gRPC prints lines of its own about a failed connection

import grpc

import idalloc

RANGE_SIZE = 100
TOO_MANY_IDS = 2**31  # more than any server allows in a call
GIVE_UP_SECONDS = 60.0  # without progress

T = TypeVar("T")


class Program:
    """The six ways, with one client."""

    def __init__(self, client: idalloc.Client, sequence: str, total: int) -> None:
        self._client = client
        self._sequence = sequence
        self._total = total
        self._has_answered = False

    def pool(self) -> None:
        """Take ids one by one. ``ids()`` requests ranges in advance, and discards old ids."""
        ids = self._client.ids(self._sequence)
        first = last = self._retry(lambda: next(ids))
        for _ in range(self._total - 1):
            last = self._retry(lambda: next(ids))
        show("pool", self._total, first, last)

    def unary(self) -> None:
        """Allocate a range. The client repeats a failed call within its timeout."""
        ids = self._retry(lambda: self._client.allocate_range(self._sequence, RANGE_SIZE))
        show("unary", len(ids), ids[0], ids[-1])

    def allocate_stream(self) -> None:
        """Make several calls over one stream. One fails, and the others get their ids."""
        with self._client.allocate_stream() as stream, ThreadPoolExecutor(4) as threads:
            sequence, lines = self._sequence, f"{self._sequence}-lines"
            orders = threads.submit(self._retry, lambda: stream.allocate_range(sequence, 2))
            order_lines = threads.submit(self._retry, lambda: stream.allocate_range(lines, 5))
            failed = threads.submit(self._retry, lambda: stream.allocate_range(sequence, TOO_MANY_IDS))
            doc_ids = threads.submit(self._retry, lambda: stream.doc_ids(3))
            chunks = [orders.result(), order_lines.result(), doc_ids.result()]
            if error := failed.exception():
                print(f"allocate-stream: one request failed: {describe(error)}")
        show("allocate-stream", sum(map(len, chunks)), chunks[0][0], chunks[-1][-1])

    def request_id(self) -> None:
        """Repeat a call, as after a lost reply: with a request_id it gets the same ids."""
        key = uuid.uuid4()
        ids, again = (
            self._retry(lambda: self._client.allocate_range(self._sequence, RANGE_SIZE, request_id=key))
            for _ in range(2)
        )
        if (ids[0], ids[-1]) != (again[0], again[-1]):
            sys.exit(f"request_id {key} got the ids {ids[0]}..{ids[-1]}, then {again[0]}..{again[-1]}")
        show("request-id", len(ids), ids[0], ids[-1])

    def stream(self) -> None:
        """Take many ids in ranges. After a break the client requests the missing ones."""
        show_all("stream", self._client.stream_ranges(self._sequence, self._total))

    def doc_ids(self) -> None:
        """Take many document ids. The client receives runs, and expands them."""
        show_all("doc-ids", self._client.stream_doc_ids(self._total))

    def _retry(self, call: Callable[[], T]) -> T:
        """Call until it succeeds: a restart of a lone server may exceed the client's timeout."""
        since: float | None = None
        while True:
            try:
                result = call()
            except (idalloc.Unavailable, idalloc.DeadlineExceeded) as error:
                since = since or time.monotonic()
                if not self._has_answered or time.monotonic() - since > GIVE_UP_SECONDS:
                    raise
                time.sleep(error.retry_after or 0.1)
            else:
                self._has_answered = True
                return result


def show_all(way: str, chunks: Iterable[idalloc.Range] | Iterable[list[str]]) -> None:
    count, first, last = 0, None, None
    for ids in chunks:
        count, first, last = count + len(ids), ids[0] if first is None else first, ids[-1]
    show(way, count, first, last)


def show(way: str, count: int, first: object, last: object) -> None:
    print(f"{way}: {count} ids, {first}..{last}", flush=True)


def describe(error: BaseException) -> str:
    reason = f"{error.reason}: " if isinstance(error, idalloc.IdallocError) else ""
    return reason + " ".join(str(error).split())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Get ids from an idalloc server in six ways.")
    parser.add_argument("--server", metavar="HOST:PORT", default="127.0.0.1:50051")
    parser.add_argument("--ca", metavar="FILE", type=Path, help="use TLS, and trust this CA")
    parser.add_argument("--token-file", metavar="FILE", type=Path, help="send this token")
    parser.add_argument("--sequence", metavar="NAME", default="orders")
    parser.add_argument("--total", metavar="N", type=int, default=100_000, help="ids of the pool and of each stream")
    parser.add_argument("--log", metavar="FILE.jsonl", help="a new file: the log that idalloc verify reads")
    options = parser.parse_args()
    if options.total < 1:
        parser.error(f"--total must be at least 1, not {options.total}")
    try:
        credentials = options.ca and grpc.ssl_channel_credentials(options.ca.read_bytes())
        token = options.token_file and options.token_file.read_text().strip()
        with idalloc.Client(options.server, credentials=credentials, token=token, log=options.log) as client:
            program = Program(client, options.sequence, options.total)
            program.pool()
            program.unary()
            program.allocate_stream()
            program.request_id()
            program.stream()
            program.doc_ids()
    except idalloc.IdallocError as error:
        sys.exit(describe(error))
    except (OSError, ValueError) as error:  # a file, or an invalid argument
        sys.exit(str(error))
