"""Goes through logs once, and finds what must not be."""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from idalloc._issued_log.format import DOC_IDS, RISING
from idalloc.verify._clock import batches
from idalloc.verify._columns import Bits, Ints, combine, distance, total
from idalloc.verify._evidence import Question, Record, Words, answered_before, look_up, of_generation
from idalloc.verify._files import Exported, Files
from idalloc.verify._logs import HALF, MOST_MESSAGES, MOST_TIME, Log, Rows
from idalloc.verify._names import Names
from idalloc.verify._order import Calls, Groups, Order
from idalloc.verify._runs import Limits, Runs
from idalloc.verify._spans import Spans, Twice, joined, shared

Tags: TypeAlias = npt.NDArray[np.uint64]

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass
class Stretch:
    """From where to where the ids of one step and remainder go, in one generation of a sequence.

    Attributes:
        low: The lowest id.
        high: The highest id.
        records: How many records they came in.
    """

    low: int
    high: int
    records: int


class StretchKey(NamedTuple):
    """Which ids a stretch is about."""

    name: int
    generation: int
    step: int
    remainder: int


@dataclass
class Findings:
    """What must not be.

    Attributes:
        twice: Ids that are in two records.
        disordered: Records that lie before another one that was there when they were asked for, and generations that
            lie before an older one.
        beyond: Records with ids past what the store had given out.
        malformed: Records and lines that cannot be.
        messages: The first ones of each kind, in words.
    """

    twice: int = 0
    disordered: int = 0
    beyond: int = 0
    malformed: int = 0
    messages: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self.twice or self.disordered or self.beyond or self.malformed)


