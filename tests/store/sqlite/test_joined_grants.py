"""Refills that fall due together share a transaction, and each has an outcome of its own."""

# ruff: noqa: ASYNC240 - a test may wait for a file

import asyncio
from pathlib import Path

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import (
    SequenceDeleted,
    SequenceExhausted,
    SequenceInvalid,
    StoreOutcomeUnknown,
    StoreWentBackwards,
)
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.store.sqlite.database import MAX_JOINED_WRITES
from idalloc_server.store.sqlite.store import SqliteStore
from tests.store.sqlite.conftest import HeldDatabase, deny_commit, execute
from tests.support.fake_store import FakeClock
from tests.support.sequence_allocators import CONFIG, ids
from tests.support.store_rows import new_row, read_row
from tests.support.waiting import settle

NAMES = [f"name-{number}" for number in range(MAX_JOINED_WRITES)]


@pytest.fixture
def allocator(store: SqliteStore, clock: FakeClock) -> Allocator:
    return Allocator(store, clock, CONFIG)


@pytest.fixture
async def held(store: SqliteStore) -> HeldDatabase:
    """The store's database, with a row for each of ``NAMES``."""
    for name in NAMES:
        await store.create(new_row(name))
    return HeldDatabase(store._database)


async def allocate_together(held: HeldDatabase, allocator: Allocator, *names: str) -> list[IdRange | BaseException]:
    """Allocate 3 ids of each sequence while the store's thread waits; return the outcomes."""
    waiting = await held.hold()
    calls = [asyncio.create_task(allocator.issue(name, 3)) for name in names]
    await settle()
    held.release()
    await asyncio.gather(waiting, return_exceptions=True)
    return await asyncio.gather(*calls, return_exceptions=True)


def ids_of_all(outcomes: list[IdRange | BaseException]) -> list[list[int]]:
    return [ids(each) for each in outcomes if isinstance(each, IdRange)]


async def test_refills_that_wait_share_a_transaction(held: HeldDatabase, allocator: Allocator) -> None:
    """The refills of many sequences are one commit, and each caller has the ids of its own one."""
    outcomes = await allocate_together(held, allocator, *NAMES)
    assert ids_of_all(outcomes) == [[1, 2, 3]] * len(NAMES)
    assert held.commits == 1 + 1  # the job that held the thread


async def test_tails_that_wait_share_a_transaction(
    held: HeldDatabase, allocator: Allocator, store: SqliteStore
) -> None:
    """P2: the tails of several sequences go back in one commit, each to its own row."""
    few = NAMES[:4]
    for _ in range(2):  # the second refill takes more than the caller wants
        for name in few:
            await allocator.issue(name, 3)
    waiting = await held.hold()
    closing = asyncio.create_task(allocator.return_leases())
    await settle()
    held.release()
    await asyncio.gather(waiting, closing)
    assert held.commits == 1 + 1
    assert [(await read_row(store, name)).last_value for name in few] == [6] * len(few)


async def test_a_refused_refill_fails_alone(
    held: HeldDatabase, allocator: Allocator, store: SqliteStore, path: Path
) -> None:
    """P1: a deleted, an exhausted and a corrupt sequence get their own errors, the others ids."""
    await store.create(new_row("exhausted", Sequence(max_value=2)))
    await store.create(new_row("deleted")._replace(deleted=True))
    await store.create(new_row("corrupt"))
    execute(path, "UPDATE sequences SET last_value = NULL WHERE name = 'corrupt'")
    outcomes = await allocate_together(held, allocator, "name-0", "exhausted", "deleted", "corrupt", "name-1")
    assert [type(each) for each in outcomes[1:4]] == [SequenceExhausted, SequenceDeleted, SequenceInvalid]
    assert ids_of_all(outcomes) == [[1, 2, 3]] * 2
    assert not allocator.burned.by_cause


async def test_a_failed_commit_burns_every_refill_in_it(held: HeldDatabase, allocator: Allocator) -> None:
    """P1, P9: after a failed commit each caller has an unknown outcome, and all ids are burned."""
    few = NAMES[:4]
    await held.database._run(lambda: held.database._connection.set_authorizer(deny_commit))  # type: ignore[union-attr]
    outcomes = await allocate_together(held, allocator, *few)
    assert [type(each) for each in outcomes] == [StoreOutcomeUnknown] * len(few)
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3 * len(few)}


async def test_files_that_vanish_at_the_commit_burn_all(held: HeldDatabase, allocator: Allocator, path: Path) -> None:
    """P3: if the file is removed before the commit, no refill in it grants, and none after it."""
    few = NAMES[:4]

    held.at_commit = lambda: path.unlink() if held.commits == 2 else None  # the first is that of the held job
    outcomes = await allocate_together(held, allocator, *few)
    assert [type(each) for each in outcomes] == [StoreOutcomeUnknown] * len(few)
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 3 * len(few)}
    for name in few:
        with pytest.raises(StoreWentBackwards):
            await allocator.issue(name, 3)


async def test_replaced_files_refuse_each_sequence(held: HeldDatabase, allocator: Allocator, path: Path) -> None:
    """P3: all refills that wait while the file is removed are refused."""
    waiting = await held.hold()
    calls = [asyncio.create_task(allocator.issue(name, 3)) for name in NAMES[:3]]
    await settle()
    path.unlink()
    held.release()
    await asyncio.gather(waiting, return_exceptions=True)
    for call in calls:
        with pytest.raises(StoreWentBackwards, match="found no file there"):
            await call


async def test_a_caller_that_leaves_cancels_no_refill(
    held: HeldDatabase, allocator: Allocator, store: SqliteStore
) -> None:
    """P9: a refill whose caller left goes on with the others, and later callers get its ids."""
    waiting = await held.hold()
    calls = [asyncio.create_task(allocator.issue(name, 3)) for name in NAMES[:3]]
    await settle()
    calls[1].cancel()
    held.release()
    await waiting
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert ids_of_all(outcomes) == [[1, 2, 3]] * 2
    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert ids(await allocator.issue(NAMES[1], 3)) == [1, 2, 3]
    assert (await read_row(store, NAMES[1])).last_value == 3
    assert held.commits == 1 + 1 + 1  # the last one is of the read


async def test_a_grant_that_is_cancelled_in_time_takes_none(held: HeldDatabase, store: SqliteStore) -> None:
    """P9: of grants that wait, one that is cancelled is left out of the transaction."""
    waiting = await held.hold()
    calls = [asyncio.create_task(store.grant(name, 3, 1000)) for name in NAMES[:3]]
    await settle()
    calls[1].cancel()
    await settle()
    held.release()
    await asyncio.gather(waiting, *calls, return_exceptions=True)
    assert [(await read_row(store, name)).last_value for name in NAMES[:3]] == [3, 0, 3]
