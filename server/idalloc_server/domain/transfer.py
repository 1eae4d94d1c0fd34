"""All sequences of a store as JSON lines, and back into any store: for backups, and to move from one to another.

A file begins with ``{"idalloc_export": 1}``. Then come the sequences, each followed by the counters of its periods, and
the start timestamps of document ids. 64-bit numbers are texts, as in proto3's JSON, since many readers of JSON round
them. What is exported is never behind what was issued before; what is imported never lowers a counter.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import uuid4

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.epoch import TIMESTAMP_END
from idalloc_server.domain.errors import InvalidRequest, SequenceInvalid, StoreUnavailable
from idalloc_server.domain.rules import check_change, settle
from idalloc_server.domain.sequence import (
    MAX_ID,
    PERIOD_MARK,
    Kind,
    Ordering,
    Reset,
    check_name,
    name_of_period,
)
from idalloc_server.domain.store import Revision, Row, Store

FORMAT = 1
# Beyond the longest lease; for clocks that run at different speeds.
MARGIN_SECONDS = 1.0

_PAGE = 500
_ATTEMPTS = 10
# How the author of a retirement is told from others: such a sequence was not deleted, but has moved.
_RETIRED_BY = "retire:"
_ENUMS: dict[str, type[IntEnum]] = {"kind": Kind, "ordering": Ordering, "reset": Reset}
_INTEGERS = ("start", "step", "min_value", "max_value", "min_lease_size", "max_lease_size")
_TEXTS = ("format", "time_zone", "description")


async def export_lines(store: Store) -> AsyncIterator[str]:
    """Reads all that is in a store, as lines without their ends.

    Every id issued before the call, by any node, is at or before what is read; leases that nodes hold too, for their
    ids were taken from the counter already. Nodes may go on meanwhile.

    Raises:
        SequenceInvalid: The settings of a row cannot be read.
        StoreUnavailable: The store did not answer.
    """
    yield _line({"idalloc_export": FORMAT})
    async for row in _rows(store):
        yield _line(_of_row(row))
    for prefix, last_start in sorted((await store.claimed_starts()).items()):
        yield _line({"prefix": prefix, "last_start": str(last_start)})


async def retire(store: Store, clock: Clock, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> int:
    """Ends all sequences of a store whose nodes still run, and waits until no node issues an id of them any more.

    They become tombstones; an export tells of them as if they lived. It may be called again after a failure.

    Returns:
        How many it ended.
    """
    by, count, waited = f"{_RETIRED_BY}{uuid4()}", 0, False
    while True:
        lease_ms, ended = 0, 0
        async for row in _rows(store):
            if PERIOD_MARK in row.name or row.last_value is None:
                continue
            if not row.deleted:
                row = await _retire(store, clock, row, by)
                ended += 1
            lease_ms = max(lease_ms, row.lease_ms if row.revised_by.startswith(_RETIRED_BY) else 0)
        count += ended
        if waited and not ended:  # nor was one created in the meantime
            return count
        await sleep(lease_ms / 1000 + MARGIN_SECONDS)  # also where an earlier call ended them, and was ended itself
        waited = True


async def _retire(store: Store, clock: Clock, row: Row, by: str) -> Row:
    for _ in range(_ATTEMPTS):
        change = Revision(row.sequence, row.last_value or row.sequence.before_start, by, clock.wall(), deleted=True)
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
            yield row
        if len(rows) < _PAGE:
            return
        after = rows[-1].name


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def _of_row(row: Row) -> dict[str, Any]:
    name, _, period = row.name.partition(PERIOD_MARK)
    content: dict[str, Any] = {"sequence": name}
    last_value = None if row.last_value is None else str(row.last_value)
    if period:
        return content | {"period": period, "last_value": last_value, "generation": str(row.generation)}
    sequence = row.sequence
    return content | {
        "last_value": last_value,
        "generation": str(row.generation),
        "deleted": row.deleted and not row.revised_by.startswith(_RETIRED_BY),
        "lease_ms": str(row.lease_ms),
        "created_at": row.created_at,
        "changed_at": row.changed_at,
        "settings": {
            **{name: str(getattr(sequence, name)) for name in _INTEGERS},
            **{name: getattr(sequence, name).name for name in _ENUMS},
            **{name: getattr(sequence, name) for name in _TEXTS},
            "labels": dict(sequence.labels),
        },
    }


class Problem(NamedTuple):
    """A line that was not brought to the store.

    Attributes:
        line: Its number, from 1.
        why: What is wrong.
    """

    line: int
    why: str


class _Counter(NamedTuple):
    """The line of a period's counter."""

    line: int
    sequence: str
    period: str
    last_value: int
    generation: int


class _Claim(NamedTuple):
    """The line of a prefix."""

    prefix: int
    last_start: int


@dataclass
class _Item:
    """The line of a sequence, with the lines of its periods."""

    line: int
    row: Row
    periods: list[_Counter] = field(default_factory=list)