class Proof:
    """Reads all logs, and finds what must not be.

    Attributes:
        findings: That.
        records: How many records there were.
        ids: How many different ids each name has, by its number.
        stretches: Where the ids of each name lie.
        stall: The longest time between two answers that came one after another in one log, in nanoseconds.

    Args:
        files: The logs, and what an export says.
        limits: How much memory to use.
    """

    def __init__(self, files: Files, limits: Limits) -> None:
        self.findings = Findings()
        self.records = 0
        self.ids: defaultdict[int, int] = defaultdict(int)
        self.stretches: dict[StretchKey, Stretch] = {}
        self.stall = 0
        self._files = files
        self._limits = limits
        self._words = Words(files.names, files.logs)
        self._bounds = _Bounds(files.exported or Exported(), files.names)
        self._twice = Twice(MOST_MESSAGES)
        self._runs = Runs(limits, self._twice)
        self._groups = Groups()
        self._tags = _Tags()
        self._late: list[tuple[Record, int, int | None]] = []
        self._beyond: list[Record] = []
        self._malformed: list[str] = []

    def run(self) -> None:
        """Does it."""
        try:
            for logs in _by_boot(self._files.logs):
                nodes, risers = Order(self._limits.records), Order(self._limits.records)
                stalls: list[int] = []
                for rows, numbers in batches(logs, self._limits.records, stalls):
                    self._look(rows, numbers, nodes, risers)
                self.stall = max(self.stall, *stalls)
            self._count()
        finally:
            self._runs.close()
        self.findings.malformed += self._files.malformed
        self._malformed += self._files.examples
        for log in self._files.logs:
            self.findings.malformed += log.malformed
            self._malformed += log.messages
        self._tell()

    def _look(self, rows: Rows, logs: Ints, nodes: Order, risers: Order) -> None:
        if not len(rows):
            return
        self.records += len(rows)
        good = self._well_formed(rows, logs)
        if not good.all():
            rows, logs = rows[good], logs[good]
        if not len(rows):
            return
        first, step = rows["first"].copy(), rows["step"].copy()
        last = first + (rows["count"] - 1) * step
        name = rows["name"].astype(np.int64)
        down = step < 0
        low, high, width = first, last, step
        if down.any():
            low, high, width = np.minimum(first, last), np.maximum(first, last), np.abs(step)
        self._add_stretches(rows, name, low, high, step)
        self._find_beyond(rows, logs, name, np.where(down, ~last, last), down)
        request = rows["request_head"] | rows["request_tail"]
        # Along the order, ids of a sequence that counts down rise, too.
        back, front = np.where(down, ~first, first), np.where(down, ~last, last)
        self._find_disordered(
            rows, logs, Calls(name * 2 + down, rows["asked"], rows["answered"], back, front), request, nodes, risers
        )
        self._runs.add(Spans(name, low, high, width, self._tags.of(rows, request)))

    def _well_formed(self, rows: Rows, logs: Ints) -> Bits:
        """Which records have ids that can be looked at; counts those that cannot be."""
        first, step, count = rows["first"], rows["step"], rows["count"]
        good = (count >= 1) & (step != 0) & (step != _LEAST)
        wide = good & (count > 1)
        least, most = int(step.min()), int(step.max())
        if (
            int(count.max()) < 2**31
            and max(-least, most) < 2**31
            and int(first.max()) < 2**62
            and first.min() > -(2**62)
        ):
            wide[:] = False  # they have no way to go too far
        if wide.any():
            some, steps = np.ascontiguousarray(first[wide]), np.ascontiguousarray(step[wide])
            up = distance(np.full(len(some), _MOST), some)
            below = distance(some, np.full(len(some), _LEAST))
            room = np.where(steps > 0, up, below) // np.abs(steps).view(np.uint64)
            good[wide] = (count[wide] - 1).view(np.uint64) <= room
        untimely = good & _untimely(rows)
        for wrong, why in ((~good, "such ids cannot be"), (untimely, "such times cannot be")):
            if wrong.any():
                self.findings.malformed += int(wrong.sum())
                for at in np.flatnonzero(wrong)[:MOST_MESSAGES]:
                    self._malformed.append(self._words.malformed(self._record(rows, logs, at), why))
        return np.asarray(good)

    def _record(self, rows: Rows, logs: Ints, at: np.intp) -> Record:
        log = int(logs[at])
        return Record.of(log, rows[at], self._files.logs[log].boot_time)

    def _add_stretches(self, rows: Rows, name: Ints, low: Ints, high: Ints, step: Ints) -> None:
        doc_ids = name & 1 == 1
        if doc_ids.any():
            step = np.where(doc_ids, 1, step)
        width = np.abs(step)
        remainder = low % width if int(width.max()) > 1 else np.zeros(len(low), np.int64)
        columns = (name, rows["generation"], step, remainder)
        examples, codes = combine(*columns)
        if len(examples) == 1:
            lows, highs, counts = np.array([low.min()]), np.array([high.max()]), np.array([len(low)])
        else:
            order = np.argsort(codes, kind="stable")
            begins = np.searchsorted(codes[order], np.arange(len(examples)))
            lows = np.minimum.reduceat(low[order], begins)
            highs = np.maximum.reduceat(high[order], begins)
            counts = np.diff(begins, append=len(codes))
        keys = zip(*(column[examples].tolist() for column in columns), strict=True)
        for key, least, most, count in zip(keys, lows.tolist(), highs.tolist(), counts.tolist(), strict=True):
            known = self.stretches.setdefault(StretchKey(*key), Stretch(least, most, 0))
            known.low, known.high = min(known.low, least), max(known.high, most)
            known.records += count

    def _find_beyond(self, rows: Rows, logs: Ints, name: Ints, front: Ints, down: Bits) -> None:
        if self._files.exported is None:
            return
        examples, codes = combine(name, down)
        keys = zip(name[examples].tolist(), down[examples].tolist(), strict=True)
        bounds = [self._bounds.of(*key) for key in keys]
        # A bound of None lets nothing through; the lowest number of all would let itself through.
        closed = np.array([bound is None for bound in bounds])
        limits = np.array([_LEAST if bound is None else bound for bound in bounds], np.int64)
        beyond = closed[codes] | (front > limits[codes])
        if beyond.any():
            self.findings.beyond += int(beyond.sum())
            for at in np.flatnonzero(beyond)[: MOST_MESSAGES - len(self._beyond)]:
                self._beyond.append(self._record(rows, logs, at))

    def _find_disordered(
        self, rows: Rows, logs: Ints, calls: Calls, request: Tags, nodes: Order, risers: Order
    ) -> None:
        """Looks at the order of calls, whose groups are as yet their names and directions."""
        wrong = np.zeros(len(rows), np.bool_)
        furthest = np.zeros(len(rows), np.int64)
        flags = rows["flags"]
        timely = (request == 0) & ~_untimely(rows)
        # Document ids of one name are made by one process.
        node = np.where(flags & DOC_IDS, 1, rows["node"])
        by_node, over_all = timely & (node != 0), timely & (flags & RISING != 0)
        for chosen, order, nodes_of in ((over_all, risers, np.zeros_like(node)), (by_node, nodes, node)):
            if not chosen.any():
                continue
            some = Calls._make(column[chosen] for column in calls)
            some = some._replace(group=self._groups.of(some.group, nodes_of[chosen]))
            found, reach = order.check(some)
            if found.any():
                places = np.flatnonzero(chosen)[found]
                wrong[places], furthest[places] = True, reach
        if wrong.any():
            self.findings.disordered += int(wrong.sum())
            for at in np.flatnonzero(wrong)[: MOST_MESSAGES - len(self._late)]:
                record = self._record(rows, logs, at)
                reach_of = int(furthest[at])
                by = int(node[at]) if by_node[at] and not over_all[at] else None
                self._late.append((record, ~reach_of if record.step < 0 else reach_of, by))

    def _count(self) -> None:
        for piece in self._runs.pieces():
            piece = piece.without_repeats()
            piece = joined(piece._replace(tag=np.zeros(piece.rows, np.uint64)), self._twice)
            if not piece.rows:
                continue
            begins = np.flatnonzero(np.concatenate([[True], piece.name[1:] != piece.name[:-1]]))
            ends = np.append(begins[1:], piece.rows)
            ids = piece.ids()
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                self.ids[int(piece.name[begin])] += total(ids[begin:end])
            for name, count in shared(piece, self._twice).items():
                self.ids[name] -= count
        self.findings.twice = self._twice.ids

    def _fallen(self) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
        """Finds generations that begin before, along the ids, an older one has ended."""
        found: defaultdict[tuple[int, bool], dict[int, tuple[int, int]]] = defaultdict(dict)
        for key, stretch in self.stretches.items():
            if key.name & 1:
                continue
            down = key.step < 0
            back, front = (~stretch.high, ~stretch.low) if down else (stretch.low, stretch.high)
            begin, end = found[key.name, down].get(key.generation, (back, front))
            found[key.name, down][key.generation] = min(begin, back), max(end, front)
        for (name, down), generations in found.items():
            oldest, *others = sorted(generations)
            furthest, of = generations[oldest][1], oldest
            for generation in others:
                begin, end = generations[generation]
                if begin <= furthest:
                    numbers = (~furthest, ~begin) if down else (furthest, begin)
                    yield name, (of, generation), numbers
                if end > furthest:
                    furthest, of = end, generation

    def _tell(self) -> None:
        logs, words = self._files.logs, self._words
        fallen = list(self._fallen())
        self.findings.disordered += len(fallen)
        fallen = fallen[: MOST_MESSAGES - len(self._late)]
        twice = self._twice.examples
        questions = [Question(name, number) for name, number in twice]
        for record, reach, node in self._late:
            questions.append(Question(record.name, reach, answered_before(record, logs[record.log], node)))
        for name, generations, numbers in fallen:
            for generation, number in zip(generations, numbers, strict=True):
                questions.append(Question(name, number, of_generation(generation)))
        answers = iter(look_up(logs, questions, self._limits.records))
        messages = [words.twice(name, number, next(answers)) for name, number in twice]
        messages += [words.disordered(record, next(answers)) for record, _, _ in self._late]
        for name, (older, newer), (ahead, number) in fallen:
            found = [*next(answers)[:1], *next(answers)[:1]]
            messages.append(words.fallen(name, (older, newer), (ahead, number), found))
        messages += [words.beyond(record, self._bounds.called(record.name)) for record in self._beyond]
        self.findings.messages = messages + self._malformed[:MOST_MESSAGES]


