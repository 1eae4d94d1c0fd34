"""Refills a second of many busy sequences on CrateDB: part of `make bench-growth`.

Each sequence takes one grant after another. One more takes a grant from time to time, as a lone
sequence beside them. Each number of sequences is measured twice: each grant alone, and those that
wait joined. `--url crate://user@host:4200/?schema=NAME` names a real cluster; its schema is left
behind. By default the store is the emulator of the tests, in a process of its own.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.markdown import number, table
from bench.turns import percentile
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import Refusal
from idalloc_server.domain.sequences.sequence import Sequence as Settings
from idalloc_server.domain.store.records import Row
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.urls import open_store
from tests.support.processes import start_module

BUSY = (1, 8, 64, 1_000)
LONE = "lone"
LONE_PAUSE = 0.05  # seconds between two grants of the lone sequence
IN_FLIGHT = 64  # while the sequences are created
REFRESH_SECONDS = 1.5  # after that long, CrateDB finds new rows by search


class AloneStore(CrateStore):
    """Sends each grant alone."""

    def _is_alone(self, name: str) -> bool:
        return True


async def prepare(store: CrateStore, names: Sequence[str]) -> None:
    """Create the sequences, and grant once of each, since the first grant goes alone."""
    slots = asyncio.Semaphore(IN_FLIGHT)

    async def use(name: str) -> None:
        async with slots:
            await store.create(Row(name, 0, Settings()))
            await store.grant(name, 1, 1_000)

    await asyncio.gather(*map(use, names))
    await asyncio.sleep(REFRESH_SECONDS)


async def measure(store: CrateStore, busy: int, seconds: float) -> tuple[str, str, str]:
    """Return the refills a second, the p99 of the lone sequence, and the failures."""
    names = [f"busy-{each}" for each in range(busy)]
    await prepare(store, [*names, LONE])
    until = time.monotonic() + seconds
    taken: list[float] = []
    lone: list[float] = []
    failures = 0

    async def refill(name: str, latencies: list[float], pause: float = 0.0) -> None:
        nonlocal failures
        while (began := time.monotonic()) < until:
            try:
                await store.grant(name, 10, 180_000)
                latencies.append(time.monotonic() - began)
            except Refusal:
                failures += 1
            await asyncio.sleep(pause)

    began = time.monotonic()
    await asyncio.gather(*(refill(name, taken) for name in names), refill(LONE, lone, LONE_PAUSE))
    rate = len(taken) / (time.monotonic() - began)
    return number(rate), number(percentile(lone, 99), 1e3), str(failures)


async def measure_all(url: str, counts: Sequence[int], seconds: float) -> list[list[str]]:
    """Return the rows of the table."""
    rows = []
    for busy in counts:
        row = [f"{busy:,}"]
        for kind in (AloneStore, CrateStore):
            opened = open_store(url, SystemClock())
            assert isinstance(opened, CrateStore)
            store = kind(opened.address, opened.http, opened.schema)
            await store.open()
            row += await measure(store, busy, seconds)
            await store.close()
        rows.append(row)
    return rows


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser("python -m bench.busy_sequences", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="", help="of a real cluster; the emulator by default")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--busy", type=int, nargs="+", default=BUSY, help="numbers of busy sequences")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        url = chosen.url or start_module(stack, "tests.support.cratedb.emulator")
        rows = asyncio.run(measure_all(url, chosen.busy, chosen.seconds))
    half = ["refills/s", "p99 of the lone one, ms", "failed"]
    print(table(["busy", *(f"alone: {each}" for each in half), *(f"joined: {each}" for each in half)], "r" * 7, rows))


if __name__ == "__main__":
    main()
