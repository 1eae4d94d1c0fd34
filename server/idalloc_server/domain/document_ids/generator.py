"""Document ids in MySQL's format, by MySQL's arithmetic, under a start timestamp that only this process has.

An id has 28 lower-case hexadecimal characters: 4 of the node's prefix, 8 of a timestamp, 16 of a serial. The
rules are those of ``Document_id_generator`` in MySQL's X Plugin, as a MySQL 8.0.31 shows them; where its
documentation says otherwise, the server wins. Only the timestamp's source differs: MySQL takes the clock's,
here it is claimed in the store, so that no restart, however quick, and no clock, however wrong, brings an id
back.
"""

import asyncio
import os
import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn, Protocol

from idalloc_server.domain import change_events, fork
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import InvalidRequest, Refusal, ServerDraining, StoreUnavailable

MAX_SERIAL = 2**64 - 1
MAX_STEP = 2**16 - 1

# With so many ids, at MySQL's largest increment, no batch can exhaust a whole timestamp.
MAX_COUNT = 2**40

# The last three characters of any serial. A longer table would be slower: it leaves the processor's cache.
_BLOCK = 16**3
_TAILS = [f"{tail:03x}" for tail in range(_BLOCK)]

# In wider steps than this too few ids share a block of the table to be worth its while.
_TABLE_STEP = 128


