"""Import exported sequences into a store. A counter is never lowered."""

from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from idalloc_server.backup.export_file import File, Item, Problem
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import InvalidRequest, SequenceDeleted, SequenceInvalid, StoreUnavailable
from idalloc_server.domain.generations import MARGIN_SECONDS, advance_period, generation_after
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.retirement import RETIRED_BY, RETIREMENT, refuse_retired
from idalloc_server.domain.sequences.model import Reset, name_of_period
from idalloc_server.domain.sequences.validation import changed_bound, check_change
from idalloc_server.domain.store import Store

_ATTEMPTS = 10


class _Refused(Exception):
    """A line does not go into the store."""


class _Lowers(_Refused):
    """A line has a lower counter than the store."""


@dataclass
class Importer:
    """Brings what was read to a store. It may be done again after a failure, and as often as one likes.

    Each time it ends the leases of every sequence that is in the store already, also where the counters are equal,
    unless no node ever had a lease of it.

    Attributes:
        problems: The lines that were refused.
        created: How many sequences were created.
        raised: How many were there, and were raised, or changed, or had their leases ended.
        unchanged: How many were there just so, and never had a lease.
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
            StoreRetired: The store is retired; see ``unretire``. Nothing was brought.
            StoreUnavailable: The store did not answer. What was brought before stays.
        """
        refuse_retired(await self.store.get(RETIREMENT))
        for claim in file.claims:
            await self.store.raise_start(claim.prefix, claim.last_start)
            self.claims += 1
        for item in file.items:
            try:
                await self._bring(item)
            except (_Refused, InvalidRequest, SequenceInvalid) as error:
                if isinstance(error, _Lowers):
                    await self._end_leases(item.row)
                self.problems.append(Problem(item.line, str(error)))
                self.problems += [Problem(each.line, f"its line {item.line} was refused") for each in item.periods]
        self.problems.sort()

    async def _bring(self, item: Item) -> None:
        if item.row.last_value is None:
            raise _Refused(f"sequence {item.row.name!r} has no last_value: write one into the line")
        for _ in range(_ATTEMPTS):
            row = await self.store.get(item.row.name)
            generation = await self._bring_periods(item, row)
            if row is None:
                found: Row | None = await self._create(item.row, generation)
                counted = "created"
            elif self._is_there(item.row, row) and generation < row.generation and not _leases_may_live(item.row, row):
                self.unchanged += 1
                return
            else:
                await self._lengthen_leases(item.row, row)
                found = await self._revise(item.row, row, generation)
                counted = "raised"
            if found is not None and found.revised_by == self.by:
                setattr(self, counted, getattr(self, counted) + 1)
                if row is not None:
                    self._ended(item.row, found)
                return
        raise StoreUnavailable(f"sequence {item.row.name!r} is changed by others all the time")

    async def _end_leases(self, line: Row) -> None:
        """Ends the leases of a sequence that is past a line's counter, and stays so.

        It may be past it only by ids that a node holds, whose tail would go back below the line.
        """
        for _ in range(_ATTEMPTS):
            row = await self.store.get(line.name)
            if row is None or row.deleted or not _leases_may_live(line, row):
                return
            await self._lengthen_leases(line, row)
            found = await self._revise(row, row, generation=0)
            if found is not None and found.revised_by == self.by:
                self._ended(line, found)
                return
        raise StoreUnavailable(f"sequence {line.name!r} is changed by others all the time")

    def _ended(self, line: Row, found: Row) -> None:
        """Notes when the leases of a row have ended that was changed just now."""
        effective_at = self.clock.wall() + max(found.lease_ms, line.lease_ms) / 1000 + MARGIN_SECONDS
        self.effective_at = max(self.effective_at or 0, effective_at)

    def _is_there(self, line: Row, row: Row) -> bool:
        """Whether the store has it just so already.

        Raises:
            _Refused: It would be lowered, or come back from the dead.
        """
        if row.last_value is None:
            return False
        # With a reset the counters of the periods count: this one only says where a new period would start.
        counts = line.sequence.reset == Reset.NEVER
        if counts and line.sequence.is_past(row.last_value, _counter(line)):
            raise _lowers(f"sequence {line.name!r}", row.last_value, _counter(line))
        if line.deleted and not row.deleted:
            raise _Refused(f"sequence {line.name!r} is deleted in the file, and lives here: delete it here first")
        moved = row.revised_by.startswith(RETIRED_BY)
        if row.deleted and not line.deleted and not moved and line.generation <= row.generation:
            raise _Refused(f"sequence {line.name!r} was deleted here since: create it again first")
        return (
            (line.last_value == row.last_value or not counts)
            and line.sequence == row.sequence
            and line.deleted == row.deleted
            and line.generation <= row.generation
        )

    async def _lengthen_leases(self, line: Row, row: Row) -> None:
        """Has the row say how long the exported leases may live, which a restored copy may not know.

        Later changes of the sequence say by it from when on they are effective.
        """
        if line.lease_ms > row.lease_ms and not row.deleted:
            with suppress(SequenceDeleted):  # in the meantime
                await self.store.grant(line.name, 0, line.lease_ms)

    async def _create(self, line: Row, generation: int) -> Row:
        now = self.clock.wall()
        return await self.store.create(
            line._replace(
                generation=generation_after(line.sequence, max(line.generation, generation), self.clock),
                revision=1,
                revised_by=self.by,
                created_at=now if line.created_at is None else line.created_at,
                changed_at=now,
            )
        )

    async def _revise(self, line: Row, row: Row, generation: int) -> Row | None:
        return await self.store.revise(
            line.name,
            row.revision,
            Revision(
                line.sequence,
                _counter(line),
                self.by,
                self.clock.wall(),
                generation=generation_after(
                    line.sequence, max(line.generation, row.generation, generation), self.clock
                ),
                # A node may move it on meanwhile, past a bound that the line brings.
                limit=changed_bound(row.sequence, line.sequence),
                deleted=line.deleted,
            ),
        )

    async def _bring_periods(self, item: Item, row: Row | None) -> int:
        """Brings the counters of periods. They go first, into a generation that their sequence is yet to reach.

        Otherwise a node could open one of them in the new generation, and hold ids that no later write would end.

        Returns:
            The generation that the sequence must go past; 0 for none.
        """
        if row is not None:
            self._is_there(item.row, row)  # refuses before anything is written
            check_change(row.sequence, item.row.sequence, _counter(item.row))
        least, reached = max(item.row.generation, row.generation if row else 0), 0
        for line in item.periods:
            name, wanted = name_of_period(line.sequence, line.period), line.last_value
            there = await self.store.get(name)
            if there is not None and there.last_value is not None:
                may_live = there.lease_ms > 0 or (row is not None and _leases_may_live(item.row, row))
                is_past = item.row.sequence.is_past(there.last_value, wanted)
                if is_past:
                    what = f"period {line.period} of sequence {line.sequence!r}"
                    self._refuse(line.line, _lowers(what, there.last_value, wanted))
                # Where leases may live, the counter goes to a new generation too: else a tail could go back below it.
                if may_live:
                    wanted = there.last_value if is_past else wanted
                elif is_past or there.last_value == wanted:
                    if not is_past and there.generation > (row.generation if row else 0):
                        # Left so by a change that did not come to its end, or before a node has followed it.
                        reached = max(reached, there.generation)
                    continue
            opened = await advance_period(self.store, self.clock, name, item.row.sequence, wanted, least)
            reached = max(reached, opened)
        return reached

    def _refuse(self, line: int, why: _Refused) -> None:
        problem = Problem(line, str(why))
        if problem not in self.problems:
            self.problems.append(problem)


def _leases_may_live(line: Row, row: Row) -> bool:
    """Whether nodes may hold ids, of the row or of what was exported.

    Where the counters are equal, too: a store that was restored, and used since, may have issued these ids again.
    """
    return max(line.lease_ms, row.lease_ms) > 0


def _counter(row: Row) -> int:
    return row.sequence.before_start if row.last_value is None else row.last_value


def _lowers(what: str, here: int, line: int) -> _Lowers:
    return _Lowers(
        f"{what} would be lowered from {here} to {line}: a counter is never lowered; where the store was restored, "
        "advance the sequence past the highest id in use"
    )
