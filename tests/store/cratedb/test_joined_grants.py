"""Grants that wait share an UPDATE; each has its own outcome."""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Sequence as Many
from typing import Any

import pytest

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.errors import GrantLost, SequenceDeleted, StoreExchanged, StoreOutcomeUnknown
from idalloc_server.domain.sequences.sequence import Ordering, Sequence
from idalloc_server.domain.store.records import Grant
from idalloc_server.store.cluster import joined_writes
from idalloc_server.store.cluster.joined_writes import MAX_JOINED, MAX_REQUESTS
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.urls import open_store
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.fake_store import FakeClock
from tests.support.store_rows import grant, requested_row
from tests.support.waiting import settle, until

NAMES = "abc"
FIRST = [f"first {number}" for number in range(MAX_REQUESTS)]
CONFIG = AllocationConfig(lease_ttl=180.0, store_timeout=40.0, auto_create_sequences=True)
Outcome = Grant | BaseException | None


class Held:
    """A store whose first grants are held, so that later ones wait."""

    def __init__(self, crate: CrateEmulator, store: CrateStore) -> None:
        self.crate = crate
        self.store = store

    async def create(self, *names: str, ordering: Ordering = Ordering.RISING_PER_NODE) -> None:
        """Create sequences, and grant once of each: the first grant of a name goes alone."""
        for name in names:
            await self.store.create(requested_row(name, Sequence(ordering=ordering)))
            await grant(self.store, name, 0)

    async def joined(self, *names: str, faults: Many[Fault] = ()) -> list[Outcome]:
        """Return the outcomes of grants that wait together."""
        end = asyncio.Event()
        self.crate.requests.clear()
        self.crate.inject(*faults)
        self.crate.meanwhile = [*(("SET granted", end.wait) for _ in FIRST), *self.crate.meanwhile]
        first = [self.begin(name) for name in FIRST]
        await until(lambda: len(self.crate.writes()) == MAX_REQUESTS, "the first grants are sent")
        waiting = [self.begin(name) for name in names]
        await settle()
        end.set()
        await asyncio.gather(*first)
        return await asyncio.gather(*waiting, return_exceptions=True)

    def begin(self, name: str) -> asyncio.Task[Grant | None]:
        return asyncio.get_running_loop().create_task(self.store.grant(name, 5, 1000))

    def after(self) -> list[str]:
        """Return the forms of the later grants."""
        return ["joined" if "= ANY(" in text else "alone" for text in self.crate.writes()[MAX_REQUESTS:]]


