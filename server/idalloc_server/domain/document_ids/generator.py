"""Generates document ids in MySQL's format, with MySQL's arithmetic.

A document id has 28 lower-case hexadecimal characters: 4 for the node prefix, 8 for a timestamp, 16
for a serial. The rules are those of ``Document_id_generator`` in MySQL's X Plugin, as observed in
MySQL 8.0.31, even where its documentation differs. There is one difference: MySQL takes the
timestamp from the clock, but idalloc claims it in the store. So neither a restart nor a wrong clock
repeats an id. If the serial overflows, ``DocIdGenerator.generate`` claims the next start timestamp.
"""

import asyncio
import sys
from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import NamedTuple

from idalloc_server.domain import change_events
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import InvalidRequest, Refusal, ServerDraining, StoreUnavailable
from idalloc_server.domain.fork import NO_PROCESS, OS_PROCESS, Process

MAX_SERIAL = 2**64 - 1
MAX_STEP = 2**16 - 1

# A batch of this size at MySQL's largest increment cannot exhaust the serials of a timestamp.
MAX_COUNT = 2**40

# All values of a serial's last three characters. A longer table does not fit in the processor's
# cache.
_BLOCK = 16**3
_TAILS = [f"{tail:03x}" for tail in range(_BLOCK)]

# With larger steps, too few ids share a block for the table to be faster.
_MAX_TABLE_STEP = 128


