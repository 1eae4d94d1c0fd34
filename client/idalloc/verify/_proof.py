"""Reads logs, and finds violations of uniqueness, order and the exported counters.

One pass over the logs finds them; after a finding another one looks up the records that show it.
"""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import starmap
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from idalloc._issued_log.format import DOC_IDS, RISING
from idalloc.verify._columns import Bits, Ints, distance, factorize_rows
from idalloc.verify._evidence import Messages, Query, Record, answered_before, look_up, of_generation
from idalloc.verify._extents import Extents
from idalloc.verify._files import Files
from idalloc.verify._logs import MAX_MESSAGES, MAX_TIME, Log, Rows, batches
from idalloc.verify._order import Calls, OrderChecker
from idalloc.verify._spans import Duplicates, MemoryLimits, Runs, Spans

Tags: TypeAlias = npt.NDArray[np.uint64]

_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


@dataclass
class Findings:
    """Violations."""

    duplicates: int = 0  # ids that are in two records
    # Records that do not follow one that was answered before they were asked for, and generations
    # that do not follow an older one.
    out_of_order: int = 0
    beyond_export: int = 0  # records with ids past the exported counter
    malformed: int = 0  # invalid records and lines
    # The messages of the first violations of each kind.
    messages: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """Whether there is any violation."""
        return bool(self.duplicates or self.out_of_order or self.beyond_export or self.malformed)


