"""Export all sequences of a store, and retire a store.

An exported counter is never behind an id that was issued before the export.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

from idalloc_server.backup.export_file import first_line, line_of_claim, line_of_row
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.generations import MARGIN_SECONDS, generation_after
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.retirement import RETIRED_BY, RETIREMENT, mark
from idalloc_server.domain.sequences.model import PERIOD_MARK
from idalloc_server.domain.store import Store

# Where a retired store says to go on, if nothing else was given.
MOVED_TO = "the store that its export was imported into"

_PAGE = 500
_ATTEMPTS = 10


async def export_lines(store: Store) -> AsyncIterator[str]:
    """Reads all that is in a store, as lines without their ends.

    Every id issued before the call, by any node, is at or before what is read; leases that nodes hold too, for their
    ids were taken from the counter already. Nodes may go on meanwhile.

    Raises:
        SequenceInvalid: The settings of a row cannot be read.
        StoreUnavailable: The store did not answer.
    """
    yield first_line()
    async for row in _rows(store):
        yield line_of_row(row)
    for prefix, last_start in sorted((await store.claimed_starts()).items()):
        yield line_of_claim(prefix, last_start)


async def retire(
    store: Store, clock: Clock, moved_to: str = "", sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> int:
    """Ends all sequences of a store whose nodes still run, and waits until no node issues an id of them any more.

    They become tombstones, which an export has as if they lived. Before that the store gets the mark of ``retirement``:
    whatever is created or claimed later is refused, and what was created or claimed before is exported. It may be
    called again after a failure.

    Args:
        store: Which store.
        clock: For dates.
        moved_to: Where to go on, for people; empty to keep what an earlier call said.
        sleep: Waits so many seconds.

    Returns:
        How many it ended.
    """
    by, count, waited = f"{RETIRED_BY}{uuid4()}", 0, False
    await _mark(store, clock, by, moved_to)
    while True:
        lease_ms, ended = 0, 0
        async for row in _rows(store):
            if PERIOD_MARK in row.name or row.last_value is None:
                continue
            if not row.deleted:
                row = await _retire(store, clock, row, by)
                ended += 1
            lease_ms = max(lease_ms, row.lease_ms if row.revised_by.startswith(RETIRED_BY) else 0)
        count += ended
        if waited and not ended:  # nor was one created in the meantime
            return count
        await sleep(lease_ms / 1000 + MARGIN_SECONDS)  # also where an earlier call ended them, and was ended itself
        waited = True


async def unretire(store: Store, clock: Clock) -> None:
    """Removes the mark of a retired store. Its sequences stay tombstones until they are imported or created again."""
    for _ in range(_ATTEMPTS):
        row = await store.get(RETIREMENT)
        if row is None or row.deleted:
            return
        by = f"unretire:{uuid4()}"
        await store.revise(RETIREMENT, row.revision, Revision(row.sequence, 0, by, clock.wall(), deleted=True))
    raise StoreUnavailable("the mark of the retirement is changed by others all the time")


async def _mark(store: Store, clock: Clock, by: str, moved_to: str) -> None:
    for _ in range(_ATTEMPTS):
        wanted = mark(moved_to or MOVED_TO, by, clock.wall())
        row = await store.get(RETIREMENT)
        if row is None:
            await store.create(wanted)
        elif row.deleted or (moved_to and row.sequence.description != moved_to):
            await store.revise(RETIREMENT, row.revision, Revision(wanted.sequence, 0, by, clock.wall()))
        else:
            return
    raise StoreUnavailable("the mark of the retirement is changed by others all the time")


async def _retire(store: Store, clock: Clock, row: Row, by: str) -> Row:
    for _ in range(_ATTEMPTS):
        change = Revision(
            row.sequence,
            row.last_value or row.sequence.before_start,
            by,
            clock.wall(),
            generation=generation_after(row.sequence, row.generation, clock),
            deleted=True,
        )
        found = await store.revise(row.name, row.revision, change)
        if found is None or found.deleted:
            return found or row
        row = found
    raise StoreUnavailable(f"sequence {row.name!r} is changed by others all the time")


async def _rows(store: Store) -> AsyncIterator[Row]:
    after = ""
    while True:
        rows = await store.list("", after, _PAGE, deleted=True, periods=True)
        for row in rows:
            if row.name != RETIREMENT:
                yield row
        if len(rows) < _PAGE:
            return
        after = rows[-1].name
