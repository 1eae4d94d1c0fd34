"""A store whose grants a witness confirms: fresh processes, too, refuse a restored store (P3).

The marks of a counter form one chain. A grant joins it only by replacing the very mark that was
read last, and only if it lies past that mark or in a gap before it. So no two grants of the chain
share an id, whatever the store did.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreOutcomeUnknown,
    StoreWentBackwards,
)
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Reset, Sequence, counts_ids
from idalloc_server.domain.store.identity import ANY_STORE, Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import (
    FIRST_USE,
    NO_MARK,
    Claim,
    Demand,
    Grant,
    Mark,
    Row,
    RowChange,
    RowVersion,
)
from idalloc_server.domain.witness.binding import open_with_witness
from idalloc_server.domain.witness.chain import ATTEMPTS, MarkChain, WitnessOvertaken, after_write
from idalloc_server.domain.witness.marks import START, Witness


@dataclass(eq=False)
class WitnessedStore:
    """A ``Store``, all ids of which a witness has confirmed before a caller gets them.

    A call that grants ids reads the mark of its counter, and replaces it after the store's answer.
    If the counter is behind the mark, and the mark has not changed since, the store went backwards.
    """

    _store: Store
    _witness: Witness
    _random: Callable[[int], bytes] = os.urandom  # returns random bytes of a given number

    def __post_init__(self) -> None:
        self.chain = MarkChain(self._witness, self._random)
        self.witness_address = self._witness.address  # without passwords or tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # the other methods

    async def open(self, opening: Opening = ANY_STORE) -> None:
        await open_with_witness(self._store, self._witness, opening)

    async def close(self) -> None:
        await self._store.close()
        await self._witness.close()

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mark = NO_MARK, demand: Demand | None = None
    ) -> Grant | None:
        """See ``Store.grant``.

        Raises:
            WitnessOvertaken: The ids are burned; repeat the call.
        """
        return await self._grant(name, floor, partial(self._store.grant, name, wanted, lease_ms, demand=demand))

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark = NO_MARK
    ) -> Grant | None:
        """See ``Store.grant_timestamps``, and ``grant``."""
        send = partial(self._store.grant_timestamps, name, wanted, lease_ms, now=now, ahead=ahead)
        return await self._grant(name, floor, send)

    async def create(self, row: Row) -> Row:
        """See ``Store.create``. A first use creates no row of a counter that has a mark."""
        mark = await self.chain.read(row.name)
        is_first_use = row.revised_by.startswith(FIRST_USE)
        if is_first_use and mark is not None:
            existing = await self._store.get(row.name)
            if existing is not None:
                return existing
            if await self._is_present(row.name, mark):
                raise _backwards(row.name, mark, "no such row")
            raise StoreAnsweredError(f"the mark of {row.name!r} changed meanwhile; try again")
        created = await self._store.create(row)
        if created.revised_by != row.revised_by:
            return created
        before = row.sequence.before_start
        if not is_first_use:
            await self._raise_mark(created, mark)
        elif row.last_value is not None and row.last_value != before:
            reached = Mark(row.generation, row.last_value, row.sequence.step)
            await self.chain.append(row.name, None, before, reached)
        return created

    async def open_period(self, name: str, sequence: Sequence, at_least: int, generation: int) -> None:
        """See ``Store.open_period``.

        A newer generation continues past the mark; an advance moves the mark.
        """
        mark = await self.chain.read(name)
        at_least = _at_least(sequence, at_least, generation, mark)
        await self._store.open_period(name, sequence, at_least, generation)
        if at_least != sequence.before_start:
            with after_write():
                row = await self._store.get(name)
            if row is not None:
                await self._raise_mark(row, mark)

    async def revise(self, name: str, revision: int, change: RowChange) -> Row | None:
        """See ``Store.revise``.

        A change that ends leases moves the counter past the mark, and moves the mark. If the
        witness fails after the change of the store, a repeat of the change does not move the mark;
        the next grant does.
        """
        if not change.ends_leases:
            return await self._store.revise(name, revision, change)
        mark = await self.chain.read(name)
        if mark is not None:
            sequence = change.sequence
            generation = max(change.generation, mark.generation + 1)
            if sequence.reset != Reset.NEVER:
                generation |= 1  # as in ``generation_after``
            change = change._replace(generation=generation)
            if counts_ids(name, sequence.reset):
                change = change._replace(at_least=_at_least(sequence, change.at_least, generation, mark))
        revised = await self._store.revise(name, revision, change)
        if revised is not None and revised.revised_by == change.by:
            await self._raise_mark(revised, mark)
        return revised

    async def give_back(self, name: str, count: int, version: RowVersion) -> bool:
        """See ``Store.give_back``. Lowers the mark first: from then on the tail is never issued."""
        *numbers, end = version
        mark = await self.chain.read(name)
        if mark is None or (mark.generation, mark.value) != (numbers[-1], end):
            return False  # another node has confirmed ids since
        if not await self.chain.replace(name, mark, end - count * mark.step):
            return False
        return await self._store.give_back(name, count, tuple(numbers))

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        """See ``Store.claim_start``.

        The start timestamp is later than all that the witness has confirmed (P6).
        """
        name = f"{START}{prefix}"
        for _ in range(ATTEMPTS):
            mark = await self.chain.read(name)
            least = max(at_least, mark.value + 1) if mark else at_least
            claim = await self._store.claim_start(prefix, least, holder, stale_after)
            start = claim.start_timestamp
            try:
                await self.chain.append(name, mark, start - 1, Mark(0, start, 1))
            except WitnessOvertaken:
                continue
            return claim
        raise StoreOutcomeUnknown(f"other nodes claimed later start timestamps of prefix {prefix} first; try again")

    async def _grant(self, name: str, floor: Mark, send: Callable[..., Awaitable[Grant | None]]) -> Grant | None:
        """Send a grant until it is not behind its mark, and confirm its ids."""
        for _ in range(ATTEMPTS):
            mark = await self.chain.read(name)
            reached = floor
            if mark is not None:  # the counter must have reached both
                is_other = floor.step * mark.step < 0 and floor.value != NO_MARK.value
                reached = floor if is_other or floor.is_past(mark.value) else mark
                reached = Mark(max(floor.generation, mark.generation), reached.value, reached.step)
            grant = await send(floor=reached)
            if mark is not None and (found := _behind(name, mark, grant)):
                granted = grant.granted if grant else 0
                if granted or await self._is_present(name, mark):
                    raise _backwards(name, mark, found, granted)
                continue
            if grant is None:
                return None
            if grant.granted:
                confirmed = Mark(grant.generation, grant.last_value, grant.sequence.step)
                await self.chain.append(name, mark, grant.value_before, confirmed)
            return grant._replace(version=(*grant.version, grant.last_value))  # for ``give_back``
        raise StoreAnsweredError(f"the mark of {name!r} changed in each of {ATTEMPTS} attempts; try again")

    async def _is_present(self, name: str, mark: Mark) -> bool:
        """Return whether a mark has not changed since it was read.

        A read alone may be of an older copy.
        """
        try:
            return await self.chain.replace(name, mark, mark.value)
        except StoreOutcomeUnknown as error:  # no ids depend on it
            raise StoreAnsweredError(str(error)) from error

    async def _raise_mark(self, row: Row, seen: Mark | None) -> None:
        """Move the mark to a row after its change; ``seen`` is the mark from before the change."""
        for _ in range(ATTEMPTS):
            if row.last_value is None:
                return
            counts = counts_ids(row.name, row.sequence.reset)
            reached = Mark(row.generation, row.last_value, row.sequence.step)
            if await self.chain.raise_to(row.name, seen, reached, counts=counts):
                return
            # A grant was confirmed meanwhile: before the change, or from an older copy that was
            # restored after it.
            with after_write():
                seen = await self.chain.read(row.name)
                found = await self._store.get(row.name)
            if found is None or found.generation < row.generation:
                raise StoreOutcomeUnknown(f"the store lost the change of {row.name!r}; try again")
            row = found
        raise StoreOutcomeUnknown(f"the mark of {row.name!r} changed in each of {ATTEMPTS} attempts; try again")


def _at_least(sequence: Sequence, at_least: int, generation: int, mark: Mark | None) -> int:
    """Return the value that a counter must reach in a newer generation."""
    if mark is None or mark.generation >= generation or mark.step * sequence.step < 0:
        return at_least
    return mark.value if mark.is_past(at_least) and not sequence.is_past(mark.value, sequence.bound) else at_least


def _behind(name: str, mark: Mark, grant: Grant | None) -> str:
    """Return what is behind the mark in the answer of a grant; empty if nothing is."""
    if grant is None:
        return "no such row"
    step = grant.sequence.step
    value = grant.value_before
    counts = counts_ids(name, grant.sequence.reset)
    is_other = counts and mark.step * step < 0
    if not is_other and not mark.is_ahead_of(grant.generation, value if counts else None):
        return ""
    found = f"value {value} in generation {grant.generation}"
    return f"{found} of another sequence (counts {'up' if step > 0 else 'down'})" if mark.step * step < 0 else found


def _backwards(name: str, mark: Mark, found: str, granted: int = 0) -> StoreWentBackwards:
    sequence, _, period = name.partition(PERIOD_SEPARATOR)
    of_period = f" of {period}" if period else ""
    seen = f"value {mark.value} in generation {mark.generation}{of_period} in the witness"
    error = StoreWentBackwards(sequence, seen, found + of_period)
    error.granted = granted
    return error