class Proof:
    """A check of all logs."""

    def __init__(self, files: Files, limits: MemoryLimits) -> None:
        self.findings = Findings()
        self.records = 0
        self.ids: dict[int, int] = {}  # distinct ids, by the number of their name
        self.extents = Extents()
        self.stall = 0  # the longest time between two consecutive replies of one log, in nanoseconds
        self._files = files
        self._limits = limits
        self._messages = Messages(files)
        self._export_limit = cache(partial(_export_limit, files))
        self._duplicates = Duplicates(MAX_MESSAGES)
        self._runs = Runs(limits, self._duplicates)
        self._tags = _Tags()
        self._late: list[tuple[Record, Query]] = []  # each with the query for a record ahead of it
        self._beyond: list[Record] = []
        self._malformed: list[str] = []

    def run(self) -> None:
        """Read all logs, and collect the violations."""
        # Times of one boot can be compared; a log of an unknown boot is alone.
        by_boot: defaultdict[tuple[str, int], list[Log]] = defaultdict(list)
        for log in self._files.logs:
            by_boot[log.boot_id, -1 if log.boot_id else log.number].append(log)
        try:
            for logs in by_boot.values():
                per_node = OrderChecker(self._limits.records)
                over_all = OrderChecker(self._limits.records)
                for rows, numbers in batches(logs, self._limits.records):
                    self._check(rows, numbers, per_node, over_all)
            self.ids = self._runs.count_ids()
        finally:
            self._runs.close()
        self.findings.duplicates = self._duplicates.ids
        self.findings.malformed += self._files.malformed
        self._malformed += self._files.examples
        for log in self._files.logs:
            self.stall = max(self.stall, log.stall)
            self.findings.malformed += log.malformed
            self._malformed += log.messages
        self._write_messages()

    def _check(self, rows: Rows, logs: Ints, per_node: OrderChecker, over_all: OrderChecker) -> None:
        self.records += len(rows)
        valid = self._valid_ids(rows, logs)
        if not valid.all():
            rows = rows[valid]
            logs = logs[valid]
        if not len(rows):
            return
        first = rows["first"].copy()
        step = rows["step"].copy()
        last = first + (rows["count"] - 1) * step
        name = rows["name"].astype(np.int64)
        down = step < 0
        request = rows["request_head"] | rows["request_tail"]
        spans = Spans(name, low=first, high=last, step=step, tag=self._tags.of(rows, request))
        # The complement makes descending ids rise along the order.
        back = first
        front = last
        if down.any():
            spans = spans._replace(low=np.minimum(first, last), high=np.maximum(first, last), step=np.abs(step))
            back = np.where(down, ~first, first)
            front = np.where(down, ~last, last)
        calls = Calls(name * 2 + down, rows["asked"], rows["answered"], back=back, front=front)
        self.extents.add(rows, spans)
        self._find_beyond(rows, logs, calls)
        self._find_out_of_order(rows, logs, calls, request, per_node=per_node, over_all=over_all)
        self._runs.add(spans)

    def _valid_ids(self, rows: Rows, logs: Ints) -> Bits:
        """Return which records have valid ids; count records with invalid ids or times."""
        first = rows["first"]
        step = rows["step"]
        count = rows["count"]
        valid = (count >= 1) & (step != 0) & (step != _MIN_INT64)
        wide = valid & (count > 1)
        near = int(first.min()) > -(2**62) and int(first.max()) < 2**62
        short = int(count.max()) < 2**31 and int(step.min()) > -(2**31) and int(step.max()) < 2**31
        if not (near and short) and wide.any():  # else none can overflow
            some = np.ascontiguousarray(first[wide])
            steps = np.ascontiguousarray(step[wide])
            up = distance(np.full(len(some), _MAX_INT64), some)
            below = distance(some, np.full(len(some), _MIN_INT64))
            room = np.where(steps > 0, up, below) // np.abs(steps).view(np.uint64)
            valid[wide] = (count[wide] - 1).view(np.uint64) <= room
        untimely = valid & _with_invalid_times(rows)
        for wrong, reason in ((~valid, "invalid ids"), (untimely, "invalid times")):
            if wrong.any():
                self.findings.malformed += int(wrong.sum())
                self._malformed += [self._messages.malformed(each, reason) for each in self._first(rows, logs, wrong)]
        return np.asarray(valid)

    def _first(self, rows: Rows, logs: Ints, which: Bits) -> list[Record]:
        """Return the first of some records."""
        places = np.flatnonzero(which)[:MAX_MESSAGES].tolist()
        return [Record.of(self._files.logs[logs[at]], rows[at]) for at in places]

    def _find_beyond(self, rows: Rows, logs: Ints, calls: Calls) -> None:
        """Find records past the export, by calls whose groups are their names and directions."""
        if not self._files.exported.files:
            return
        examples, codes = factorize_rows(calls.group)
        bounds = [self._export_limit(group // 2, group % 2 == 1) for group in calls.group[examples].tolist()]
        # A missing limit admits no id, not even the smallest.
        closed = np.array([bound is None for bound in bounds])
        limits = np.array([_MIN_INT64 if bound is None else bound for bound in bounds], np.int64)
        beyond = closed[codes] | (calls.front > limits[codes])
        self.findings.beyond_export += int(beyond.sum())
        self._beyond += self._first(rows, logs, beyond)

    def _find_out_of_order(
        self, rows: Rows, logs: Ints, calls: Calls, request: Tags, *, per_node: OrderChecker, over_all: OrderChecker
    ) -> None:
        """Check the order of calls, whose groups are still their names and directions."""
        wrong = np.zeros(len(rows), np.bool_)
        furthest = np.zeros(len(rows), np.int64)
        flags = rows["flags"]
        timely = (request == 0) & ~_with_invalid_times(rows)
        # Document ids of one name are of one process.
        node = np.where(flags & DOC_IDS, 1, rows["node"])
        of_node = timely & (node != 0)
        rising = timely & (flags & RISING != 0)
        for chosen, order, nodes in ((rising, over_all, np.zeros_like(node)), (of_node, per_node, node)):
            if not chosen.any():
                continue
            some = Calls._make(column[chosen] for column in calls)
            late, reach = order.check(some._replace(group=order.groups(some.group, nodes[chosen])))
            places = np.flatnonzero(chosen)[late]
            wrong[places] = True
            furthest[places] = reach
        self.findings.out_of_order += int(wrong.sum())
        node[rising] = 0  # these follow the records of any node
        records = self._first(rows, logs, wrong)
        for record, reach, of in zip(records, furthest[wrong].tolist(), node[wrong].tolist(), strict=False):
            ahead = ~reach if record.step < 0 else reach
            self._late.append((record, Query(record.name, ahead, answered_before(record, of))))

    def _write_messages(self) -> None:
        duplicates = [Query(name, number) for name, number in self._duplicates.examples]
        late = self._late[:MAX_MESSAGES]
        overlaps = list(self.extents.overlaps())
        self.findings.out_of_order += len(overlaps)
        overlaps = overlaps[: MAX_MESSAGES - len(late)]
        older = [Query(each.name, each.last, of_generation(each.older)) for each in overlaps]
        newer = [Query(each.name, each.first, of_generation(each.newer)) for each in overlaps]
        ahead = [query for _, query in late]
        look_up(self._files.logs, [*duplicates, *ahead, *older, *newer], self._limits.records)
        self.findings.messages = [
            *map(self._messages.duplicate, duplicates),
            *starmap(self._messages.out_of_order, late),
            *map(self._messages.overlap, overlaps, older, newer),
            *map(self._messages.beyond_export, self._beyond[:MAX_MESSAGES]),
            *self._malformed[:MAX_MESSAGES],
        ]


def _export_limit(files: Files, name: int, down: bool) -> int | None:
    """Return a name's last valid id along the order (`~id` if ids fall); None without one."""
    text = files.names.text(name)
    if name & 1:
        claim = files.exported.claims.get(int(text[:4], 16))
        return _MAX_INT64 if claim is not None and int(text[4:], 16) <= claim else None
    values = files.exported.last_values.get(text)
    if not values:
        return None
    return max(~value for value in values) if down else max(values)


def _with_invalid_times(rows: Rows) -> Bits:
    """Return which records have invalid times since the boot."""
    untimely = rows["answered"] < rows["asked"]
    if int(rows["asked"].min()) < 0 or int(rows["answered"].max()) >= MAX_TIME:
        untimely |= (rows["asked"] < 0) | (rows["answered"] >= MAX_TIME)
    return np.asarray(untimely)


class _Tags:
    """Tags that are equal, and not 0, for replies to retries.

    These have the same range, generation and request id. A tag is a universal hash (two times
    multilinear, https://arxiv.org/abs/1202.4961) with random keys: two different records, chosen
    without the keys, have the same tag with a probability of 2^-64.
    """

    _FIELDS = ("request_head", "request_tail", "generation", "first", "step", "count")

    def __init__(self) -> None:
        self._keys = np.frombuffer(os.urandom(2 * (1 + 2 * len(self._FIELDS)) * 8), np.uint64).reshape(2, -1)

    def of(self, rows: Rows, request: Tags) -> Tags:
        """Return the tag of each record; 0 if it has no request id (`request` is 0)."""
        tags = np.zeros(len(rows), np.uint64)
        if not request.any():
            return tags
        known = request != 0
        columns = [np.ascontiguousarray(rows[field][known]).view(np.uint64) for field in self._FIELDS]
        halves = [half for column in columns for half in (column & _LOW, column >> _32)]
        high, low = (
            sum((half * key for half, key in zip(halves, keys[1:], strict=True)), np.full(len(halves[0]), keys[0]))
            for keys in self._keys
        )
        tags[known] = np.maximum(high >> _32 << _32 | low >> _32, np.uint64(1))
        return tags


_LOW = np.uint64(2**32 - 1)
_32 = np.uint64(32)
