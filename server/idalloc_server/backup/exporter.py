"""Exports all sequences of a store, and retires a store.

An exported counter is never behind an id that was issued before the export.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from uuid import uuid4

from idalloc_server.backup.export_file import ExportFile, claim_line, header_line, row_line
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.generations import MARGIN_SECONDS, next_generation, repeat_until_held
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR
from idalloc_server.domain.store.identity import IDENTITY
from idalloc_server.domain.store.protocol import Store, all_rows
from idalloc_server.domain.store.records import Row, RowChange
from idalloc_server.domain.store.retirement import RETIRED_BY, RETIREMENT, retirement_row

# The new place of the sequences in errors of a retired store, by default.
DEFAULT_MOVED_TO = "the store that its export was imported into"


async def export_lines(store: Store) -> AsyncIterator[str]:
    """Yield the lines of an export, without line ends.

    Every id issued before the call, by any node, is at or before the exported counters, and so is
    every id of a live lease. Nodes may continue to issue ids.

    Raises:
        SequenceInvalid: The settings of a row cannot be read.
        StoreUnavailable: The store did not answer.
    """
    identity = await store.get(IDENTITY)
    yield header_line(identity.sequence.description if identity else "")
    async for row in all_rows(store, with_periods=True):
        if row.name not in (RETIREMENT, IDENTITY):
            yield row_line(row)
    for prefix, last_start in sorted((await store.claimed_starts()).items()):
        yield claim_line(prefix, last_start)


async def retire(
    store: Store,
    clock: Clock,
    moved_to: str = "",
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[int], bytes] = os.urandom,
) -> int:
    """Retire a store: end all its sequences, and wait until no node issues ids of them.

    First mark the store as retired: it then rejects everything that is created or claimed later.
    Then replace the sequences by tombstones, which are exported as live sequences. A call may be
    repeated after a failure.

    Args:
        store: The store; its nodes may be running.
        clock: The clock.
        moved_to: The new store of the sequences, for people; empty to keep the text of an earlier
            call.
        sleep: Waits for a number of seconds.
        random: Returns random bytes of a given number.

    Returns:
        The number of sequences that it ended.
    """
    by = f"{RETIRED_BY}{random(16).hex()}"
    wanted = retirement_row(moved_to or DEFAULT_MOVED_TO, by, clock.wall())

    async def mark(row: Row | None) -> bool:
        if row is None:
            await store.create(wanted)
        elif row.deleted or moved_to not in ("", row.sequence.description):
            change = RowChange(wanted.sequence, at_least=0, by=by, at=clock.wall())
            await store.revise(RETIREMENT, row.revision, change)
        else:
            return True
        return False

    await repeat_until_held(store, RETIREMENT, mark)
    ended: set[str] = set()
    waited = False
    while True:
        lease_ms = 0
        is_held = True
        # Also those of periods: a row that cannot be read ends this before a sequence is ended.
        async for row in all_rows(store, with_periods=True):
            if PERIOD_SEPARATOR in row.name or row.last_value is None:
                continue
            if not row.deleted:
                is_held = False  # The next pass finds a row that was changed meanwhile.
                ended.add(row.name)
                change = next_generation(row, clock, by)._replace(at_least=row.last_value, deleted=True)
                row = await store.revise(row.name, row.revision, change) or row
            lease_ms = max(lease_ms, row.lease_ms if row.revised_by.startswith(RETIRED_BY) else 0)
        if waited and is_held:  # and none was created meanwhile
            return len(ended)
        await sleep(lease_ms / 1000 + MARGIN_SECONDS)  # also if an interrupted earlier call ended them
        waited = True


async def unretire(store: Store, clock: Clock) -> None:
    """Undo a retirement. The sequences stay deleted until they are imported or created again."""
    by = f"unretire:{uuid4()}"

    async def undo(row: Row | None) -> bool:
        if row is None or row.deleted:
            return True
        change = RowChange(row.sequence, at_least=0, by=by, at=clock.wall(), deleted=True)
        await store.revise(RETIREMENT, row.revision, change)
        return False

    await repeat_until_held(store, RETIREMENT, undo)


async def check_new_store(retired: Store, new: Store, lines: Sequence[bytes], file: ExportFile) -> None:
    """Check that the store used since a retirement is retired, too, and that a file is its export.

    Args:
        retired: The store to reactivate.
        new: The store used since.
        lines: The lines of the file.
        file: Its content.

    Raises:
        StartRefused: It may have issued ids that are not in the file, or it is another store.
        StoreFailure: A store failed.
    """
    here = await retired.get(RETIREMENT)
    there = await new.get(RETIREMENT)
    if there is None or there.deleted:
        raise StartRefused(
            "--unretire",
            f"{new.address} is not retired, so its servers may issue ids; run `idalloc store export --retire` on it, "
            "and import that file",
        )
    if here is not None and here.revised_by == there.revised_by:
        raise StartRefused(
            "--unretire", f"{new.address} is the store to reactivate; name the store that was used since"
        )
    # Not the first line: older exports lack the name of the store.
    if [line.strip() for line in lines if line.strip()][1:] != [line.encode() async for line in export_lines(new)][1:]:
        raise StartRefused(
            "--unretire",
            f"{new.address} has other sequences or counters than FILE, so it served after that export; import the "
            "output of `idalloc store export --retire` on it",
        )
    names = {item.row.name for item in file.items} | file.reserved.keys()
    async for row in all_rows(retired, with_periods=False):
        if row.name not in names:
            what = f"FILE lacks sequence {row.name!r} of the retired store, so it is not its new store's"
            raise StartRefused("--unretire", what)