@pytest.fixture
async def held(emulator: CrateEmulator, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(joined_writes, "STALL_SECONDS", 600.0)
    store = open_store(f"crate://{emulator.host}/?schema=ids", clock)
    assert isinstance(store, CrateStore)
    await store.open()
    held = Held(emulator, store)
    await held.create(*NAMES, *FIRST)
    yield held
    await store.close()


def last_values(outcomes: Many[Outcome]) -> list[int | None]:
    return [outcome.last_value if isinstance(outcome, Grant) else None for outcome in outcomes]


async def test_waiting_grants_share_an_update(held: Held) -> None:
    """Grants that wait are one UPDATE, each with its own ids and a version to give back."""
    outcomes = await held.joined(*NAMES)
    assert (last_values(outcomes), held.after()) == ([5, 5, 5], ["joined"])
    for name, outcome in zip(NAMES, outcomes, strict=True):
        assert isinstance(outcome, Grant)
        assert await held.store.give_back(name, 2, outcome.version)
        assert (await grant(held.store, name, 1)).last_value == 4


async def test_a_grant_that_waits_alone_is_as_without_others(held: Held) -> None:
    """One that waits without others is the UPDATE by key."""
    assert last_values(await held.joined("a")) == [5]
    assert held.after() == ["alone"]


async def test_a_large_batch_takes_more_statements(held: Held) -> None:
    """An UPDATE has at most MAX_JOINED names."""
    names = [f"other {number}" for number in range(MAX_JOINED + 2)]
    await held.create(*names)
    assert last_values(await held.joined(*names)) == [5] * len(names)
    assert held.after() == ["joined", "joined"]


async def test_a_name_is_once_in_a_statement(held: Held) -> None:
    """P1: a second grant of a row is in another UPDATE; neither gets ids of the other."""
    outcomes = await held.joined("a", "b", "a", "b", "c")
    assert sorted(last_values(outcomes), key=str) == [10, 10, 5, 5, 5]
    assert held.after() == ["joined", "joined"]


async def test_rising_ids_share_no_statement(held: Held) -> None:
    """A grant of RISING ids goes alone, also while others wait."""
    await held.create("rising", "risen", ordering=Ordering.RISING)
    assert last_values(await held.joined("a", "rising", "risen", "b")) == [5, 5, 5, 5]
    assert sorted(held.after()) == ["alone", "alone", "joined"]


async def test_a_row_is_refused_alone(held: Held) -> None:
    """SEQUENCE_DELETED, a bound: only the sequence of that row gets no ids."""
    sql = held.crate.statements
    sql.execute("UPDATE ids.sequences SET mode = 'deleted' WHERE name = 'b'", [])
    sql.execute("UPDATE ids.sequences SET max_value = 3 WHERE name = 'c'", [])
    deleted, bound, granted = await held.joined("b", "c", "a")
    assert isinstance(deleted, SequenceDeleted)
    assert isinstance(bound, Grant)
    assert (bound.granted, bound.remaining, last_values([granted])) == (0, 3, [5])
    assert held.after()[0] == "joined"


async def test_repeated_numbers_refuse_all(held: Held) -> None:
    """P3: each write of a joined UPDATE is numbered past all earlier ones, or all are refused."""

    async def rewind() -> None:
        held.crate.statements.rewind("ids", "sequences", 0)

    held.crate.meanwhile = [("= ANY(", rewind)]
    outcomes = await held.joined(*NAMES)
    assert [type(outcome) for outcome in outcomes] == [StoreExchanged] * 3


async def test_a_missing_row_is_lost_and_goes_alone(held: Held) -> None:
    """P1, P9: the outcome of a row that the answer lacks is unknown; its next grant goes alone."""
    held.crate.statements.refresh_ms = 1000
    outcomes = await held.joined("a", "b")
    assert [type(outcome) for outcome in outcomes] == [GrantLost, GrantLost]
    held.crate.statements.refresh_ms = 0
    assert last_values(await held.joined("a", "b", "c")) == [5, 5, 5]
    assert held.after() == ["alone", "alone", "alone"]
    assert last_values(await held.joined("a", "b")) == [10, 10]
    assert held.after() == ["joined"]


async def test_grants_of_a_refused_statement_go_alone(held: Held) -> None:
    """An UPDATE that CrateDB refuses may have changed rows: each grant is lost, then goes alone."""
    faults = [Fault("error", match="= ANY(", status=400, code=4000, message="SQLParseException[…]")]
    outcomes = await held.joined(*NAMES, faults=faults)
    assert [type(outcome) for outcome in outcomes] == [GrantLost] * 3
    assert "SQLParseException" in str(outcomes[0])
    assert last_values(await held.joined(*NAMES)) == [5, 5, 5]
    assert held.after() == ["alone"] * 3


@pytest.mark.parametrize("kind", ["drop", "garbage"])
async def test_a_statement_without_answer_burns_all(held: Held, kind: Any) -> None:
    """P1: a joined write without a clear answer is sent once; the ids of all are burned."""
    outcomes = await held.joined(*NAMES, faults=[Fault(kind, match="= ANY(")])
    assert all(isinstance(outcome, StoreOutcomeUnknown) for outcome in outcomes)
    assert held.after() == ["joined"]
    assert [(await grant(held.store, name, 1)).last_value for name in NAMES] == [6, 6, 6]


async def test_callers_do_not_notice_a_lost_grant(held: Held, clock: FakeClock) -> None:
    """P9: a lost grant is repeated at once; its ids are burned, of an unknown outcome."""
    allocator = Allocator(held.store, clock, CONFIG)
    held.crate.inject(Fault("error", match="= ANY(", status=400, code=4000))
    names = [*FIRST, *NAMES]
    issued = await asyncio.gather(*(allocator.issue(name, 2) for name in names))
    assert [each.first_id for each in issued] == [1] * len(names)
    assert allocator.burned.by_cause == {BurnCause.UNKNOWN_OUTCOME: 6}
