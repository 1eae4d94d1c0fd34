"""What people do with sequences: create, show, list, change, advance and delete them (P5)."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, TypeVar

import structlog

from idalloc_server.domain.administration.change_tokens import ChangeToken, change_token_of
from idalloc_server.domain.administration.paging import few_at_a_time, rows_of_page
from idalloc_server.domain.administration.summary import SequenceSummary, etag_of, summarize
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.change_events import publish_sequence
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    InvalidRequest,
    Refusal,
    SequenceChanged,
    SequenceDeleted,
    SequenceExists,
    SequenceInvalid,
    SequenceNotFound,
    StoreFailure,
)
from idalloc_server.domain.generations import MARGIN_SECONDS, advance_period, generation_after
from idalloc_server.domain.records import Revision, Row
from idalloc_server.domain.retirement import RETIREMENT, refuse_retired
from idalloc_server.domain.sequences.calendar import check_period, period_at
from idalloc_server.domain.sequences.formats import ParsedId, compile_format
from idalloc_server.domain.sequences.model import Kind, Reset, Sequence, check_name, name_of_period
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.domain.sequences.validation import changed_bound, check_change, check_texts, resolve_settings
from idalloc_server.domain.store import Store, within_timeout

# How often a change is tried that others get in the way of.
ATTEMPTS = 5

_log = structlog.get_logger("idalloc.registry")
_T = TypeVar("_T")


class ChangeResult(NamedTuple):
    """What a change did.

    Attributes:
        summary: The sequence as it is now.
        effective_at: When every lease that had to end has ended, in seconds since 1970.
        effective_delay: How many seconds it is until then.
    """

    summary: SequenceSummary
    effective_at: float
    effective_delay: float


class SequenceService:
    """The sequences of a store, for people.

    A change that began is finished also where its caller goes away.

    Args:
        store: Where they are kept.
        clock: For dates.
        allocator: This node's own, which drops what it holds of a sequence that was changed here.
        store_timeout: When a store call is given up, in seconds.
        max_clock_skew: How far a sequence of timestamps may be advanced ahead of the clock, in seconds.
        random: Returns that many random bytes.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        allocator: Allocator,
        *,
        store_timeout: float,
        max_clock_skew: float = 60.0,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._store = store
        self._clock = clock
        self._allocator = allocator
        self._store_timeout = store_timeout
        self._max_clock_skew = max_clock_skew
        self._random = random
        self._changes: set[asyncio.Task[Any]] = set()

    def author(self, request_id: str, content: bytes) -> ChangeToken:
        """Returns who makes a change.

        Args:
            request_id: The caller's own; empty for none.
            content: All that the request says, and which method it is for.

        Raises:
            InvalidRequest: The request id is no UUID.
        """
        return change_token_of(request_id, content, self._random)

    async def get(self, name: str, period: str = "") -> SequenceSummary:
        """Returns a sequence.

        Args:
            name: Its name.
            period: Which period's counter; empty for the present one.

        Raises:
            Refusal: InvalidRequest (name, period), SequenceNotFound, SequenceInvalid, StoreFailure.
        """
        check_name(name, "name")
        row = await self._existing(name)
        check_period(row.sequence, period)
        if row.last_value is None:
            raise _no_last_value(name)
        return await self._summary(row, period)

    async def list(
        self, prefix: str, after: str, most: int, *, deleted: bool, shows: Patterns | None = None
    ) -> tuple[list[SequenceSummary], str]:
        """Returns sequences in the order of their names' bytes, and the name behind which the list goes on, if it does.

        Where ``shows`` lets few be seen, there may be fewer than asked for; there are none at the end only.

        Args:
            prefix: What their names begin with.
            after: Only names behind this one; empty for all.
            most: The most sequences to return.
            deleted: Whether tombstones are among them.
            shows: Which names may be shown; None for all.
        """

        def read(prefix: str, after: str, most: int) -> Awaitable[list[Row]]:
            return self._ask(self._store.list(prefix, after, most, deleted=deleted, periods=False))

        rows, goes_on_after = await rows_of_page(read, prefix, after, most, shows)
        return await few_at_a_time(self._summary, rows), goes_on_after

    async def parse(self, name: str, text: str) -> ParsedId:
        """Takes the text of an id apart.

        Raises:
            Refusal: InvalidRequest (sequence, text), SequenceNotFound, SequenceInvalid, StoreFailure.
        """
        check_name(name)
        row = await self._existing(name)
        return compile_format(row.sequence.format).parse(text)

    async def create(self, name: str, given: Mapping[str, Any], change_token: ChangeToken) -> SequenceSummary:
        """Creates a sequence, or has a deleted one go on.

        Args:
            name: Its name.
            given: The settings that were said, as for ``resolve_settings``.
            change_token: Who does it.

        Raises:
            Refusal: InvalidRequest (name, settings), SequenceExists, RequestIdReused, StoreFailure; SequenceChanged
                where others create and delete it all the time.
        """
        check_name(name, "name")
        check_texts({**given, "name": name})
        sequence = resolve_settings(given)
        return await self._summary(await self._finish(name, self._create(name, sequence, change_token)))

    async def update(self, name: str, given: Mapping[str, Any], etag: str, change_token: ChangeToken) -> ChangeResult:
        """Changes settings of a sequence.

        Args:
            name: Its name.
            given: The settings to change, as for ``resolve_settings``.
            etag: The one that it must have; empty for any.
            change_token: Who does it.

        Raises:
            Refusal: InvalidRequest (name, settings), SequenceNotFound, SequenceInvalid, SequenceChanged,
                RequestIdReused, StoreFailure.
        """

        async def plan(row: Row) -> _Plan:
            before, after = row.sequence, resolve_settings(given, row.sequence)
            check_change(before, after, (await self._counter(row._replace(sequence=after)))[1])
            ends_leases = replace(after, description=before.description, labels=before.labels) != before
            return _Plan(self._revision(row, after, change_token, ends_leases=ends_leases))

        check_name(name, "name")
        check_texts(given)
        row, ends_leases = await self._finish(name, self._change(name, etag, change_token, plan))
        return await self._changed(row, ends_leases=ends_leases)

    async def delete(self, name: str, etag: str, change_token: ChangeToken) -> ChangeResult:
        """Deletes a sequence; its tombstone keeps the counter.

        Args:
            name: Its name.
            etag: The one that it must have; empty for any.
            change_token: Who does it.

        Raises:
            Refusal: InvalidRequest (name), SequenceNotFound, SequenceInvalid, SequenceChanged, RequestIdReused,
                StoreFailure.
        """

        async def plan(row: Row) -> _Plan:
            return _Plan(self._revision(row, row.sequence, change_token)._replace(deleted=True))

        check_name(name, "name")
        row, _ = await self._finish(name, self._change(name, etag, change_token, plan))
        return await self._changed(row)

    async def advance(self, name: str, past: int, period: str, etag: str, change_token: ChangeToken) -> ChangeResult:
        """Moves a sequence's counter past a value, and ends all leases.

        Args:
            name: Its name.
            past: No id at or before this one is issued any more.
            period: Which period's counter; empty for the present one.
            etag: The one that it must have; empty for any.
            change_token: Who does it.

        Raises:
            Refusal: InvalidRequest (name, past, period), SequenceNotFound, SequenceInvalid, SequenceChanged,
                RequestIdReused, StoreFailure.
        """

        async def plan(row: Row) -> _Plan:
            sequence = row.sequence
            check_period(sequence, period)
            if sequence.is_past(past, sequence.bound):
                field, side = ("max_value", "above") if sequence.step > 0 else ("min_value", "below")
                raise InvalidRequest("past", f"must not lie {side} {sequence.bound}, the sequence's {field}; is {past}")
            if sequence.kind != Kind.COUNTER:
                latest = int((self._clock.wall() + self._max_clock_skew) * sequence.kind.per_second)
                if past > latest:
                    raise InvalidRequest("past", f"must not lie more than max_clock_skew ahead of the clock; is {past}")
            at_least = _last_point(sequence, past)
            if sequence.reset == Reset.NEVER:
                return _Plan(self._revision(row, sequence, change_token)._replace(at_least=at_least))
            counter = name_of_period(name, period or period_at(sequence, self._clock.wall()))
            seen = max(self._allocator.generation_seen(name), self._allocator.generation_seen(counter), row.generation)
            opened = await self._ask(advance_period(self._store, self._clock, counter, sequence, at_least, seen))
            newer = generation_after(sequence, opened, self._clock)
            return _Plan(self._revision(row, sequence, change_token)._replace(generation=newer), begun=True)

        check_name(name, "name")
        row, _ = await self._finish(name, self._change(name, etag, change_token, plan))
        which = period or period_at(row.sequence, self._clock.wall())
        self._allocator.rates.forget(name_of_period(name, which) if which else name)  # The way to there was not used.
        return await self._changed(row, which)

    async def close(self) -> None:
        """Waits for the changes whose callers went away."""
        if self._changes:
            await asyncio.wait(self._changes)

    async def _create(self, name: str, sequence: Sequence, change_token: ChangeToken) -> Row:
        now = self._clock.wall()
        wanted = Row(
            name,
            sequence.before_start,
            sequence,
            generation=generation_after(sequence, self._allocator.generation_seen(name), self._clock),
            revised_by=change_token.by,
            created_at=now,
            changed_at=now,
        )
        row = wanted
        for _ in range(ATTEMPTS):
            row = await self._ask(self._store.create(wanted))
            if change_token.made(row):
                publish_sequence(None, row)
                return row
            if not row.deleted:
                raise SequenceExists(name)
            if row.last_value is None:
                raise _no_last_value(name)
            check_change(row.sequence, sequence, (await self._counter(row._replace(sequence=sequence)))[1])
            change = self._revision(row, sequence, change_token)
            revised = await self._ask(self._store.revise(name, row.revision, change))
            if revised is not None and change_token.made(revised):
                publish_sequence(row, revised)
                return revised
            if revised is not None and revised.revision == row.revision:
                raise _bound_passed(sequence, revised)
        raise SequenceChanged(name, etag_of(row))

    async def _change(
        self, name: str, etag: str, change_token: ChangeToken, plan: Callable[[Row], Awaitable["_Plan"]]
    ) -> tuple[Row, bool]:
        """Changes a row as ``plan`` says, again where others were faster; returns it, and whether leases had to end."""
        row = await self._ask(self._store.get(name))
        for _ in range(ATTEMPTS):
            if row is None:
                raise SequenceNotFound(name)
            if change_token.made(row):
                return row, True  # What the first one ended is not known any more: the longer wait is the safe one.
            if row.deleted:
                await self._refuse_deleted(name)
            if etag and etag != etag_of(row):
                raise SequenceChanged(name, etag_of(row))
            if row.last_value is None:
                raise _no_last_value(name)
            change, begun = await plan(row)
            revised = await self._ask(self._store.revise(name, row.revision, change))
            if revised is not None and change_token.made(revised):
                publish_sequence(row, revised)
                return revised, change.ends_leases
            if revised is not None and revised.revision == row.revision:
                raise _bound_passed(change.sequence, revised)
            if begun:
                etag = ""  # The etag was the right one when it began, and it must not stay half done.
            row = revised
        raise SequenceChanged(name, etag_of(row) if row else "")

    def _revision(
        self, row: Row, sequence: Sequence, change_token: ChangeToken, *, ends_leases: bool = True
    ) -> Revision:
        # A node that saw a higher generation than a restored store has goes on in a newer one only.
        seen = max(row.generation, self._allocator.generation_seen(row.name))
        generation = generation_after(sequence, seen, self._clock) if ends_leases else 1
        limit = changed_bound(row.sequence, sequence)
        return Revision(
            sequence, sequence.before_start, change_token.by, self._clock.wall(), ends_leases, generation, limit
        )

    async def _existing(self, name: str) -> Row:
        row = await self._ask(self._store.get(name))
        if row is None:
            raise SequenceNotFound(name)
        if row.deleted:
            await self._refuse_deleted(name)
        return row

    async def _refuse_deleted(self, name: str) -> NoReturn:
        refuse_retired(await self._ask(self._store.get(RETIREMENT)), name)
        raise SequenceDeleted(name)

    async def _counter(self, row: Row, period: str = "") -> tuple[str, int]:
        """Returns the period, which is the present one where none is given, and its counter, or the sequence's own."""
        if row.last_value is None:
            raise _no_last_value(row.name)
        period = period or period_at(row.sequence, self._clock.wall())
        if not period:
            return "", row.last_value
        counter = await self._ask(self._store.get(name_of_period(row.name, period)))
        if counter is None or counter.last_value is None:
            return period, row.sequence.before_start
        return period, counter.last_value

    async def _summary(self, row: Row, period: str = "") -> SequenceSummary:
        if row.last_value is None:
            return summarize(row, "", None, self._clock.wall(), None)
        period, last_value = await self._counter(row, period)
        name = name_of_period(row.name, period) if period else row.name
        return summarize(row, period, last_value, self._clock.wall(), self._allocator.rates.per_second(name))

    async def _changed(self, row: Row, period: str = "", *, ends_leases: bool = True) -> ChangeResult:
        shown = await self._summary(row, period)
        left = row.lease_ms / 1000 + MARGIN_SECONDS if ends_leases and row.lease_ms else 0.0
        return ChangeResult(shown, self._clock.wall() + left, left)

    async def _finish(self, name: str, change: Coroutine[Any, Any, _T]) -> _T:
        """Runs a change to its end also where its caller goes away, and has this node drop what it holds."""
        task = asyncio.get_running_loop().create_task(self._run(name, change))
        self._changes.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def _run(self, name: str, change: Coroutine[Any, Any, _T]) -> _T:
        try:
            done = await change
        except StoreFailure:
            await self._allocator.forget(name)  # It may have been applied.
            raise
        await self._allocator.forget(name)
        return done

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Refusal):
            _log.error("change_failed", exc_info=error)

    async def _ask(self, call: Awaitable[_T]) -> _T:
        return await within_timeout(self._store_timeout, call)


class _Plan(NamedTuple):
    """A change, and whether a part of it was done already, so that the rest must follow."""

    change: Revision
    begun: bool = False


def _last_point(sequence: Sequence, past: int) -> int:
    """Returns the counter that leaves no id at or before ``past``, and leaves all that lie behind it."""
    point = sequence.align(past)
    if sequence.is_past(point, past) and point != sequence.before_start:
        point -= sequence.step
    return point


def _no_last_value(name: str) -> SequenceInvalid:
    return SequenceInvalid(name, "it has no last_value")


def _bound_passed(sequence: Sequence, row: Row) -> InvalidRequest:
    field = "max_value" if sequence.step > 0 else "min_value"
    return InvalidRequest(field, f"must not lie before {row.last_value}, where the counter is already")