class _Bounds:
    """How far the ids of each name can go, by what was exported."""

    def __init__(self, exported: Exported, names: Names) -> None:
        self._exported = exported
        self._names = names
        self._known: dict[tuple[int, bool], int | None] = {}

    def of(self, name: int, down: bool) -> int | None:
        """The last id along the order (as ``~id`` where ids fall); None if there should be none."""
        key = name, down
        if key not in self._known:
            self._known[key] = self._find(name, down)
        return self._known[key]

    def called(self, name: int) -> str:
        """What that is, for people."""
        text = self._names.text(name)
        if name & 1:
            start = self._exported.claims.get(int(text[:4], 16))
            return "any claim in the export" if start is None else f"the exported claim of its prefix, {start}"
        values = self._exported.last_values.get(text)
        return f"the exported last value, {', '.join(map(str, values))}" if values else "the export, which has none"

    def _find(self, name: int, down: bool) -> int | None:
        text = self._names.text(name)
        if name & 1:
            claim = self._exported.claims.get(int(text[:4], 16))
            return _MOST if claim is not None and int(text[4:], 16) <= claim else None
        values = self._exported.last_values.get(text)
        if not values:
            return None
        return max(~value for value in values) if down else max(values)


def _by_boot(logs: list[Log]) -> list[list[Log]]:
    """Logs whose times can be compared; one whose machine is not known stands alone."""
    groups: defaultdict[tuple[str, int], list[Log]] = defaultdict(list)
    for log in logs:
        groups[log.boot_id, -1 if log.boot_id else log.number].append(log)
    return list(groups.values())


