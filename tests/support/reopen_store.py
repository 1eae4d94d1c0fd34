"""Opens a SQLite store, grants ids and closes it, repeatedly: python -m tests.support.reopen_store
FILE ROUNDS.

Prints the last value of each grant, one per line.
"""

import asyncio
import sys
from pathlib import Path

from idalloc_server.domain.clock import SystemClock
from idalloc_server.store.sqlite.store import SqliteStore
from tests.support.store_rows import new_row


async def main(path: Path, rounds: int) -> None:
    """Grant two ids per round."""
    for _ in range(rounds):
        store = SqliteStore(path, SystemClock(), busy_timeout=60)
        await store.open()
        await store.create(new_row("s"))
        for _ in range(2):
            granted = await store.grant("s", 1, 1000)
            assert granted is not None
            print(granted.last_value)
        await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
