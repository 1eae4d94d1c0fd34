"""A load client on asyncio: ``tests/support/faults/load_client.py`` with tasks in place of threads.

python -m tests.support.faults.aio_load_client '{"target": "127.0.0.1:50051", "log": "ids.log"}'
"""

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import idalloc
import idalloc.aio
from tests.support.faults.load_client import DEFAULT_OPTIONS, RETRY_PAUSE, report_reason
from tests.support.waiting import hold_for_async


def callers(
    client: idalloc.aio.Client, shared: idalloc.aio.AllocateStream, options: dict[str, Any]
) -> list[Callable[[], Awaitable[int]]]:
    """Return a function for each mode; it makes a call and returns the number of ids."""
    sequence, size = options["sequence"], options["id_count"]
    ids, requests = client.ids(sequence), client.allocate_stream()

    async def ranges(idempotent: bool = False) -> int:
        return len(await client.allocate_range(sequence, size, idempotent=idempotent))

    async def texts() -> int:
        return len((await client.allocate_range(sequence, size, texts=True)).texts)

    async def one_by_one() -> int:
        return len([await anext(ids) for _ in range(size)])

    async def stream() -> int:
        chunks = client.stream_ranges(sequence, size * 20, size, timeout=options["timeout"])
        return sum([len(chunk) async for chunk in chunks])

    async def one_request(requests: idalloc.aio.AllocateStream) -> int:
        return len(await requests.allocate_range(sequence, size))

    async def doc_ids() -> int:
        return len(await client.doc_ids(size))

    make = {
        "ranges": ranges,
        "once": lambda: ranges(idempotent=True),
        "texts": texts,
        "ids": one_by_one,
        "stream": stream,
        "docids": doc_ids,
        "requests": lambda: one_request(requests),
        "shared": lambda: one_request(shared),
    }
    return [make[mode] for mode in options["mode"].split(",")]


async def main(options: dict[str, Any]) -> None:
    """Make calls until SIGTERM or a limit, then print the report."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    deadline = time.monotonic() + (options["seconds"] or 1e9)
    left = count(options["calls"] or sys.maxsize, -1)

    async def call_in_turn(client: idalloc.aio.Client, shared: idalloc.aio.AllocateStream) -> None:
        turns = callers(client, shared, options)
        for turn in count():
            if stopped.is_set() or time.monotonic() >= deadline or next(left) <= 0:
                return
            try:
                got = await turns[turn % len(turns)]()
            except idalloc.IdallocError as error:
                errors[error.reason] += 1
                if error.reason not in messages:
                    messages[error.reason] = str(error)
                    report_reason(options["log"], error.reason)
                await hold_for_async(RETRY_PAUSE, "the pause before a retry")
            else:
                done["calls"] += 1
                done["ids"] += got
                await hold_for_async(options["pause"], "the pause between calls")

    async with idalloc.aio.Client(options["target"], timeout=options["timeout"], log=options["log"]) as client:
        shared = client.allocate_stream()
        await asyncio.gather(*(call_in_turn(client, shared) for _ in range(options["threads"])))
    print(json.dumps({"calls": done["calls"], "ids": done["ids"], "errors": errors, "messages": messages}))


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if unknown := chosen.keys() - DEFAULT_OPTIONS.keys():
        raise SystemExit(f"unknown options: {', '.join(unknown)}")
    asyncio.run(main(DEFAULT_OPTIONS | chosen))
