"""Writes that wait for the file share a transaction, and each has an outcome of its own."""

import asyncio
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from idalloc_server.domain.errors import StoreFailure, StoreOutcomeUnknown, StoreRefused, StoreUnreachable
from idalloc_server.store.sqlite.database import MAX_JOINED_WRITES, Database
from tests.store.sqlite.conftest import HeldDatabase, deny_commit
from tests.support.collector import without_collector
from tests.support.waiting import until


def create_table(db: sqlite3.Connection, _: Path) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS written (number INTEGER PRIMARY KEY)")


def insert(number: int, db: sqlite3.Connection) -> int:
    db.execute("INSERT INTO written VALUES (?)", (number,))
    return number


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[HeldDatabase]:
    database = Database(tmp_path / "ids.db", 5.0, create_table)
    await database.open()
    held = HeldDatabase(database)
    yield held
    held.release()
    await database.close()


async def numbers(held: HeldDatabase) -> list[int]:
    """Return the numbers that are stored."""
    select = "SELECT number FROM written ORDER BY number"
    return await held.database.read(lambda db: [number for (number,) in db.execute(select)])


async def joined(held: HeldDatabase, *works: Callable[[sqlite3.Connection], int]) -> list[int | BaseException]:
    """Join writes while the thread waits, and return their outcomes."""
    waiting = await held.hold()
    writes = [asyncio.ensure_future(held.database.join(work)) for work in works]
    await asyncio.sleep(0)
    held.release()
    await waiting
    return await asyncio.gather(*writes, return_exceptions=True)


async def test_waiting_writes_share_a_transaction(held: HeldDatabase) -> None:
    """Writes that wait are committed at once, in the order of the calls; each gets its answer."""
    first = await joined(held, *(partial(insert, number) for number in range(MAX_JOINED_WRITES)))
    assert (first, held.commits) == ([*range(MAX_JOINED_WRITES)], 1 + 1)  # the job that held the thread
    assert await numbers(held) == first


async def test_a_lone_write_begins_without_the_event_loop(held: HeldDatabase) -> None:
    """The thread has a write when the call returns, and waits for no callback."""
    await held.database.join(partial(insert, 1))
    begun = threading.Event()
    write = held.database.transact_together(lambda _: begun.set())
    assert begun.wait(10)  # the event loop runs nothing meanwhile
    await write


async def test_callbacks_that_are_ready_join_after_a_joined_write(held: HeldDatabase) -> None:
    """Once writes have shared a transaction, those of callbacks that are ready share the next."""
    await joined(held, partial(insert, 1), partial(insert, 2))
    loop = asyncio.get_running_loop()
    writes: list[asyncio.Future[int]] = []

    def write(number: int) -> None:
        writes.append(held.database.transact_together(partial(insert, number)))
        has_run = threading.Event()
        held.database._thread.queue(has_run.set)
        assert has_run.wait(10)  # the thread has run all jobs that it has

    for number in range(3, 6):
        loop.call_soon(write, number)
    await asyncio.sleep(0)
    assert await asyncio.gather(*writes) == [3, 4, 5]
    assert held.commits == 1 + 1 + 1  # the job that held the thread, the two writes, these


async def test_a_transaction_has_at_most_so_many_writes(held: HeldDatabase) -> None:
    """More writes than the limit take several transactions."""
    outcomes = await joined(held, *(partial(insert, number) for number in range(3 * MAX_JOINED_WRITES)))
    assert outcomes == [*range(3 * MAX_JOINED_WRITES)]
    assert held.commits == 1 + 3


async def test_a_lone_write_is_a_transaction_without_savepoint(held: HeldDatabase) -> None:
    """A write beside which none waits costs what it cost without the others."""
    statements: list[str] = []
    await held.database.read(lambda db: db.set_trace_callback(statements.append))
    statements.clear()
    assert await held.database.join(partial(insert, 1)) == 1
    assert statements == ["BEGIN IMMEDIATE", "INSERT INTO written VALUES (1)", "COMMIT"]


def break_halfway(db: sqlite3.Connection) -> int:
    insert(7, db)
    raise ValueError("refused")


