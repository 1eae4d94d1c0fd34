"""Creates, reads, lists, updates, advances and deletes sequences while nodes hold leases (P5)."""

import asyncio
import hashlib
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import structlog

from idalloc_server.domain.administration.change_keys import ChangeKey
from idalloc_server.domain.administration.paging import read_page
from idalloc_server.domain.administration.summary import SequenceSummary, etag_of
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.change_events import publish_sequence
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    NULL_LAST_VALUE,
    InvalidRequest,
    Refusal,
    SequenceChanged,
    SequenceDeleted,
    SequenceExists,
    SequenceInvalid,
    SequenceNotFound,
    StoreFailure,
)
from idalloc_server.domain.generations import MARGIN_SECONDS, advance_period, generation_after, next_generation
from idalloc_server.domain.sequences.calendar import check_period, period_at
from idalloc_server.domain.sequences.formats import ParsedId, compile_format
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.sequences.sequence import Kind, Reset, Sequence, check_name, name_of_period
from idalloc_server.domain.sequences.validation import check_change, check_texts, resolve_settings
from idalloc_server.domain.store.name_holds import is_reserved, raise_if_reserved, settings_before
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Row, RowChange
from idalloc_server.domain.store.retirement import RETIREMENT, raise_if_retired

# Attempts of a change if concurrent changes interfere.
ATTEMPTS = 5
# Rows summarized concurrently: each may need a read of its period's counter.
SUMMARIES_AT_ONCE = 32

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_log = structlog.get_logger("idalloc.administration")
_T = TypeVar("_T")
# Returns how fast the server issues ids, in ids a second, by the names of counters.
Rates: TypeAlias = Callable[[list[str]], Awaitable[Mapping[str, float]]]


class ChangeResult(NamedTuple):
    """Result of a change."""

    summary: SequenceSummary  # the sequence after the change
    effective_at: float  # when all leases of the old generation have expired, in seconds since 1970
    effective_delay: float  # seconds until then