def next_serial(serial: int, offset: int, increment: int) -> int:
    """Return the serial that MySQL issues after ``serial`` (``Document_id_generator::generate``).

    The next serial is congruent to the offset modulo the increment, with two exceptions. At an
    increment of 1 MySQL ignores the offset. While the offset is more than one increment ahead, an
    unsigned subtraction underflows. This changes the congruence unless the increment is a power of
    two (offset 10, increment 3, from 0: 3, 6, 9, 10, 13).

    Args:
        serial: The last serial issued, 0 to 2^64-1; 0 in a new process.
        offset: MySQL's auto_increment_offset, 0 to 65535.
        increment: MySQL's auto_increment_increment, 0 to 65535.

    Returns:
        The next serial, modulo 2^64. If it is not larger than ``serial``, it overflowed: MySQL then
        issues the next timestamp, with the offset as its first serial.
    """
    if increment <= 1:
        return (serial + 1) & MAX_SERIAL
    ahead = (serial + increment - offset) & MAX_SERIAL
    return (ahead // increment * increment + offset) & MAX_SERIAL


class DocIdRun(NamedTuple):
    """Document ids with the same prefix and timestamp, whose serials rise by a constant step."""

    prefix: int  # the node prefix, 0 to 65535
    timestamp: int  # seconds since 1970, below 2^32
    first: int  # the first serial
    step: int  # the difference between consecutive serials, at least 1
    id_count: int  # number of ids, at least 1

    @property
    def last(self) -> int:
        """The last serial."""
        return self.first + (self.id_count - 1) * self.step

    @property
    def first_doc_id(self) -> str:
        """The first id as text."""
        return f"{self.prefix:04x}{self.timestamp:08x}{self.first:016x}"

    def texts(self) -> list[str]:
        """Return the text of each id, in order."""
        if self.id_count == 1:
            return [self.first_doc_id]
        head = f"{self.prefix:04x}{self.timestamp:08x}"
        serial = self.first
        last = self.last
        step = self.step
        if step > _MAX_TABLE_STEP:
            serials = array("Q", range(serial, last + 1, step))
            if sys.byteorder == "little":
                serials.byteswap()
            return [head + text for text in serials.tobytes().hex(" ", 8).split(" ")]
        texts: list[str] = []
        while serial <= last:
            block, tail = divmod(serial, _BLOCK)
            block_head = f"{head}{block:013x}"
            tails = _TAILS[tail : last - block * _BLOCK + 1 : step]
            texts += [block_head + text for text in tails]
            serial += len(tails) * step
        return texts


def _runs_before_overflow(
    start: StartTimestamp, serial: int, *, offset: int, increment: int, count: int
) -> tuple[list[DocIdRun], int]:
    """Apply ``next_serial`` up to ``count`` times, until the serial overflows, in closed form.

    Returns:
        The runs, and the number of ids that are missing because of the overflow.
    """
    runs: list[DocIdRun] = []
    step = max(increment, 1)
    while count:
        first = next_serial(serial, offset, increment)
        if first <= serial:  # overflow
            break
        # If the subtraction underflows, the congruence may change at the offset; otherwise it holds
        # up to the overflow.
        highest = offset - 1 if serial + step < offset else MAX_SERIAL
        run_count = min((highest - first) // step + 1, count)
        if runs and first == serial + step:  # same congruence
            runs[-1] = runs[-1]._replace(id_count=runs[-1].id_count + run_count)
        else:
            runs.append(DocIdRun(start.prefix, start.timestamp, first=first, step=step, id_count=run_count))
        serial = first + (run_count - 1) * step
        count -= run_count
    return runs, count


# Persists new settings of a node by name, or raises a ``Refusal``.
Save = Callable[[Mapping[str, int]], Awaitable[None]]


@dataclass(eq=False)
class DocIdGenerator:
    """Generates the document ids of a process, with one serial for all callers, as in MySQL.

    No id is ever issued twice, by any process. Ids rise until the prefix changes. The child of a
    fork issues none. Not thread-safe: call all methods on one event loop.
    """

    _start_timestamps: StartTimestamps  # claims further start timestamps
    _start: StartTimestamp  # that of the ids issued now; the first is from ``StartTimestamps.start``
    _: KW_ONLY
    offset: int = 1  # default of auto_increment_offset, 1 to 65535
    increment: int = 1  # default of auto_increment_increment, 1 to 65535
    process: InitVar[Process] = OS_PROCESS  # the process that claimed the start timestamp
    issued: int = field(default=0, init=False)  # how many ids were issued
    _serial: int = field(default=0, init=False)  # the last one issued
    _next_start: StartTimestamp | None = field(default=None, init=False)
    _claim: asyncio.Task[Refusal | None] | None = field(default=None, init=False)
    _change_lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _changes: set[asyncio.Task[Refusal | None]] = field(default_factory=set, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self, process: Process) -> None:
        self._current_pid = process.pid
        self._pid = process.pid()
        process.register(self)

    @property
    def prefix(self) -> int:
        """The node prefix, 0 to 65535."""
        return self._start.prefix

    @property
    def settings(self) -> dict[str, int]:
        """The settings that ``change`` changes, by their names on the wire."""
        return {
            "prefix": self.prefix,
            "auto_increment_offset": self.offset,
            "auto_increment_increment": self.increment,
        }

    @property
    def start_timestamp(self) -> int:
        """The timestamp of the ids issued now, in seconds since 1970."""
        return self._start.timestamp

    def issue_now(self, count: int, offset: int = 0, increment: int = 0) -> list[DocIdRun] | None:
        """Issue ids without waiting (``Document_id_generator::generate``, ``count`` times).

        Args:
            count: Number of ids, 1 to 2^40.
            offset: auto_increment_offset of this call, 1 to 65535; 0 for the node's.
            increment: auto_increment_increment of this call, 1 to 65535; 0 for the node's.

        Returns:
            The ids, rising, in at most three runs. None, with nothing issued, if the serial
            overflows and the next start timestamp is not yet claimed: ``generate`` claims it.

        Raises:
            InvalidRequest: An argument is out of range.
            StoreUnavailable: This process is a fork of the one that claimed the start timestamp.
        """
        if self._pid != self._current_pid():
            raise StoreUnavailable("this process is a fork of the server: it must claim its own start timestamp")
        if (offset | increment) >> 16 or not 0 < count <= MAX_COUNT:
            for name, value in (("auto_increment_offset", offset), ("auto_increment_increment", increment)):
                if not 0 <= value <= MAX_STEP:
                    raise InvalidRequest(name, f"must be between 1 and {MAX_STEP}, or 0 for the node's, not {value}")
            raise InvalidRequest("id_count", f"must be between 1 and {MAX_COUNT}, not {count}")
        if self._claim is not None and not self._claim.done():
            return None
        offset = offset or self.offset
        increment = increment or self.increment
        runs, missing = _runs_before_overflow(
            self._start, self._serial, offset=offset, increment=increment, count=count
        )
        if missing:  # overflow: continue at the offset, under the next start timestamp
            if self._next_start is None:
                return None
            self._start = self._next_start
            self._next_start = None
            run = DocIdRun(self.prefix, self.start_timestamp, first=offset, step=max(increment, 1), id_count=missing)
            runs.append(run)
        self._serial = runs[-1].last
        self.issued += count
        return runs

    async def issue(self, count: int, offset: int = 0, increment: int = 0) -> list[DocIdRun]:
        """Issue ids as ``issue_now`` does, also if the serial overflows.

        An overflow claims the next start timestamp. Concurrent callers share one claim. A cancelled
        caller gets no ids and does not cancel the claim.

        Raises:
            InvalidRequest: An argument is out of range.
            DocIdTimestampRefused: The next start timestamp does not fit in an id.
            StoreUnavailable: The claim failed (the next call retries it), or this process is a
                fork.
            ServerDraining: ``cancel_claims`` was called.
        """
        while (runs := self.issue_now(count, offset, increment)) is None:
            claim = self._claim
            if claim is None or claim.done():
                if self._closed:
                    raise ServerDraining
                claim = self._claim = asyncio.create_task(self._claim_start(), name="claim a start timestamp")
            await asyncio.wait({claim})
            if claim.cancelled():
                raise ServerDraining
            if refusal := claim.result():
                raise refusal.with_traceback(None)  # each raise by a waiting caller would extend it
        return runs

    async def change(self, *, save: Save | None = None, **given: int) -> None:
        """Change the prefix, offset or increment for all callers atomically.

        The serial continues, as in MySQL. A new prefix gets its own start timestamp. Concurrent
        changes are applied in order. A failed change has no effect; one whose caller is cancelled
        completes.

        Args:
            save: Persists the change before it takes effect; None to change this process only.
            given: New values of ``settings``: the prefix, 0 to 65535; the others 1 to 65535.

        Raises:
            InvalidRequest: A value is out of range, or ``save`` cannot persist it.
            DocIdTimestampRefused: The clock is wrong, or the new prefix has no start timestamp
                left.
            PrefixInUse: Another node uses the new prefix, and ``prefix_conflict`` is refuse.
            StoreUnavailable: No start timestamp could be claimed.
            ServerDraining: ``cancel_claims`` was called.
        """
        for name, value in given.items():
            least = 0 if name == "prefix" else 1
            if not least <= value <= MAX_STEP:
                raise InvalidRequest(name, f"must be between {least} and {MAX_STEP}, not {value}")
        if self._closed:
            raise ServerDraining
        change = asyncio.create_task(self._change(given, save), name="change the node")
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.wait({change})
        if change.cancelled():
            raise ServerDraining
        if refusal := change.result():
            raise refusal

    def forget_after_fork(self) -> None:
        """Stop issuing in the child of a fork, since the parent uses the start timestamp."""
        self._pid = NO_PROCESS

    async def cancel_claims(self) -> None:
        """Cancel a claim or change in progress, and refuse new ones."""
        self._closed = True
        if tasks := {*self._changes, *([self._claim] if self._claim else [])}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _claim_start(self) -> Refusal | None:
        """Claim the next start timestamp.

        Returns an error rather than raising it: all callers may be cancelled.
        """
        try:
            start = await self._start_timestamps.claim_next(after=self._start.timestamp)
        except Refusal as refusal:
            return refusal
        if start > self._start and start.prefix == self._start.prefix:  # otherwise the prefix changed meanwhile
            self._next_start = start
        return None

    async def _change(self, given: Mapping[str, int], save: Save | None) -> Refusal | None:
        """Apply one change.

        Returns an error rather than raising it: the caller may be cancelled.
        """
        async with self._change_lock:
            old_prefix = self.prefix
            start = None
            try:
                if given.get("prefix", old_prefix) != old_prefix:
                    start = await self._start_timestamps.claim(given["prefix"])
                if save is not None:
                    await save(given)
            except Refusal as refusal:
                if start is not None:
                    await self._start_timestamps.release(start.prefix)
                return refusal
            # No await up to publish_settings: the change is atomic for callers.
            before = self.settings
            self.offset = given.get("auto_increment_offset", self.offset)
            self.increment = given.get("auto_increment_increment", self.increment)
            if start is not None:
                self._start = start
                self._next_start = None
                self._start_timestamps.prefix = start.prefix
            change_events.publish_settings(before, self.settings)
            if start is not None:
                await self._start_timestamps.release(old_prefix)
        return None
