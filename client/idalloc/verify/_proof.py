"""Reads logs once, and finds violations of uniqueness, order and the exported counters."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from idalloc._issued_log.format import DOC_IDS, RISING
from idalloc.verify._batches import batches
from idalloc.verify._columns import Bits, Ints, distance, factorize_rows, total
from idalloc.verify._evidence import Messages, Query, Record, answered_before, look_up, of_generation
from idalloc.verify._files import Exported, Files
from idalloc.verify._logs import MAX_MESSAGES, MAX_TIME, Log, Rows
from idalloc.verify._order import Calls, OrderChecker
from idalloc.verify._runs import MemoryLimits, Runs
from idalloc.verify._spans import Duplicates, Spans, count_shared, merged

Tags: TypeAlias = npt.NDArray[np.uint64]

_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


@dataclass
class Extent:
    """The extent of the ids of one step and remainder, in one generation of a sequence."""

    low: int
    high: int
    records: int  # the number of their records


class ExtentKey(NamedTuple):
    """The ids that an extent describes."""

    name: int
    generation: int
    step: int
    remainder: int


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
        self.ids: defaultdict[int, int] = defaultdict(int)  # distinct ids, by the number of their name
        self.extents: dict[ExtentKey, Extent] = {}
        # The longest time between two consecutive replies of one log, in nanoseconds.
        self.stall = 0
        self._files = files
        self._limits = limits
        self._messages = Messages(files)
        self._export_limit = cache(partial(_export_limit, files))
        self._duplicates = Duplicates(MAX_MESSAGES)
        self._runs = Runs(limits, self._duplicates)
        self._groups: dict[tuple[int, ...], int] = {}
        self._tags = _Tags()
        self._late: list[tuple[Record, int, int | None]] = []
        self._beyond: list[Record] = []
        self._malformed: list[str] = []

    def run(self) -> None:
        """Read all logs, and collect the violations."""
        try:
            # Times of one boot can be compared; a log of an unknown boot is alone.
            by_boot: defaultdict[tuple[str, int], list[Log]] = defaultdict(list)
            for log in self._files.logs:
                by_boot[log.boot_id, -1 if log.boot_id else log.number].append(log)
            for logs in by_boot.values():
                per_node = OrderChecker(self._limits.records)
                over_all = OrderChecker(self._limits.records)
                stalls: list[int] = []
                for rows, numbers in batches(logs, self._limits.records, stalls):
                    self._check(rows, numbers, per_node, over_all)
                self.stall = max(self.stall, *stalls)
            self._count_ids()
        finally:
            self._runs.close()
        self.findings.malformed += self._files.malformed
        self._malformed += self._files.examples
        for log in self._files.logs:
            self.findings.malformed += log.malformed
            self._malformed += log.messages
        self._write_messages()

    def _check(self, rows: Rows, logs: Ints, per_node: OrderChecker, over_all: OrderChecker) -> None:
        self.records += len(rows)
        valid = self._valid_ids(rows, logs)
        if not valid.all():
            rows, logs = rows[valid], logs[valid]
        if not len(rows):
            return
        first = rows["first"].copy()
        step = rows["step"].copy()
        last = first + (rows["count"] - 1) * step
        name = rows["name"].astype(np.int64)
        down = step < 0
        request = rows["request_head"] | rows["request_tail"]
        spans = Spans(name, low=first, high=last, step=step, tag=self._tags.of(rows, request))
        if down.any():
            spans = spans._replace(low=np.minimum(first, last), high=np.maximum(first, last), step=np.abs(step))
        self._add_extents(rows, spans)
        # The complement makes descending ids rise along the order.
        back = np.where(down, ~first, first)
        front = np.where(down, ~last, last)
        calls = Calls(name * 2 + down, rows["asked"], rows["answered"], back=back, front=front)
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
                for at in np.flatnonzero(wrong)[:MAX_MESSAGES]:
                    self._malformed.append(self._messages.malformed(self._record(rows, logs, at), reason))
        return np.asarray(valid)

    def _record(self, rows: Rows, logs: Ints, at: np.intp) -> Record:
        log = int(logs[at])
        return Record.of(log, rows[at], self._files.logs[log].boot_time)

    def _add_extents(self, rows: Rows, spans: Spans) -> None:
        low = spans.low
        high = spans.high
        step = np.where(spans.name & 1, 1, rows["step"])  # document ids may have any step
        width = np.abs(step)
        remainder = low % width if int(width.max()) > 1 else np.zeros(len(low), np.int64)
        columns = (spans.name, rows["generation"], step, remainder)
        examples, codes = factorize_rows(*columns)
        if len(examples) == 1:
            lows = np.array([low.min()])
            highs = np.array([high.max()])
            counts = np.array([len(low)])
        else:
            order = np.argsort(codes, kind="stable")
            begins = np.searchsorted(codes[order], np.arange(len(examples)))
            lows = np.minimum.reduceat(low[order], begins)
            highs = np.maximum.reduceat(high[order], begins)
            counts = np.diff(begins, append=len(codes))
        keys = zip(*(column[examples].tolist() for column in columns), strict=True)
        for key, minimum, maximum, count in zip(keys, lows.tolist(), highs.tolist(), counts.tolist(), strict=True):
            name, generation, step, remainder = key
            extent = ExtentKey(name, generation, step=step, remainder=remainder)
            known = self.extents.setdefault(extent, Extent(minimum, maximum, 0))
            known.low = min(known.low, minimum)
            known.high = max(known.high, maximum)
            known.records += count

    def _find_beyond(self, rows: Rows, logs: Ints, calls: Calls) -> None:
        """Find records past the export, by calls whose groups are their names and directions."""
        if self._files.exported is None:
            return
        examples, codes = factorize_rows(calls.group)
        bounds = [self._export_limit(group // 2, group % 2 == 1) for group in calls.group[examples].tolist()]
        # A missing limit admits no id, not even the smallest.
        closed = np.array([bound is None for bound in bounds])
        limits = np.array([_MIN_INT64 if bound is None else bound for bound in bounds], np.int64)
        beyond = closed[codes] | (calls.front > limits[codes])
        if beyond.any():
            self.findings.beyond_export += int(beyond.sum())
            for at in np.flatnonzero(beyond)[: MAX_MESSAGES - len(self._beyond)]:
                self._beyond.append(self._record(rows, logs, at))

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
            # A group has the same number in all batches.
            examples, codes = factorize_rows(some.group, nodes[chosen])
            keys = zip(some.group[examples].tolist(), nodes[chosen][examples].tolist(), strict=True)
            numbers = [self._groups.setdefault(key, len(self._groups)) for key in keys]
            late, reach = order.check(some._replace(group=np.array(numbers, np.int64)[codes]))
            if late.any():
                places = np.flatnonzero(chosen)[late]
                wrong[places] = True
                furthest[places] = reach
        if wrong.any():
            self.findings.out_of_order += int(wrong.sum())
            for at in np.flatnonzero(wrong)[: MAX_MESSAGES - len(self._late)]:
                record = self._record(rows, logs, at)
                reach_of = int(furthest[at])
                by = int(node[at]) if of_node[at] and not rising[at] else None
                self._late.append((record, ~reach_of if record.step < 0 else reach_of, by))

    def _count_ids(self) -> None:
        for piece in self._runs.pieces():
            piece = piece.without_repeats()
            piece = merged(piece._replace(tag=np.zeros(piece.rows, np.uint64)), self._duplicates)
            if not piece.rows:
                continue
            begins = np.flatnonzero(np.concatenate([[True], piece.name[1:] != piece.name[:-1]]))
            ends = np.append(begins[1:], piece.rows)
            steps = piece.steps()
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                self.ids[int(piece.name[begin])] += total(steps[begin:end]) + end - begin
            for name, count in count_shared(piece, self._duplicates).items():
                self.ids[name] -= count
        self.findings.duplicates = self._duplicates.ids

    def _overlaps(self) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
        """Yield overlaps: a name, its older and newer generation, and their last and first id."""
        ends: defaultdict[tuple[int, bool], dict[int, tuple[int, int]]] = defaultdict(dict)
        for key, extent in self.extents.items():
            if key.name & 1:
                continue
            down = key.step < 0
            back, front = (~extent.high, ~extent.low) if down else (extent.low, extent.high)
            begin, end = ends[key.name, down].get(key.generation, (back, front))
            ends[key.name, down][key.generation] = min(begin, back), max(end, front)
        for (name, down), generations in ends.items():
            of, *others = sorted(generations)
            for generation in others:
                _, furthest = generations[of]
                begin, end = generations[generation]
                if begin <= furthest:
                    numbers = (~furthest, ~begin) if down else (furthest, begin)
                    yield name, (of, generation), numbers
                if end > furthest:
                    of = generation

    def _write_messages(self) -> None:
        logs = self._files.logs
        overlaps = list(self._overlaps())
        self.findings.out_of_order += len(overlaps)
        overlaps = overlaps[: MAX_MESSAGES - len(self._late)]
        duplicates = self._duplicates.examples
        queries = [Query(name, number) for name, number in duplicates]
        for record, reach, node in self._late:
            queries.append(Query(record.name, reach, answered_before(record, logs[record.log], node)))
        for name, generations, numbers in overlaps:
            for generation, number in zip(generations, numbers, strict=True):
                queries.append(Query(name, number, of_generation(generation)))
        results = iter(look_up(logs, queries, self._limits.records))
        messages = [self._messages.duplicate(name, number, next(results)) for name, number in duplicates]
        messages += [self._messages.out_of_order(record, next(results)) for record, _, _ in self._late]
        for name, generations, numbers in overlaps:
            records = [*next(results)[:1], *next(results)[:1]]
            messages.append(self._messages.overlap(name, generations, numbers, records))
        messages += map(self._messages.beyond_export, self._beyond)
        self.findings.messages = messages + self._malformed[:MAX_MESSAGES]


def _export_limit(files: Files, name: int, down: bool) -> int | None:
    """Return a name's last valid id along the order (`~id` if ids fall); None without one."""
    exported = files.exported or Exported()
    text = files.names.text(name)
    if name & 1:
        claim = exported.claims.get(int(text[:4], 16))
        return _MAX_INT64 if claim is not None and int(text[4:], 16) <= claim else None
    values = exported.last_values.get(text)
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
