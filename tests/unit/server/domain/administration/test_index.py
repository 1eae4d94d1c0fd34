"""The index of the store's sequences: what it scans, keeps and sorts."""

import asyncio
from typing import Any

import pytest

from idalloc_server.domain.administration import index as module
from idalloc_server.domain.administration.index import SequenceIndex, SortKey
from idalloc_server.domain.administration.summary import SequenceSummary
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import SequenceInvalid, StoreUnavailable
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import Row
from tests.support.waiting import until

NOW = 1_790_000_000.0


class Clock(SystemClock):
    def wall(self) -> float:
        return NOW


class Rows:
    """Rows as the service reads them, with a summary by the number in the name."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.corrupt: set[str] = set()
        self.reads = 0
        self.is_away = False

    async def read_rows(self, prefix: str, after: str, limit: int) -> list[Row]:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("the store is away")
        found = [name for name in self.names if name > after][:limit]
        for name in found:
            if name in self.corrupt:
                raise SequenceInvalid(name, "corrupt")
        return [Row(name, 0, Sequence(), 1, 0, 0, "", None, None, False) for name in found]

    async def summaries_of(self, rows: list[Row]) -> list[SequenceSummary]:
        numbers = [int(row.name[1:]) for row in rows]
        return [
            SequenceSummary(row, "", number, 10, number / 100_000, float(number % 7), NOW + 1_000_000 - number)
            for row, number in zip(rows, numbers, strict=True)
        ]


async def scanned(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> SequenceIndex:
    """Return an index after one scan, whose pauses take no time."""
    monkeypatch.setattr(module, "PAUSE_RATIO", 0)
    found = SequenceIndex(rows, Clock())  # type: ignore[arg-type]
    await found._scan()
    return found


def names(found: SequenceIndex, sort: SortKey = SortKey.NAME, **how: Any) -> list[str]:
    asked: dict[str, Any] = {"search": "", "descending": False, "offset": 0, "limit": 50} | how
    return [each.row.name for each in found.find(sort=sort, **asked).sequences]


async def test_index_sorts_searches_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is a part of the list, sorted by name, use, rate or forecast, of names with a text."""
    index = await scanned(Rows([f"S{number:04}" for number in range(1_000)]), monkeypatch)
    assert names(index, limit=2, offset=998) == ["S0998", "S0999"]
    assert names(index, SortKey.USED, descending=True, limit=2) == ["S0999", "S0998"]
    assert names(index, SortKey.EXHAUSTS, limit=1) == ["S0999"]
    assert names(index, SortKey.RATE, limit=2) == ["S0000", "S0007"]
    assert names(index, search="s099") == [f"S099{digit}" for digit in range(10)]
    found = index.find("S099", SortKey.NAME, descending=False, offset=8, limit=5)
    assert (len(found.sequences), found.total, found.is_complete, found.as_of) == (2, 10, True, NOW)


async def test_index_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more sequences than the index keeps, the first ones by name are listed."""
    index = await scanned(Rows([f"S{number:05}" for number in range(module.MAX_KEPT + 300)]), monkeypatch)
    found = index.find("", SortKey.NAME, descending=False, offset=0, limit=1)
    assert (found.total, found.is_complete) == (module.MAX_KEPT, False)


async def test_a_corrupt_row_hides_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index leaves out corrupt rows, and only these."""
    rows = Rows([f"S{number:04}" for number in range(600)])
    rows.corrupt = {"S0000", "S0299", "S0300", "S0599"}
    index = await scanned(rows, monkeypatch)
    assert names(index, limit=1_000) == [name for name in rows.names if name not in rows.corrupt]


async def test_a_store_that_is_away_keeps_the_last_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed scan changes nothing, and the next one is tried; a request makes it come sooner."""
    rows = Rows(["S0001"])
    index = await scanned(rows, monkeypatch)
    rows.is_away = True
    monkeypatch.setattr(module, "REQUESTED_SECONDS", 0)
    follow = asyncio.create_task(index.follow())
    try:
        await until(lambda: rows.reads >= 2)
        assert names(index) == ["S0001"]
        await until(lambda: rows.reads >= 3)
        rows.is_away, rows.names = False, ["S0001", "S0002"]
        names(index)
        await until(lambda: names(index) == ["S0001", "S0002"])
    finally:
        follow.cancel()
        await asyncio.wait([follow])