@dataclass(eq=False)
class SequenceService:
    """Administers the sequences of a store.

    A change runs to completion even if its caller is cancelled.
    """

    _store: Store
    _clock: Clock
    _allocator: Allocator  # the node's, which drops its lease of a sequence after a change
    _: KW_ONLY
    # How far a sequence of timestamps may be advanced ahead of the clock, in seconds.
    max_clock_skew: float = 60.0
    random: Callable[[int], bytes] = os.urandom  # returns random bytes of a given number
    rates: Rates | None = None  # the rates of the server; by default those of the allocator
    generations_ended: int = field(default=0, init=False)  # how many generations were ended
    _changes: set[asyncio.Task[Any]] = field(default_factory=set, init=False)

    def change_key(self, request_id: str, content: bytes) -> ChangeKey:
        """Return the key of a change request.

        Args:
            request_id: The caller's request id, a UUID; empty for a random one.
            content: The request's method and content.

        Raises:
            InvalidRequest: The request id is not a UUID.
        """
        if not request_id:
            request_id = str(uuid.UUID(bytes=self.random(16), version=4))
        elif not _UUID.fullmatch(request_id := request_id.lower()):
            raise InvalidRequest("request_id", "must be a UUID such as 0b5ff5ea-9b2a-4bf0-8a1c-3f0d6e1f2a77")
        return ChangeKey(request_id, hashlib.sha256(content).hexdigest()[:16])

    async def get(self, name: str, period: str = "") -> SequenceSummary:
        """Return a sequence in a period; empty for the current one.

        Raises:
            Refusal: InvalidRequest (name, period), SequenceNotFound, SequenceInvalid, StoreFailure.
        """
        check_name(name, "name")
        row = await self._get_live_row(name)
        check_period(row.sequence, period)
        if row.last_value is None:
            raise SequenceInvalid(name, NULL_LAST_VALUE)
        return await self.summary_of(row, period)

    async def read_rows(self, prefix: str, after: str, limit: int, *, with_deleted: bool = False) -> list[Row]:
        """Return the rows of sequences in the byte order of their names; see ``Store.list``."""
        return await self._store.list(prefix, after, limit, with_deleted=with_deleted, with_periods=False)

    async def summary_of(self, row: Row, period: str = "") -> SequenceSummary:
        """Return the summary of a row in a period; empty for the current one."""
        [summary] = await self.at_present_rates([await self._summary_of(row, period)])
        return summary

    async def summaries_of(self, rows: list[Row]) -> list[SequenceSummary]:
        """Return the summaries of rows in their current periods."""
        summaries: list[SequenceSummary] = []
        for start in range(0, len(rows), SUMMARIES_AT_ONCE):
            summaries += await asyncio.gather(*map(self._summary_of, rows[start : start + SUMMARIES_AT_ONCE]))
        return await self.at_present_rates(summaries)

    async def at_present_rates(self, summaries: list[SequenceSummary]) -> list[SequenceSummary]:
        """Return summaries with the present rates of the server."""
        counters = [each.counter for each in summaries]
        rates = self._allocator.rates(counters) if self.rates is None else await self.rates(counters)
        now = self._clock.wall()
        return [each.at_rate(rates.get(each.counter, 0.0), now) for each in summaries]

    async def list(
        self, prefix: str, after: str, limit: int, *, with_deleted: bool, visible: Patterns | None = None
    ) -> tuple[list[SequenceSummary], str]:
        """Return a page of sequences, and the name after which the next page starts.

        The sequences are in the byte order of their names. A page may be short before the end of
        the list if few names are visible, see ``read_page``.

        Args:
            prefix: Prefix of the names.
            after: Only names after this one; empty for all.
            limit: The most sequences to return.
            with_deleted: Whether to include deleted sequences.
            visible: The names that the caller may read; None for all.
        """
        read = partial(self.read_rows, with_deleted=with_deleted)
        rows, next_after = await read_page(read, prefix, after, limit=limit, visible=visible)
        return await self.summaries_of(rows), next_after

    async def parse(self, name: str, text: str) -> ParsedId:
        """Parse a formatted id.

        Raises:
            Refusal: InvalidRequest (sequence, text), SequenceNotFound, SequenceInvalid,
                StoreFailure.
        """
        check_name(name)
        row = await self._get_live_row(name)
        return compile_format(row.sequence.format).parse(text)

    async def create(self, name: str, given: Mapping[str, Any], change_key: ChangeKey) -> SequenceSummary:
        """Create a sequence.

        A deleted one continues after its last value, and a reserved name needs a start.

        Args:
            name: The sequence's name.
            given: The settings, as for ``resolve_settings``.
            change_key: Identifies the request.

        Raises:
            Refusal: InvalidRequest (name, settings), SequenceExists, RequestIdReused, StoreFailure;
                SequenceChanged if concurrent changes interfere repeatedly.
        """

        async def plan(row: Row) -> RowChange:
            if not row.deleted:
                raise SequenceExists(name)
            if row.last_value is None:
                raise SequenceInvalid(name, NULL_LAST_VALUE)
            if is_reserved(row) and given.get("start") is None:
                raise InvalidRequest("start", f"must be set, past the highest id in use: {row.sequence.description}")
            counter = (await self._counter(row._replace(sequence=sequence)))[1]
            check_change(settings_before(row, sequence), sequence, counter)
            return self._revision(row, sequence, change_key)

        check_name(name, "name")
        check_texts({**given, "name": name})
        sequence = resolve_settings(given)
        now = self._clock.wall()
        new = Row(
            name,
            sequence.before_start,
            sequence,
            generation=generation_after(sequence, self._allocator.generation_seen(name), self._clock),
            revised_by=change_key.value,
            created_at=now,
            changed_at=now,
        )
        row, _ = await self._run_to_completion(name, self._change(name, change_key, plan, new))
        return await self.summary_of(row)

    async def update(self, name: str, given: Mapping[str, Any], etag: str, change_key: ChangeKey) -> ChangeResult:
        """Update settings of a sequence.

        Args:
            name: The sequence's name.
            given: The settings to change, as for ``resolve_settings``.
            etag: The etag that the sequence must have; empty for any.
            change_key: Identifies the request.

        Raises:
            Refusal: InvalidRequest (name, settings), SequenceNotFound, SequenceInvalid,
                SequenceChanged, RequestIdReused, StoreFailure.
        """

        async def plan(row: Row) -> RowChange:
            await self._check_changeable(row, etag)
            before = row.sequence
            after = resolve_settings(given, before)
            check_change(before, after, (await self._counter(row._replace(sequence=after)))[1])
            ends_leases = replace(after, description=before.description, labels=before.labels) != before
            return self._revision(row, after, change_key, ends_leases=ends_leases)

        check_name(name, "name")
        check_texts(given)
        row, ends_leases = await self._run_to_completion(name, self._change(name, change_key, plan))
        return await self._result(row, ends_leases=ends_leases)

    async def delete(self, name: str, etag: str, change_key: ChangeKey) -> ChangeResult:
        """Delete a sequence; its tombstone keeps the counter.

        Arguments and errors are those of ``update``.
        """

        async def plan(row: Row) -> RowChange:
            await self._check_changeable(row, etag)
            return self._revision(row, row.sequence, change_key)._replace(deleted=True)

        check_name(name, "name")
        row, _ = await self._run_to_completion(name, self._change(name, change_key, plan))
        return await self._result(row)

    async def advance(self, name: str, past: int, period: str, etag: str, change_key: ChangeKey) -> ChangeResult:
        """Advance a sequence's counter past a value, and end all leases.

        Creates the sequence of a reserved name.

        Args:
            name: The sequence's name.
            past: No id at or before this value is issued once the change is effective.
            period: The period whose counter to advance; empty for the current one.
            etag: The etag that the sequence must have; empty for any.
            change_key: Identifies the request.

        Raises:
            Refusal: InvalidRequest (name, past, period), SequenceNotFound, SequenceInvalid,
                SequenceChanged, RequestIdReused, StoreFailure.
        """

        async def plan(row: Row) -> RowChange:
            nonlocal etag
            await self._check_changeable(row, etag, revives=True)
            sequence = Sequence() if is_reserved(row) else row.sequence
            check_period(sequence, period)
            if sequence.is_past(past, sequence.bound):
                field, limit = ("max_value", "at most") if sequence.step > 0 else ("min_value", "at least")
                raise InvalidRequest("past", f"must be {limit} {sequence.bound}, the sequence's {field}; is {past}")
            if sequence.kind != Kind.COUNTER:
                latest = int((self._clock.wall() + self.max_clock_skew) * sequence.kind.per_second)
                if past > latest:
                    raise InvalidRequest(
                        "past", f"must be at most {latest}, max_clock_skew ahead of the clock; is {past}"
                    )
            at_least = sequence.align(past)
            if sequence.is_past(at_least, past) and at_least != sequence.before_start:
                at_least -= sequence.step  # the last possible value at or before ``past``
            if sequence.reset == Reset.NEVER:
                return self._revision(row, sequence, change_key)._replace(at_least=at_least)
            counter = name_of_period(name, period or period_at(sequence, self._clock.wall()))
            seen = max(self._allocator.generation_seen(name), self._allocator.generation_seen(counter), row.generation)
            opened = await advance_period(
                self._store, self._clock, counter, sequence, at_least=at_least, generation=seen
            )
            etag = ""  # The etag matched, and the change must be completed.
            newer = generation_after(sequence, opened, self._clock)
            return self._revision(row, sequence, change_key)._replace(generation=newer)

        check_name(name, "name")
        row, _ = await self._run_to_completion(name, self._change(name, change_key, plan))
        which = period or period_at(row.sequence, self._clock.wall())
        return await self._result(row, which)

    async def finish_changes(self) -> None:
        """Wait for changes that outlived their callers."""
        if self._changes:
            await asyncio.wait(self._changes)

    async def _change(
        self, name: str, change_key: ChangeKey, plan: Callable[[Row], Awaitable[RowChange]], new: Row | None = None
    ) -> tuple[Row, bool]:
        """Apply ``plan`` to a row despite concurrent changes, or create ``new`` if there is none.

        Returns:
            The row after the change, and whether leases end.
        """
        revised = None if new else await self._store.get(name)
        for _ in range(ATTEMPTS):
            row = await self._store.create(new) if new else revised
            if row is None:
                raise SequenceNotFound(name)
            if change_key.wrote(row):
                if new:
                    publish_sequence(None, row)
                return row, True  # If it is a retry: assume that leases had to end.
            change = await plan(row)
            revised = await self._store.revise(name, row.revision, change)
            if revised is not None and change_key.wrote(revised):
                publish_sequence(row, revised)
                self.generations_ended += change.ends_leases and not new
                return revised, change.ends_leases
        raise SequenceChanged(name, etag_of(revised) if revised else "")

    async def _check_changeable(self, row: Row, etag: str, *, revives: bool = False) -> None:
        """Check that a row is not deleted, and has a counter and the etag, unless that is empty."""
        if row.deleted and not (revives and is_reserved(row)):
            await self._raise_deleted(row)
        if etag and etag != etag_of(row):
            raise SequenceChanged(row.name, etag_of(row))
        if row.last_value is None:
            raise SequenceInvalid(row.name, NULL_LAST_VALUE)

    def _revision(self, row: Row, sequence: Sequence, change_key: ChangeKey, *, ends_leases: bool = True) -> RowChange:
        # A restored store may be behind a generation that this node saw.
        seen = self._allocator.generation_seen(row.name)
        change = next_generation(row, self._clock, change_key.value, sequence=sequence, newest=seen)
        return change if ends_leases else change._replace(ends_leases=False, generation=1)

    async def _get_live_row(self, name: str) -> Row:
        row = await self._store.get(name)
        if row is None:
            raise SequenceNotFound(name)
        if row.deleted:
            await self._raise_deleted(row)
        return row

    async def _raise_deleted(self, row: Row) -> NoReturn:
        raise_if_retired(await self._store.get(RETIREMENT), row.name)
        raise_if_reserved(row)
        raise SequenceDeleted(row.name)

    async def _counter(self, row: Row, period: str = "") -> tuple[str, int]:
        """Return the period, by default the current one, and its counter.

        Without a reset, return "" and the sequence's counter.
        """
        if row.last_value is None:
            raise SequenceInvalid(row.name, NULL_LAST_VALUE)
        period = period or period_at(row.sequence, self._clock.wall())
        if not period:
            return "", row.last_value
        counter = await self._store.get(name_of_period(row.name, period))
        if counter is None or counter.last_value is None:
            return period, row.sequence.before_start
        return period, counter.last_value

    async def _summary_of(self, row: Row, period: str = "") -> SequenceSummary:
        if row.last_value is None:
            return SequenceSummary(row)
        period, last_value = await self._counter(row, period)
        sequence = row.sequence
        total = max(0, (sequence.bound - sequence.before_start) // sequence.step)
        remaining = max(0, (sequence.bound - last_value) // sequence.step)
        return SequenceSummary(
            row,
            period,
            last_value=None if last_value == sequence.before_start else last_value,
            remaining=remaining,
            used_ratio=max(0, total - remaining) / total if total else 1.0,
        )

    async def _result(self, row: Row, period: str = "", *, ends_leases: bool = True) -> ChangeResult:
        summary = await self.summary_of(row, period)
        delay = row.lease_ms / 1000 + MARGIN_SECONDS if ends_leases and row.lease_ms else 0.0
        return ChangeResult(summary, self._clock.wall() + delay, delay)

    async def _run_to_completion(self, name: str, change: Coroutine[Any, Any, _T]) -> _T:
        """Run a change even if the caller is cancelled, then drop this node's lease."""
        task = asyncio.get_running_loop().create_task(self._run(name, change))
        self._changes.add(task)
        task.add_done_callback(self._on_done)
        await asyncio.wait({task})  # asyncio.shield would log a refusal whose caller has left
        return task.result()

    async def _run(self, name: str, change: Coroutine[Any, Any, _T]) -> _T:
        try:
            done = await change
        except StoreFailure:
            await self._allocator.drop_lease(name)  # The change may have been applied.
            raise
        await self._allocator.drop_lease(name)
        return done

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Refusal):
            _log.error("change_failed", exc_info=error)