def _untimely(rows: Rows) -> Bits:
    """Which records have times, counted from when the machine started, that cannot be."""
    untimely = rows["answered"] < rows["asked"]
    if int(rows["asked"].min()) < 0 or int(rows["answered"].max()) >= MOST_TIME:
        untimely |= (rows["asked"] < 0) | (rows["answered"] >= MOST_TIME)
    return np.asarray(untimely)


class _Tags:
    """Makes numbers that are the same, and not 0, for the same range in the same generation under the same request id.

    They are a universal hash (two times multilinear, https://arxiv.org/abs/1202.4961) whose keys are random: whatever
    two records are, chosen without the keys, the chance that they have the same number by accident is 1 in 2^64.
    """

    _FIELDS = ("request_head", "request_tail", "generation", "first", "step", "count")

    def __init__(self) -> None:
        self._keys = np.frombuffer(os.urandom(2 * (1 + 2 * len(self._FIELDS)) * 8), np.uint64).reshape(2, -1)

    def of(self, rows: Rows, request: Tags) -> Tags:
        """The number of each record; 0 where it has no request id (``request`` is 0) or only half of one."""
        tags = np.zeros(len(rows), np.uint64)
        if not request.any():
            return tags
        known = (request != 0) & (rows["flags"] & HALF == 0)
        columns = [np.ascontiguousarray(rows[field][known]).view(np.uint64) for field in self._FIELDS]
        halves = [half for column in columns for half in (column & _LOW, column >> _32)]
        high, low = (
            sum((half * key for half, key in zip(halves, keys[1:], strict=True)), np.full(len(halves[0]), keys[0]))
            for keys in self._keys
        )
        tags[known] = np.maximum(high >> _32 << _32 | low >> _32, np.uint64(1))
        return tags


_LOW, _32 = np.uint64(2**32 - 1), np.uint64(32)
