"""The steps of a call that all clusters share: clamping, and when the retirement row is read."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from idalloc_server.domain.errors import (
    NULL_LAST_VALUE,
    Refusal,
    SequenceDeleted,
    SequenceInvalid,
    StartRefused,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreRetired,
    StoreUnavailable,
)
from idalloc_server.domain.sequences.sequence import MAX_ID, MAX_STEP, PERIOD_SEPARATOR, Sequence
from idalloc_server.domain.store.identity import (
    ANY_STORE,
    IDENTITY,
    Opening,
    Part,
    check_parts,
    check_place,
    identity_row,
    listed,
    new_name,
)
from idalloc_server.domain.store.records import NO_MARK, Claim, Demand, Grant, Mark, Row, RowChange, RowVersion
from idalloc_server.domain.store.retirement import RETIREMENT, raise_if_retired, retirement_blocks, retiring_change
from idalloc_server.store.bounds import MIN_BIGINT, clamp_to_bigint
from idalloc_server.store.cluster.http_transport import Transport
from idalloc_server.store.stored_rows import PERIOD, TIMESTAMP

# The modes of rows that a grant, and a grant of timestamps, can be taken from.
COUNTERS = (None, PERIOD)
TIMESTAMPS = (TIMESTAMP,)
# The pause before a store that seems to have lost a part is looked at again.
SECOND_LOOK_SECONDS = 1.0
# The most sequences whose checked generation a process remembers.
_MAX_CHECKED = 100_000


@dataclass(eq=False)
class ClusterStore(ABC):
    """The common part of the stores in clusters, which have no transactions; see ``Store``.

    The retirement row is read before and after a row is created or revived, and after the first
    grant of each generation of a sequence. If there is none after a write, the write came before
    it, and is in the export.
    """

    address: str  # the cluster's address for people, without secrets
    http: Transport

    def __post_init__(self) -> None:
        self._checked_generations: dict[str, int] = {}  # of sequences that were granted ids
        self.opened: Mapping[str, str] = {}  # see ``Store.opened``

    async def open(self, opening: Opening = ANY_STORE) -> None:
        parts, name = await self._look(opening)
        name = name or new_name(parts, opening) if opening.creates else name
        held = [await self._set_up(parts[0].name, name, creates=opening.creates)]
        row = await self.get(IDENTITY)  # on OpenSearch a write, whose number later ones must pass
        if opening.creates:
            row = row or await self._create(identity_row(held[0] or name))
            if not opening.repairs:  # a process that starts at the same time may have named the store
                name = row.sequence.description
        held += [await self._set_up(part.name, name, creates=opening.creates) for part in parts[1:]]
        holders = [part._replace(store=store) for part, store in zip(parts, held, strict=True)]
        if opening.creates and row and (change := listed(row, name, holders)):
            await self.revise(IDENTITY, row.revision, change)
        self.opened = {"name": name, **self._places()}
        check_place(opening, self.opened)

    async def _look(self, opening: Opening) -> tuple[list[Part], str]:
        """Return the parts and the name of the store.

        Another process may create or name the parts between two reads. So a store is refused only
        if it does not change any more.
        """
        seen: object = None
        while True:
            parts, identity = await self._inspect(opening)
            try:
                return parts, check_parts(parts, identity, opening)
            except StartRefused:
                if seen == (parts, identity):
                    raise
            seen = (parts, identity)
            await asyncio.sleep(SECOND_LOOK_SECONDS)

    async def close(self) -> None:
        await self.http.close()

    @abstractmethod
    async def get(self, name: str) -> Row | None: ...

    @abstractmethod
    async def give_back(self, name: str, count: int, version: RowVersion) -> bool: ...

    async def grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mark = NO_MARK, demand: Demand | None = None
    ) -> Grant | None:
        wanted = wanted if wanted <= MAX_ID else 0  # more than any sequence has left, and than a BIGINT holds
        return await self._accept_grant(
            name, self._grant(name, wanted, lease_ms, floor=_bounds_of(floor), demand=demand)
        )

    async def grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mark = NO_MARK
    ) -> Grant | None:
        sending = self._grant_timestamps(
            name,
            min(wanted, MAX_ID),
            lease_ms,
            now=clamp_to_bigint(now),
            ahead=min(ahead, MAX_STEP),
            floor=_bounds_of(floor),
        )
        grant = await self._accept_grant(name, sending)
        # Timestamps between the counter and the clock are lost.
        if grant is not None and not grant.granted and grant.remaining:
            left = grant.sequence.max_value - max(grant.last_value, now - 1)
            return grant._replace(remaining=max(0, left))
        return grant

    async def create(self, row: Row) -> Row:
        if retirement_blocks(row.name):
            await self._check_retired(row.name)
        stored = await self._create(row)
        try:
            return await self._end_if_retired(stored)
        except StoreRetired as refusal:
            if row.last_value == row.sequence.before_start:  # it was created without ids
                raise
            raise _not_given_back(refusal) from refusal

    async def revise(self, name: str, revision: int, change: RowChange) -> Row | None:
        if retirement_blocks(name, change):
            await self._check_retired(name)
        sequence = change.sequence
        before = sequence.before_start
        no_limit = MAX_ID if sequence.step > 0 else MIN_BIGINT
        limit = no_limit if change.limit is None else clamp_to_bigint(change.limit)
        at_least = clamp_to_bigint(change.at_least if sequence.is_past(change.at_least, before) else before)
        row = await self._revise(name, revision, change, limit=limit, at_least=at_least)
        if row is None:
            return None
        if row.last_value is None:
            raise SequenceInvalid(name, NULL_LAST_VALUE)
        return await self._end_if_retired(row)

    async def claim_start(self, prefix: int, at_least: int, holder: str, stale_after: float) -> Claim:
        await self._check_retired()
        claim = await self._claim_start(prefix, at_least, holder, round(stale_after * 1000))
        raise_if_retired(await self._retirement_after_write())
        return claim

    async def _check_retired(self, name: str = "") -> None:
        """Raise ``StoreRetired`` if the store is retired; ``name`` is the sequence of the call."""
        raise_if_retired(await self.get(RETIREMENT), name)

    async def _retirement_after_write(self) -> Row | None:
        """Return the retirement row; if it cannot be read, it may precede the write."""
        try:
            return await self.get(RETIREMENT)
        except StoreFailure as error:
            raise _retirement_unknown(error) from error

    async def _end_if_retired(self, row: Row) -> Row:
        """Return a row that was written.

        If the store was retired meanwhile, delete the row again and refuse.
        """
        if row.deleted or not retirement_blocks(row.name):
            return row
        found = await self._retirement_after_write()
        if found is not None and not found.deleted:
            await self.revise(row.name, row.revision, retiring_change(row, found))
        raise_if_retired(found, row.name)
        return row

    async def _accept_grant(self, name: str, sending: Coroutine[Any, Any, Grant | None]) -> Grant | None:
        """Return the grant of an answer; give it back if the store is retired, or may be."""
        try:
            grant = await sending
        except SequenceDeleted:
            await self._check_retired(name)
            raise
        # The counter of a period is used only under a proof of its sequence, which is checked.
        if grant is None or PERIOD_SEPARATOR in name or self._checked_generations.get(name) == grant.generation:
            return grant
        try:
            await self._check_retired(name)
        except StoreUnavailable as error:
            raise _retirement_unknown(error) from error
        except (StoreRetired, StoreRefused) as refusal:
            try:
                is_back = not grant.granted or await self.give_back(name, grant.granted, grant.version)
            except StoreFailure:
                is_back = False
            if is_back:
                raise
            raise _not_given_back(refusal) from refusal
        if len(self._checked_generations) >= _MAX_CHECKED:
            self._checked_generations.clear()
        self._checked_generations[name] = grant.generation
        return grant

    @abstractmethod
    async def _inspect(self, opening: Opening) -> tuple[list[Part], Sequence | None]:
        """Check the cluster and what it has of the store.

        Returns:
            The parts, the sequences first; the settings in the row of the store's name, if there is
            one.
        """

    @abstractmethod
    async def _set_up(self, part: str, store: str, *, creates: bool) -> str:
        """Open a part; with ``creates``, also create or complete it and give it the store's name.

        Returns:
            The name that it holds.
        """

    @abstractmethod
    def _places(self) -> Mapping[str, str]:
        """Return what identifies the opened tables or indices."""

    # One write each, without the steps before and after it; each number fits into 64 bits.

    @abstractmethod
    async def _grant(
        self, name: str, wanted: int, lease_ms: int, floor: Mapping[str, int], demand: Demand | None
    ) -> Grant | None: ...

    @abstractmethod
    async def _grant_timestamps(
        self, name: str, wanted: int, lease_ms: int, now: int, ahead: int, floor: Mapping[str, int]
    ) -> Grant | None: ...

    @abstractmethod
    async def _create(self, row: Row) -> Row: ...

    @abstractmethod
    async def _revise(self, name: str, revision: int, change: RowChange, limit: int, at_least: int) -> Row | None: ...

    @abstractmethod
    async def _claim_start(self, prefix: int, at_least: int, holder: str, stale_after_ms: int) -> Claim: ...


def _bounds_of(floor: Mark) -> dict[str, int]:
    """Return the least generation, and the least and the largest value, that statements compare."""
    value = clamp_to_bigint(floor.value)
    least, most = (value, MAX_ID) if floor.step > 0 else (MIN_BIGINT, value)
    return {"generation": floor.generation, "least": least, "most": most}


def _not_given_back(refusal: Refusal) -> StoreOutcomeUnknown:
    """Return the error by which the caller counts the ids as burned.

    Its next call gets the refusal itself.
    """
    return StoreOutcomeUnknown(f"ids were granted and cannot be given back: {refusal}")


def _retirement_unknown(error: StoreFailure) -> StoreOutcomeUnknown:
    return StoreOutcomeUnknown(f"the store did not answer whether it is retired: {error}")
