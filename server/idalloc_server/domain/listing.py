"""Pages of sequences, also for a caller who may see some of them only."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from idalloc_server.domain.access import Patterns
from idalloc_server.domain.store import Row

# How many rows at a time are looked through where a caller may see some of them only.
ROWS_AT_ONCE = 1_000
# How often that is done for a page that has something on it already.
READS_AT_MOST = 10
# How many rows are shown at a time: each may have a counter of a period to be read.
SHOWN_AT_ONCE = 32

_T = TypeVar("_T")
# Reads rows: what their names begin with, behind which name, and how many at most.
Read = Callable[[str, str, int], Awaitable[list[Row]]]


async def rows_of_page(read: Read, prefix: str, after: str, most: int, shows: Patterns | None) -> tuple[list[Row], str]:
    """Returns the rows, and the name behind which the list goes on; empty where nothing follows.

    Where names that the caller may see are rare, a page is short before the list is at its end. It is empty at the end
    only: behind an empty one the list would go on at a name that the caller may not see.

    Args:
        read: Reads rows.
        prefix: What their names begin with.
        after: Only names behind this one; empty for all.
        most: The most rows to return.
        shows: Which names may be shown; None for all.
    """
    if shows is None or shows.any_name:
        rows = await read(prefix, after, most + 1)
        return _cut(rows, most)
    longer, shorter = sorted((prefix, shows.common_prefix), key=len, reverse=True)
    if not longer.startswith(shorter):
        return [], ""
    found: list[Row] = []
    reads = 0
    while True:
        rows = await read(longer, after, ROWS_AT_ONCE)
        reads += 1
        found += [row for row in rows if shows.match(row.name)]
        if len(found) > most or len(rows) < ROWS_AT_ONCE:
            return _cut(found, most)
        if found and reads >= READS_AT_MOST:
            return found, found[-1].name
        after = rows[-1].name


async def few_at_a_time(show: Callable[[Row], Awaitable[_T]], rows: list[Row]) -> list[_T]:
    """Returns what is shown of each row, in their order."""
    shown: list[_T] = []
    for start in range(0, len(rows), SHOWN_AT_ONCE):
        shown += await asyncio.gather(*(show(row) for row in rows[start : start + SHOWN_AT_ONCE]))
    return shown


def _cut(rows: list[Row], most: int) -> tuple[list[Row], str]:
    return rows[:most], rows[most - 1].name if len(rows) > most else ""
