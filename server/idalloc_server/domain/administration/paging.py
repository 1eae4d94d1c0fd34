"""Pages of sequences, also for a caller who may see some of them only."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from idalloc_server.domain.errors import InvalidRequest
from idalloc_server.domain.records import Row
from idalloc_server.domain.sequences.patterns import Patterns

# How many rows at a time are looked through where a caller may see some of them only.
ROWS_AT_ONCE = 1_000
# How many rows are looked through for a page: behind that many, it is short.
ROWS_AT_MOST = 10_000
# How many rows are shown at a time: each may have a counter of a period to be read.
SHOWN_AT_ONCE = 32

_T = TypeVar("_T")
# Reads rows: what their names begin with, behind which name, and how many at most.
Read = Callable[[str, str, int], Awaitable[list[Row]]]


async def rows_of_page(read: Read, prefix: str, after: str, most: int, shows: Patterns | None) -> tuple[list[Row], str]:
    """Returns the rows, and the name behind which the list goes on; empty where nothing follows.

    The work for a page is bounded: only names that the caller's patterns can match are read, and at most
    ``ROWS_AT_MOST`` rows. Where matching names are rare among those, a page is short before the list is at its end. It
    is empty at the end only: behind an empty one the list would go on at a name that the caller may not see.

    Args:
        read: Reads rows.
        prefix: What their names begin with.
        after: Only names behind this one; empty for all.
        most: The most rows to return.
        shows: Which names may be shown; None for all.

    Raises:
        InvalidRequest: Among ``ROWS_AT_MOST`` names there was none that the caller may see, and more may follow.
    """
    if shows is None or shows.any_name:
        rows = await read(prefix, after, most + 1)
        return _cut(rows, most)
    found: list[Row] = []
    looked = 0
    for names in shows.ranges(prefix):
        at_end = names.is_before(after)
        while not at_end and len(found) <= most:
            if looked >= ROWS_AT_MOST:
                return _short(found, looked)
            rows = await read(names.prefix, after, 1 if names.is_single else ROWS_AT_ONCE)
            looked += len(rows)
            found += [row for row in rows if names.has(row.name) and shows.match(row.name)]
            at_end = names.is_single or len(rows) < ROWS_AT_ONCE
            after = after if at_end else rows[-1].name
    return _cut(found, most)


async def few_at_a_time(show: Callable[[Row], Awaitable[_T]], rows: list[Row]) -> list[_T]:
    """Returns what is shown of each row, in their order."""
    shown: list[_T] = []
    for start in range(0, len(rows), SHOWN_AT_ONCE):
        shown += await asyncio.gather(*(show(row) for row in rows[start : start + SHOWN_AT_ONCE]))
    return shown


def _short(found: list[Row], looked: int) -> tuple[list[Row], str]:
    if not found:
        rule = f"must be longer: the server looked through {looked} names and found none that you may read"
        raise InvalidRequest("name_prefix", rule)
    return found, found[-1].name


def _cut(rows: list[Row], most: int) -> tuple[list[Row], str]:
    return rows[:most], rows[most - 1].name if len(rows) > most else ""