def next_serial(serial: int, offset: int, increment: int) -> int:
    """Returns the serial that MySQL issues after ``serial`` (in ``Document_id_generator::generate``).

    It is the next one congruent to the offset; but at an increment of 1 the offset is ignored, and as long as
    it lies more than one increment ahead, an unsigned subtraction underflows, which changes the congruence
    unless the increment is a power of two (offset 10, increment 3, from 0: 3, 6, 9, 10, 13).

    Args:
        serial: The last serial issued, 0 to 2^64-1; of a new process 0.
        offset: MySQL's auto_increment_offset, 0 to 65535.
        increment: MySQL's auto_increment_increment, 0 to 65535.

    Returns:
        The next serial, modulo 2^64: it is not larger than ``serial`` exactly when it overflowed. To that
        MySQL answers with the next timestamp and the offset as its first serial, whatever the increment.
    """
    if increment <= 1:
        return (serial + 1) & MAX_SERIAL
    ahead = (serial + increment - offset) & MAX_SERIAL
    return (ahead // increment * increment + offset) & MAX_SERIAL


class DocIdRun(NamedTuple):
    """Document ids whose serials rise in even steps.

    Attributes:
        prefix: The node's prefix, 0 to 65535.
        timestamp: Seconds since 1970, below 2^32.
        first: The first serial.
        step: The distance from one serial to the next, at least 1.
        id_count: How many ids, at least 1.
    """

    prefix: int
    timestamp: int
    first: int
    step: int
    id_count: int

    @property
    def last(self) -> int:
        """The last serial, inclusive."""
        return self.first + (self.id_count - 1) * self.step

    @property
    def first_doc_id(self) -> str:
        """The first id as text."""
        return f"{self.prefix:04x}{self.timestamp:08x}{self.first:016x}"

    def texts(self) -> list[str]:
        """Returns all ids as texts, in their order."""
        if self.id_count == 1:
            return [self.first_doc_id]
        head = f"{self.prefix:04x}{self.timestamp:08x}"
        serial, last, step = self.first, self.last, self.step
        if step > _TABLE_STEP:
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


def _climb(start: StartTimestamp, serial: int, offset: int, increment: int, count: int) -> tuple[list[DocIdRun], int]:
    """Runs ``next_serial`` up to ``count`` times after ``serial``, until it overflows, in closed form.

    Returns:
        The runs, and how many ids are missing because of an overflow.
    """
    runs: list[DocIdRun] = []
    step = max(increment, 1)
    while count:
        first = next_serial(serial, offset, increment)
        if first <= serial:
            break
        # Where the subtraction underflows, the congruence may change at the offset; else steps are even to the top.
        highest = offset - 1 if serial + step < offset else MAX_SERIAL
        even = min((highest - first) // step + 1, count)
        if runs and first == serial + step:  # the congruence stayed
            runs[-1] = runs[-1]._replace(id_count=runs[-1].id_count + even)
        else:
            runs.append(DocIdRun(*start, first, step, even))
        serial = first + (even - 1) * step
        count -= even
    return runs, count


class NodeSettings(Protocol):
    """Keeps settings of this node over restarts. Settings go by the names of the server's settings."""

    def check(self, settings: Iterable[str]) -> None:
        """Sees that settings can be kept.

        Raises:
            InvalidRequest: They would not hold at the next start.
        """
        ...

    async def save(self, settings: Mapping[str, int]) -> None:
        """Keeps these, beside those that were kept before.

        Raises:
            InvalidRequest: They cannot be written. Nothing was.
        """
        ...


class DocIdGenerator:
    """This process's source of document ids: one serial for all callers, as in MySQL.

    Ids rise from one batch to the next for as long as the prefix stays; no two batches share an id, and none
    shares one with any other process, ever. All methods belong to one event loop. After a fork the child
    issues none.

    Attributes:
        offset: MySQL's auto_increment_offset for callers who name none, 1 to 65535.
        increment: MySQL's auto_increment_increment likewise.

    Args:
        epoch: Where further start timestamps are claimed.
        start: The first one, from ``StartTimestamps.start``.
    """

    def __init__(
        self, start_timestamps: StartTimestamps, start: StartTimestamp, *, offset: int = 1, increment: int = 1
    ) -> None:
        self.offset = offset
        self.increment = increment
        self._start_timestamps = start_timestamps
        self._start = start
        self._serial = 0
        self._next_start: StartTimestamp | None = None
        self._claim: asyncio.Task[Refusal | None] | None = None
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Refusal | None]] = set()
        self._closed = False
        self._pid = os.getpid()
        fork.register(self)

    @property
    def prefix(self) -> int:
        """The node's prefix, 0 to 65535."""
        return self._start.prefix

    @property
    def settings(self) -> dict[str, int]:
        """What ``change`` changes, under the names that it has on the wire."""
        return {
            "prefix": self.prefix,
            "auto_increment_offset": self.offset,
            "auto_increment_increment": self.increment,
        }

    @property
    def start_timestamp(self) -> int:
        """The timestamp of the ids that are issued now, in seconds since 1970."""
        return self._start.timestamp

    def take(self, count: int, offset: int = 0, increment: int = 0) -> list[DocIdRun] | None:
        """Issues ids from memory, without waiting (``Document_id_generator::generate``, ``count`` times).

        Args:
            count: How many, 1 to 2^40.
            offset: MySQL's auto_increment_offset for this call, 1 to 65535, or 0 for the node's.
            increment: MySQL's auto_increment_increment likewise.

        Returns:
            The ids, rising; few runs for any number. None, and nothing was issued, where a start timestamp has
            to be claimed first: ``generate`` does that.

        Raises:
            InvalidRequest: An argument is out of its range.
            StoreUnavailable: This process is a fork of the one that claimed the start timestamp.
        """
        if self._pid != os.getpid():
            raise StoreUnavailable("this process is a fork: it must claim a start timestamp of its own")
        if (offset | increment) >> 16 or not 0 < count <= MAX_COUNT:
            _refuse(count, offset, increment)
        if self._claim is not None and not self._claim.done():
            return None
        offset = offset or self.offset
        increment = increment or self.increment
        runs, missing = _climb(self._start, self._serial, offset, increment, count)
        if missing:
            if self._next_start is None:
                return None
            self._start, self._next_start = self._next_start, None
            runs.append(DocIdRun(*self._start, offset, max(increment, 1), missing))
        self._serial = runs[-1].last
        return runs

    async def generate(self, count: int, offset: int = 0, increment: int = 0) -> list[DocIdRun]:
        """Issues ids as ``take`` does, and claims a start timestamp first where that is needed.

        All who come during a claim wait for that one. A caller who is cancelled gets nothing, and its claim
        goes on for the others.

        Raises:
            InvalidRequest: An argument is out of its range.
            DocIdTimestampRefused: The next timestamp would not fit in an id.
            StoreUnavailable: The claim failed, and the next call tries again; or this process is a fork.
            ServerDraining: ``close`` was called.
        """
        while (runs := self.take(count, offset, increment)) is None:
            await self._claimed()
        return runs

    async def change(
        self,
        *,
        prefix: int | None = None,
        offset: int | None = None,
        increment: int | None = None,
        node_settings: NodeSettings | None = None,
    ) -> None:
        """Changes what ids are made of from now on, for all callers and all at once; the serial goes on, as in MySQL.

        A new prefix gets a start timestamp of its own first. Changes are made one after the other; one that fails
        changes nothing, and one whose caller is cancelled goes on.

        Args:
            prefix: The new prefix, 0 to 65535; None for the present one, as of the others.
            offset: The new auto_increment_offset, 1 to 65535.
            increment: The new auto_increment_increment, 1 to 65535.
            node_settings: Who keeps the change over restarts, if anyone.

        Raises:
            InvalidRequest: A value is out of its range, or ``node_settings`` cannot keep it.
            DocIdTimestampRefused: The clock is wrong, or the new prefix has no timestamp left.
            PrefixInUse: Another node uses the new prefix, and that is refused.
            StoreUnavailable: No start timestamp could be claimed.
            ServerDraining: ``close`` was called.
        """
        _check(prefix, offset, increment)
        if self._closed:
            raise ServerDraining
        change = asyncio.create_task(self._change(prefix, offset, increment, node_settings), name="change the node")
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        await asyncio.wait({change})
        if change.cancelled():
            raise ServerDraining
        if refusal := change.result():
            raise refusal

    def forget_after_fork(self) -> None:
        """Makes none under the parent's start timestamp, in the child of a fork."""
        self._pid = fork.NO_PROCESS

    async def close(self) -> None:
        """Ends a claim or a change that is under way. Afterwards none is begun."""
        self._closed = True
        if tasks := {*self._changes, *([self._claim] if self._claim else [])}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _claimed(self) -> None:
        """Waits until the claim that is under way, or else a new one, has been made."""
        claim = self._claim
        if claim is None or claim.done():
            if self._closed:
                raise ServerDraining
            claim = self._claim = asyncio.create_task(self._claim_start(), name="claim a start timestamp")
        await asyncio.wait({claim})
        if claim.cancelled():
            raise ServerDraining
        if refusal := claim.result():
            raise refusal.with_traceback(None)  # else it would grow with every caller who waited

    async def _claim_start(self) -> Refusal | None:
        """Claims the next start timestamp. A refusal is returned: there may be no one left to raise it to."""
        try:
            start = await self._start_timestamps.claim_next(after=self._start.timestamp)
        except Refusal as refusal:
            return refusal
        if start > self._start and start.prefix == self._start.prefix:  # else the prefix was changed meanwhile
            self._next_start = start
        return None

    async def _change(
        self, prefix: int | None, offset: int | None, increment: int | None, node_settings: NodeSettings | None
    ) -> Refusal | None:
        """Makes one change. A refusal is returned: there may be no one left to raise it to."""
        given = {"node_prefix": prefix, "auto_increment_offset": offset, "auto_increment_increment": increment}
        wanted = {name: value for name, value in given.items() if value is not None}
        async with self._changing:
            try:
                if node_settings is not None:
                    node_settings.check(wanted)
                before = self._start.prefix
                start = None if prefix in (None, before) else await self._start_timestamps.claim(wanted["node_prefix"])
                try:
                    if node_settings is not None:
                        await node_settings.save(wanted)
                except Refusal:
                    if start is not None:
                        await self._start_timestamps.release(start.prefix)
                    raise
            except Refusal as refusal:
                return refusal
            # Nothing is awaited here, so that no call sees a part of it.
            was = self.settings
            self.offset = offset or self.offset
            self.increment = increment or self.increment
            if start is not None:
                self._start, self._next_start = start, None
                self._start_timestamps.use(start)
            change_events.publish_settings(was, self.settings)
            if start is not None:
                await self._start_timestamps.release(before)
        return None


def _refuse(count: int, offset: int, increment: int) -> NoReturn:
    for field, value in (("auto_increment_offset", offset), ("auto_increment_increment", increment)):
        if not 0 <= value <= MAX_STEP:
            raise InvalidRequest(field, f"must be between 1 and {MAX_STEP}, or 0 for the node's, not {value}")
    raise InvalidRequest("id_count", f"must be between 1 and {MAX_COUNT}, not {count}")


def _check(prefix: int | None, offset: int | None, increment: int | None) -> None:
    for field, value, least in (
        ("prefix", prefix, 0),
        ("auto_increment_offset", offset, 1),
        ("auto_increment_increment", increment, 1),
    ):
        if value is not None and not least <= value <= MAX_STEP:
            raise InvalidRequest(field, f"must be between {least} and {MAX_STEP}, not {value}")
