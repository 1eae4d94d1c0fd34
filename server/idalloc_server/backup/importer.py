"""Imports exported sequences into a store. It never lowers a counter (P2)."""

from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from idalloc_server.backup.export_file import ExportedSequence, ExportFile, Problem
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import InvalidRequest, SequenceDeleted, SequenceInvalid
from idalloc_server.domain.generations import (
    MARGIN_SECONDS,
    advance_period,
    generation_after,
    next_generation,
    repeat_until_held,
)
from idalloc_server.domain.sequences.sequence import Reset, Sequence, name_of_period
from idalloc_server.domain.sequences.validation import check_change
from idalloc_server.domain.store.name_holds import RESERVED_BY, is_reserved, reserved_row, settings_before
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row
from idalloc_server.domain.store.retirement import RETIRED_BY, RETIREMENT, raise_if_retired


class _Rejected(Exception):
    """A line cannot be imported."""


class _WouldLower(_Rejected):
    """The counter of a line is lower than the store's counter."""


@dataclass
class Importer:
    """Imports an export file into a store. An import may be repeated.

    It ends the leases of each sequence that exists in the store, also if the counters are equal,
    unless no node ever had a lease of it.
    """

    store: Store  # the target
    clock: Clock
    problems: list[Problem] = field(default_factory=list)  # the rejected lines
    created: int = 0  # number of sequences created
    # Number of existing sequences that were advanced or changed, or whose leases were ended.
    raised: int = 0
    unchanged: int = 0  # number of existing sequences that were equal and never leased
    claims: int = 0  # number of prefixes imported
    reserved: int = 0  # number of names reserved
    # When the last node stops issuing ids at or before the imported counters, in seconds since
    # 1970; None if no lease had to end.
    effective_at: float | None = None
    by: str = field(default_factory=lambda: f"import:{uuid4()}")
    # The problems of periods, which a repeated attempt finds again.
    _reported: set[Problem] = field(default_factory=set)

    async def run(self, file: ExportFile) -> None:
        """Import all valid lines, and add the rejected ones to ``problems``.

        Reserves the names of ``file.reserved``, and of rejected lines, that the store does not
        have.

        Raises:
            StoreRetired: The store is retired, see ``unretire``; nothing is imported.
            StoreUnavailable: The store did not answer; earlier lines stay imported.
        """
        raise_if_retired(await self.store.get(RETIREMENT))
        for claim in file.claims:
            await self.store.raise_start(claim.prefix, claim.last_start)
            self.claims += 1
        reserved = {name for name, why in file.reserved.items() if await self._reserve(name, why)}
        for item in file.items:
            if item.row.name in reserved:  # Another line of it, or of one of its periods, was skipped.
                continue
            try:
                await self._import_sequence(item)
            except (_Rejected, InvalidRequest, SequenceInvalid) as error:
                if isinstance(error, _WouldLower):
                    await self._end_leases(item.row)
                self.problems.append(Problem(item.line, str(error)))
                await self._reserve(item.row.name, f"the import skipped it: {error}")
                why = f"not imported: its sequence in line {item.line} was rejected; correct that line and import again"
                self.problems += [Problem(line, why) for line in item.periods]
        self.problems.sort()

    async def _reserve(self, name: str, why: str) -> bool:
        """Reserve a name that the store does not have; return whether it is reserved now."""
        try:
            row = await self.store.get(name)
        except SequenceInvalid:
            return False
        if row is None:
            generation = generation_after(Sequence(), 0, self.clock)
            reserved = reserved_row(name, why, by=self.by, generation=generation, at=self.clock.wall())
            row = await self.store.create(reserved)
            self.reserved += row.revised_by == RESERVED_BY + self.by
        return is_reserved(row)

    async def _import_sequence(self, item: ExportedSequence) -> None:
        line = item.row
        if line.last_value is None:
            raise _Rejected(f"sequence {line.name!r} has no last_value: add one to the line")

        async def attempt(row: Row | None) -> bool:
            generation = await self._import_periods(item, row)
            if row is None:
                now = self.clock.wall()
                new = line._replace(
                    generation=generation_after(line.sequence, max(line.generation, generation), self.clock),
                    revision=1,
                    revised_by=self.by,
                    created_at=now if line.created_at is None else line.created_at,
                    changed_at=now,
                )
                is_held = (await self.store.create(new)).revised_by == self.by
                self.created += is_held
            elif self._matches(line, row) and generation < row.generation and not _leases_may_live(line, row):
                is_held = True
                self.unchanged += 1
            else:
                is_held = await self._revise(line, row, line, generation)
                self.raised += is_held
            return is_held

        await repeat_until_held(self.store, line.name, attempt)

    async def _end_leases(self, line: Row) -> None:
        """End the leases of a sequence whose counter is past the counter of a line.

        Otherwise a node could return an unused tail, which moves the counter back before the
        line's.
        """

        async def attempt(row: Row | None) -> bool:
            if row is None or row.deleted or not _leases_may_live(line, row):
                return True
            return await self._revise(line, row, row)

        await repeat_until_held(self.store, line.name, attempt)

    def _matches(self, line: Row, row: Row) -> bool:
        """Return whether the store's row matches the line.

        Raises:
            _Rejected: The import would lower the counter, or delete or revive the sequence.
        """
        if row.last_value is None:
            return False
        # With a reset only the counters of the periods count.
        has_counter = line.sequence.reset == Reset.NEVER
        if has_counter and line.sequence.is_past(row.last_value, _counter(line)):
            raise _would_lower(f"sequence {line.name!r}", row.last_value, _counter(line))
        if line.deleted and not row.deleted:
            raise _Rejected(f"sequence {line.name!r} is deleted in the file only: delete it in the store first")
        moved = row.revised_by.startswith(RETIRED_BY) or is_reserved(row)
        if row.deleted and not line.deleted and not moved and line.generation <= row.generation:
            raise _Rejected(f"sequence {line.name!r} was deleted in the store after the export: create it again first")
        return (
            (line.last_value == row.last_value or not has_counter)
            and line.sequence == row.sequence
            and line.deleted == row.deleted
            and line.generation <= row.generation
        )

    async def _revise(self, line: Row, row: Row, wanted: Row, generation: int = 0) -> bool:
        """Change a row as ``wanted``, end its leases, and update ``effective_at``.

        ``generation`` is one that the row must exceed. Returns whether the change was applied.
        """
        if line.lease_ms > row.lease_ms and not row.deleted:
            # A restored store may have lost it. Later changes compute ``effective_at`` from it.
            with suppress(SequenceDeleted):  # deleted meanwhile
                await self.store.grant(line.name, 0, line.lease_ms)
        newest = max(wanted.generation, generation)
        change = next_generation(row, self.clock, self.by, sequence=wanted.sequence, newest=newest)
        change = change._replace(at_least=_counter(wanted), deleted=wanted.deleted)
        found = await self.store.revise(line.name, row.revision, change)
        if found is None or found.revised_by != self.by:
            return False
        effective_at = self.clock.wall() + max(found.lease_ms, line.lease_ms) / 1000 + MARGIN_SECONDS
        self.effective_at = max(self.effective_at or 0, effective_at)
        return True

    async def _import_periods(self, item: ExportedSequence, row: Row | None) -> int:
        """Import the counters of periods, in a generation that is newer than their sequence's.

        They come before their sequence: otherwise a node could open a period in the new generation,
        and hold a lease that no later write ends.

        Returns:
            The generation that the sequence must exceed; 0 for none.
        """
        if row is not None:
            self._matches(item.row, row)  # raises before anything is written
            check_change(settings_before(row, item.row.sequence), item.row.sequence, _counter(item.row))
        own = row.generation if row else 0
        reached = 0
        for line, counter in item.periods.items():
            name = name_of_period(item.row.name, counter.period)
            wanted = counter.last_value
            there = await self.store.get(name)
            if there is not None and there.last_value is not None:
                may_live = there.lease_ms > 0 or (row is not None and _leases_may_live(item.row, row))
                is_past = item.row.sequence.is_past(there.last_value, wanted)
                if is_past:
                    what = f"period {counter.period} of sequence {item.row.name!r}"
                    problem = Problem(line, str(_would_lower(what, there.last_value, wanted)))
                    if problem not in self._reported:
                        self._reported.add(problem)
                        self.problems.append(problem)
                # If leases may be live, the counter needs a new generation, too: a returned tail
                # could lower it.
                if may_live:
                    wanted = there.last_value if is_past else wanted
                elif is_past or there.last_value == wanted:
                    if not is_past and there.generation > own:
                        # Left by an incomplete change, or one that no node has followed yet.
                        reached = max(reached, there.generation)
                    continue
            least = max(item.row.generation, own)
            opened = await advance_period(
                self.store, self.clock, name, item.row.sequence, at_least=wanted, generation=least
            )
            reached = max(reached, opened)
        return reached


def _leases_may_live(line: Row, row: Row) -> bool:
    """Return whether nodes may hold leases of the row, or of the exported sequence.

    They may also if the counters are equal: a restored store may have issued the same ids again.
    """
    return max(line.lease_ms, row.lease_ms) > 0


def _counter(row: Row) -> int:
    return row.sequence.before_start if row.last_value is None else row.last_value


def _would_lower(what: str, here: int, line: int) -> _WouldLower:
    return _WouldLower(
        f"{what} would be lowered from {here} to {line}: a counter is never lowered; if the store was restored, "
        "advance the sequence past the highest id in use"
    )