@dataclass
class File:
    """An exported file that was read.

    Attributes:
        problems: The lines that could not be understood.
    """

    problems: list[Problem] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)
    claims: list[_Claim] = field(default_factory=list)


def read(lines: Iterable[bytes]) -> File:
    """Reads an exported file. Nothing is written anywhere."""
    file = File()
    by_name: dict[str, _Item] = {}
    counters: list[_Counter] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError("must be a JSON object")
            if number == 1:
                if content.get("idalloc_export") != FORMAT:
                    raise ValueError(f'must be {{"idalloc_export": {FORMAT}}} in a file that can be read here')
            elif "prefix" in content:
                file.claims.append(_to_claim(content))
            elif "period" in content:
                counters.append(_to_counter(number, content))
            else:
                item = _Item(number, _to_row(content))
                if item.row.name in by_name:
                    raise ValueError(f"sequence {item.row.name!r} is in line {by_name[item.row.name].line} already")
                by_name[item.row.name] = item
                file.items.append(item)
        except json.JSONDecodeError as error:
            file.problems.append(Problem(number, f"is not JSON: {error}"))
        except (ValueError, InvalidRequest) as error:
            file.problems.append(Problem(number, str(error)))
    if not number:
        file.problems.append(Problem(1, "the file is empty"))
    for counter in counters:
        if (parent := by_name.get(counter.sequence)) is None:
            file.problems.append(Problem(counter.line, f"its sequence {counter.sequence!r} is not in the file"))
        else:
            parent.periods.append(counter)
    file.problems.sort()
    return file


def _to_row(content: dict[str, Any]) -> Row:
    name = _text(content, "sequence")
    check_name(name)
    settings = content.get("settings")
    if not isinstance(settings, dict):
        raise ValueError("settings: must be an object")
    if unknown := settings.keys() - {*_INTEGERS, *_ENUMS, *_TEXTS, "labels"}:
        raise ValueError(f"settings: there is no {min(unknown)}")
    given: dict[str, Any] = {}
    for key in settings:
        if key in _INTEGERS:
            given[key] = _integer(settings, key)
        elif key in _ENUMS:
            given[key] = _enum(settings, key)
        elif key in _TEXTS:
            given[key] = _text(settings, key)
        else:
            labels = settings[key]
            if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
                raise ValueError("labels: must be an object of texts")
            given[key] = MappingProxyType(labels)
    return Row(
        name=name,
        last_value=None if content.get("last_value", 0) is None else _integer(content, "last_value"),
        sequence=settle(given),
        generation=_integer(content, "generation", 1),
        lease_ms=_integer(content, "lease_ms", 0) if "lease_ms" in content else 0,
        created_at=_time(content, "created_at"),
        changed_at=_time(content, "changed_at"),
        deleted=content.get("deleted") is True,
    )


def _to_counter(line: int, content: dict[str, Any]) -> _Counter:
    return _Counter(
        line,
        _text(content, "sequence"),
        _text(content, "period"),
        _integer(content, "last_value"),
        _integer(content, "generation", 1),
    )


def _to_claim(content: dict[str, Any]) -> _Claim:
    return _Claim(_integer(content, "prefix", 0, 65_535), _integer(content, "last_start", 0, TIMESTAMP_END - 1))


def _integer(content: dict[str, Any], key: str, least: int = -MAX_ID, most: int = MAX_ID) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{key}: must be an integer, not {value!r}")
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{key}: must be an integer, not {value!r}") from None
    if not least <= number <= most:
        raise ValueError(f"{key}: must be between {least} and {most}, not {number}")
    return number


def _enum(content: dict[str, Any], key: str) -> IntEnum:
    names: Mapping[str, IntEnum] = _ENUMS[key].__members__
    if content[key] not in names:
        raise ValueError(f"{key}: must be one of {', '.join(names)}, not {content[key]!r}")
    return names[content[key]]


def _text(content: dict[str, Any], key: str) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key}: must be a text, not {value!r}")
    return value


def _time(content: dict[str, Any], key: str) -> float | None:
    value = content.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{key}: must be seconds since 1970, not {value!r}")
    return value


class _Refused(Exception):
    """A line does not go into the store."""