async def test_a_failing_write_fails_alone(held: HeldDatabase) -> None:
    """A write that fails, by SQLite or by itself, is undone, and the others are applied."""
    outcomes = await joined(held, partial(insert, 1), break_halfway, partial(insert, 1), partial(insert, 2))
    assert (outcomes[0], outcomes[3]) == (1, 2)
    assert isinstance(outcomes[1], ValueError)
    assert isinstance(outcomes[2], StoreFailure)
    assert "UNIQUE constraint failed" in str(outcomes[2])
    assert await numbers(held) == [1, 2]


class Failing:
    """A write that fails by itself."""

    def __call__(self, db: sqlite3.Connection) -> int:
        raise ValueError


@pytest.mark.parametrize("others", [0, 2])
async def test_a_failed_write_is_not_kept(held: HeldDatabase, others: int) -> None:
    """What a failed write referred to is freed at once, not by the garbage collector."""
    with without_collector():
        failing = Failing()
        kept = weakref.ref(failing)
        await joined(held, failing, *(partial(insert, number) for number in range(others)))
        del failing
        await until(lambda: kept() is None, "the thread drops the write")


async def test_a_failed_commit_answers_all(held: HeldDatabase) -> None:
    """If the commit fails, each write in the transaction has an unknown outcome."""

    def add_authorizer(db: sqlite3.Connection) -> int:
        db.set_authorizer(deny_commit)
        return insert(1, db)

    outcomes = await joined(held, add_authorizer, partial(insert, 2), break_halfway)
    assert [type(each) for each in outcomes] == [StoreOutcomeUnknown] * 3
    await held.database.write(lambda db: db.set_authorizer(None), "SAVEPOINT other")
    assert await numbers(held) == []


async def test_cancelled_writes_are_left_out(held: HeldDatabase) -> None:
    """A write whose caller left before it began is not applied; the others are."""
    waiting = await held.hold()
    writes = [asyncio.ensure_future(held.database.join(partial(insert, number))) for number in range(4)]
    await asyncio.sleep(0)
    writes[0].cancel()
    writes[2].cancel()
    await asyncio.sleep(0)
    held.release()
    await waiting
    assert [await writes[1], await writes[3]] == [1, 3]
    assert await numbers(held) == [1, 3]


async def test_a_write_to_a_closed_store_is_not_applied(held: HeldDatabase) -> None:
    """A write that the closed store refuses does not join one that was queued before."""
    waiting = await held.hold()
    before = held.database.transact_together(partial(insert, 1))
    held.database._thread.run(held.database._close)
    held.database._thread.close()
    with pytest.raises(StoreUnreachable):
        await held.database.join(partial(insert, 2))
    held.release()
    await waiting
    assert await before == 1
    with closing(sqlite3.connect(held.database.path)) as other:
        assert other.execute("SELECT number FROM written").fetchall() == [(1,)]


async def test_writes_that_still_wait_at_a_close_are_refused(held: HeldDatabase) -> None:
    """Writes beyond those of the last transaction are refused, and none is applied later."""
    waiting = await held.hold()
    writes = [held.database.transact_together(partial(insert, number)) for number in range(MAX_JOINED_WRITES + 2)]
    held.database._thread.run(held.database._close)
    held.database._thread.close()
    held.release()
    await waiting
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert outcomes[:MAX_JOINED_WRITES] == [*range(MAX_JOINED_WRITES)]
    assert [type(each) for each in outcomes[MAX_JOINED_WRITES:]] == [StoreUnreachable] * 2
    with closing(sqlite3.connect(held.database.path)) as other:
        assert other.execute("SELECT count(*) FROM written").fetchone() == (MAX_JOINED_WRITES,)


async def test_writes_of_one_statement_need_no_savepoint(held: HeldDatabase) -> None:
    """They share a transaction, and one that fails is undone by SQLite alone."""
    statements: list[str] = []
    waiting = await held.hold()
    held.database._thread.run(lambda: held.database._connection.set_trace_callback(statements.append))  # type: ignore[union-attr]
    values = (1, 2, 1, 3)
    writes = [held.database.transact_together(partial(insert, each), is_one_statement=True) for each in values]
    held.release()
    await waiting
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [each if isinstance(each, int) else type(each) for each in outcomes] == [1, 2, StoreRefused, 3]
    inserts = [f"INSERT INTO written VALUES ({number})" for number in values]
    assert statements == ["BEGIN IMMEDIATE", *inserts, "COMMIT"]
    assert await numbers(held) == [1, 2, 3]
