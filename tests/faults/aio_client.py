"""The client of asyncio, as ``tests/faults/client.py`` is that for threads: `threads` of its wishes are tasks here.

python -m tests.faults.aio_client '{"target": "127.0.0.1:50051", "log": "ids.log"}'
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
from tests.faults.client import PAUSE, WISHES


def callers(client: idalloc.aio.Client, wishes: dict[str, Any]) -> list[Callable[[], Awaitable[int]]]:
    """Gives what makes a call, for each mode; each returns how many ids came."""
    sequence, size = wishes["sequence"], wishes["id_count"]
    ids = client.ids(sequence)

    async def ranges(exactly_once: bool = False) -> int:
        return len(await client.allocate_range(sequence, size, exactly_once=exactly_once))

    async def texts() -> int:
        return len(await client.allocate_texts(sequence, size))

    async def one_by_one() -> int:
        return len([await anext(ids) for _ in range(size)])

    async def stream() -> int:
        chunks = client.stream_ranges(sequence, size * 20, size, timeout=wishes["timeout"])
        return sum([len(chunk) async for chunk in chunks])

    async def doc_ids() -> int:
        return len(await client.doc_ids(size))

    make = {
        "ranges": ranges,
        "once": lambda: ranges(exactly_once=True),
        "texts": texts,
        "ids": one_by_one,
        "stream": stream,
        "docids": doc_ids,
    }
    return [make[mode] for mode in wishes["mode"].split(",")]


async def main(wishes: dict[str, Any]) -> None:
    """Calls until it is time."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    done, errors, messages = Counter[str](), Counter[str](), dict[str, str]()
    deadline = time.monotonic() + (wishes["seconds"] or 1e9)
    left = count(wishes["calls"] or sys.maxsize, -1)

    async def call_in_turn(client: idalloc.aio.Client) -> None:
        turns = callers(client, wishes)
        for turn in count():
            if over.is_set() or time.monotonic() >= deadline or next(left) <= 0:
                return
            try:
                got = await turns[turn % len(turns)]()
            except idalloc.IdallocError as error:
                errors[error.reason] += 1
                messages.setdefault(error.reason, str(error))
                await asyncio.sleep(PAUSE)
            else:
                done["calls"] += 1
                done["ids"] += got
                await asyncio.sleep(wishes["pause"])

    async with idalloc.aio.Client(wishes["target"], timeout=wishes["timeout"], log=wishes["log"]) as client:
        await asyncio.gather(*(call_in_turn(client) for _ in range(wishes["threads"])))
    print(json.dumps({"calls": done["calls"], "ids": done["ids"], "errors": errors, "messages": messages}))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if unknown := given.keys() - WISHES.keys():
        raise SystemExit(f"unknown wishes: {', '.join(unknown)}")
    asyncio.run(main(WISHES | given))