@dataclass
class Import:
    """Brings what was read to a store. It may be done again after a failure, and as often as one likes.

    Attributes:
        problems: The lines that were refused.
        created: How many sequences were created.
        raised: How many were there, and were raised or changed.
        unchanged: How many were there just so.
        claims: How many prefixes were brought.
        effective_at: From when on no node issues an id at or before the imported ones, in seconds since 1970, where
            leases had to end; None where none had to.

    Args:
        store: Where to.
        clock: For dates.
    """

    store: Store
    clock: Clock
    problems: list[Problem] = field(default_factory=list)
    created: int = 0
    raised: int = 0
    unchanged: int = 0
    claims: int = 0
    effective_at: float | None = None
    by: str = field(default_factory=lambda: f"import:{uuid4()}")

    async def run(self, file: File) -> None:
        """Brings everything that can be brought; what cannot is among ``problems`` afterwards.

        Raises:
            StoreUnavailable: The store did not answer. What was brought before stays.
        """
        for claim in file.claims:
            await self.store.raise_start(claim.prefix, claim.last_start)
            self.claims += 1
        for item in file.items:
            try:
                await self._bring(item)
            except (_Refused, InvalidRequest, SequenceInvalid) as error:
                self.problems.append(Problem(item.line, str(error)))
                self.problems += [Problem(each.line, f"its line {item.line} was refused") for each in item.periods]
        self.problems.sort()

    async def _bring(self, item: _Item) -> None:
        if item.row.last_value is None:
            raise _Refused(f"sequence {item.row.name!r} has no last_value: write one into the line")
        for _ in range(_ATTEMPTS):
            row = await self.store.get(item.row.name)
            generation = await self._bring_periods(item, row)
            if row is None:
                found: Row | None = await self._create(item.row, generation)
                counted = "created"
            elif self._is_there(item.row, row) and generation <= row.generation:
                self.unchanged += 1
                return
            else:
                found = await self._revise(item.row, row, generation)
                counted = "raised"
            if found is not None and found.revised_by == self.by:
                setattr(self, counted, getattr(self, counted) + 1)
                if row is not None:
                    effective_at = self.clock.wall() + found.lease_ms / 1000 + MARGIN_SECONDS
                    self.effective_at = max(self.effective_at or 0, effective_at)
                return
        raise StoreUnavailable(f"sequence {item.row.name!r} is changed by others all the time")

    def _is_there(self, line: Row, row: Row) -> bool:
        """Whether the store has it just so already.

        Raises:
            _Refused: It would be lowered, or come back from the dead.
        """
        if row.last_value is None:
            return False
        if line.sequence.is_past(row.last_value, _counter(line)):
            raise _lowers(f"sequence {line.name!r}", row.last_value, _counter(line))
        if line.deleted and not row.deleted:
            raise _Refused(f"sequence {line.name!r} is deleted in the file, and lives here: delete it here first")
        moved = row.revised_by.startswith(_RETIRED_BY)
        if row.deleted and not line.deleted and not moved and line.generation <= row.generation:
            raise _Refused(f"sequence {line.name!r} was deleted here since: create it again first")
        return (
            line.last_value == row.last_value
            and line.sequence == row.sequence
            and line.deleted == row.deleted
            and line.generation <= row.generation
        )

    async def _create(self, line: Row, generation: int) -> Row:
        now = self.clock.wall()
        return await self.store.create(
            line._replace(
                generation=max(line.generation + 1, generation),
                revision=1,
                revised_by=self.by,
                created_at=now if line.created_at is None else line.created_at,
                changed_at=now,
            )
        )

    async def _revise(self, line: Row, row: Row, generation: int) -> Row | None:
        last_value = _counter(line) if row.last_value is None else row.last_value
        check_change(row.sequence, line.sequence, last_value)
        return await self.store.revise(
            line.name,
            row.revision,
            Revision(
                line.sequence,
                _counter(line),
                self.by,
                self.clock.wall(),
                generation=max(line.generation + 1, generation),
                # A node may move it on meanwhile, past a bound that the line brings.
                limit=line.sequence.bound if line.sequence.bound != row.sequence.bound else None,
                deleted=line.deleted,
            ),
        )

    async def _bring_periods(self, item: _Item, row: Row | None) -> int:
        """Brings the counters of periods. They go first, into a generation that their sequence is yet to reach.

        Otherwise a node could open one of them in the new generation, and hold ids that no later write would end.

        Returns:
            The generation that the sequence must reach; 0 for any.
        """
        if row is not None:
            self._is_there(item.row, row)  # refuses before anything is written
            check_change(row.sequence, item.row.sequence, _counter(item.row))
        least, reached = max(item.row.generation, row.generation if row else 0), 0
        for line in item.periods:
            name, wanted = name_of_period(line.sequence, line.period), item.row.sequence.reaching(line.last_value)
            there = await self.store.get(name)
            if there is not None and there.last_value is not None:
                # Left so by an earlier import that did not come to its end.
                reached = max(reached, there.generation)
                if item.row.sequence.is_past(there.last_value, wanted):
                    what = f"period {line.period} of sequence {line.sequence!r}"
                    self._refuse(line.line, _lowers(what, there.last_value, line.last_value))
                    continue
                if there.last_value == wanted:
                    continue
                least = max(least, there.generation)
            await self.store.open_period(name, item.row.sequence, wanted, least + 1)
            reached = max(reached, least + 1)
        return reached

    def _refuse(self, line: int, why: _Refused) -> None:
        problem = Problem(line, str(why))
        if problem not in self.problems:
            self.problems.append(problem)


def _counter(row: Row) -> int:
    return row.sequence.before_start if row.last_value is None else row.last_value


def _lowers(what: str, here: int, line: int) -> _Refused:
    return _Refused(f"{what} would be lowered from {here} to {line}: a counter is never lowered")
