"""Spans of ids, from a lowest to a highest one in even steps, and ids that are in two spans.

Spans beyond the limit of memory are sorted in temporary files: an external merge sort.
"""

import os
import struct
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, product
from math import gcd
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from idalloc.verify._columns import Ints, Positions, argsort, distance, factorize_rows, pack, running_max, total

# The format of a span in a file.
SPAN = np.dtype([("name", "<i8"), ("low", "<i8"), ("high", "<i8"), ("step", "<i8"), ("tag", "<u8")])
_NAME_AND_LOW = struct.Struct("<qq")


class Spans(NamedTuple):
    """Columns of spans."""

    name: Ints  # the number of the ids' name
    low: Ints
    high: Ints
    step: Ints  # the difference of consecutive ids, above 0
    # Equal and not 0 for replies to retries of one request with the same range; else 0.
    tag: npt.NDArray[np.uint64]

    @property
    def rows(self) -> int:
        """The number of spans."""
        return len(self.low)

    def take(self, which: npt.NDArray[np.bool_] | Positions | slice) -> "Spans":
        return Spans._make(column[which] for column in self)

    def steps(self) -> npt.NDArray[np.uint64]:
        """Return the number of steps in each span, which is one less than the number of its ids."""
        room = distance(self.high, self.low)
        if not self.rows or (int(self.step.min()) == int(self.step.max()) == 1):
            return room
        return room // self.step.view(np.uint64)

    def sort_by_low(self) -> "Spans":
        """Return the spans sorted by name, then by their lowest id."""
        (keys,) = pack(self.name, self.low)
        order = argsort(keys)
        return self if order is None else self.take(order)

    def without_repeats(self) -> "Spans":
        """Return the spans without replies to retries."""
        tagged = np.flatnonzero(self.tag)
        if not len(tagged):
            return self
        order = tagged[np.lexsort((self.tag[tagged], self.name[tagged]))]
        again = (self.tag[order[1:]] == self.tag[order[:-1]]) & (self.name[order[1:]] == self.name[order[:-1]])
        kept = np.ones(self.rows, np.bool_)
        kept[order[1:][again]] = False
        return self.take(kept)

    def split(self, name: int, end: int) -> tuple["Spans", "Spans"]:
        """Split the spans at an id of a name: into the ids before it, and the rest."""
        before = (self.name < name) | ((self.name == name) & (self.low < end))
        below = self.take(before)
        above = self.take(~before)
        across = (below.name == name) & (below.high >= end)
        if not across.any():
            return below, above
        cut = below.take(across)
        steps = cut.step.view(np.uint64)
        ends = np.full(cut.rows, end - 1, np.int64)
        last = cut.low + (distance(ends, cut.low) // steps * steps).view(np.int64)
        below.high[across] = last
        rest = cut._replace(low=last + cut.step)
        return below, concatenated([rest, above])

    def packed(self) -> npt.NDArray[np.void]:
        """Return the spans in the format of a file."""
        rows = np.empty(self.rows, SPAN)
        for name, column in zip(self._fields, self, strict=True):
            rows[name] = column
        return rows

    @classmethod
    def unpacked(cls, rows: npt.NDArray[np.void]) -> "Spans":
        """Return spans from the format of a file."""
        return cls._make(np.ascontiguousarray(rows[field]) for field in cls._fields)


def concatenated(parts: Iterable[Spans]) -> Spans:
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Spans.unpacked(np.empty(0, SPAN))
    return Spans._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


@dataclass(eq=False, slots=True)
class Duplicates:
    """A counter of ids that were issued more than once."""

    _max_examples: int
    # The number of duplicates: n - 1 for an id in n spans of equal steps; of different steps, each
    # pair counts.
    ids: int = 0
    # The name's number and the id of some of them.
    examples: list[tuple[int, int]] = field(default_factory=list)

    def add(self, ids: int, examples: Iterable[tuple[int, int]]) -> None:
        """Count ids, with examples that may be known already."""
        self.ids += ids
        for example in examples:
            if len(self.examples) >= self._max_examples:
                return
            if example not in self.examples:
                self.examples.append(example)


def merged(spans: Spans, duplicates: Duplicates) -> Spans:
    """Merge spans of equal steps that touch or overlap, and count the ids that they share.

    The result is sorted by name and lowest id. Spans with a tag are not merged, but replies to
    retries are removed.
    """
    spans = spans.without_repeats()
    tagged = spans.tag != 0
    if not tagged.any():
        return _merged(spans, duplicates)
    return concatenated([_merged(spans.take(~tagged), duplicates), spans.take(tagged)]).sort_by_low()


def _merged(spans: Spans, duplicates: Duplicates) -> Spans:
    if spans.rows < 2:
        return spans
    plain = int(spans.step.max()) == 1
    # Only ids of one step and remainder can be merged.
    lattices = spans.name if plain else factorize_rows(spans.name, spans.step, spans.low % spans.step)[1]
    (keys,) = pack(lattices, spans.low)
    order = argsort(keys)
    if order is not None:
        spans = spans.take(order)
        lattices = lattices[order]
    low = spans.low
    high = spans.high
    same = lattices[1:] == lattices[:-1]
    reach = high
    if bool((same & (low[1:] <= high[:-1])).any()):
        reach = running_max(lattices, high)
        overlapping = np.flatnonzero(same & (low[1:] <= reach[:-1])) + 1
        ends = np.minimum(high[overlapping], reach[overlapping - 1])
        shared = spans.take(overlapping)._replace(high=ends)
        ids = total(shared.steps()) + shared.rows
        duplicates.add(ids, zip(shared.name.tolist()[:99], shared.low.tolist()[:99], strict=True))
    touches = same & ((low[1:] <= reach[:-1]) | (low[1:] - reach[:-1] == spans.step[1:]))
    begins = np.flatnonzero(np.concatenate([[True], ~touches]))
    if len(begins) < spans.rows:
        ends = np.append(begins[1:], spans.rows) - 1
        spans = spans.take(begins)._replace(high=reach[ends])
    return spans if plain else spans.sort_by_low()


def count_shared(spans: Spans, duplicates: Duplicates) -> dict[int, int]:
    """Count the ids that are in spans of different steps.

    Args:
        spans: Spans sorted by name and lowest id; spans of equal steps do not overlap.
        duplicates: Counts the ids.

    Returns:
        The number of such ids, by the number of their name.
    """
    overlap = (spans.name[1:] == spans.name[:-1]) & (spans.low[1:] <= spans.high[:-1])
    counts: dict[int, int] = {}
    for name in np.unique(spans.name[1:][overlap]).tolist():
        begin, end = np.searchsorted(spans.name, [name, name + 1])
        before = duplicates.ids
        for first, second in _pairs(spans.take(slice(begin, end))):
            _count_shared_by_pair(first, second, duplicates)
        counts[name] = duplicates.ids - before
    return counts


def _pairs(spans: Spans) -> Iterator[tuple[Spans, Spans]]:
    """Yield pairs of lattices of different steps that intersect, if they were unbounded."""
    examples, codes = factorize_rows(spans.step, spans.low % spans.step)
    by_step: dict[int, list[tuple[int, Spans]]] = {}
    for code, example in enumerate(examples.tolist()):
        lattice = spans.take(codes == code)
        step = int(spans.step[example])
        by_step.setdefault(step, []).append((int(spans.low[example]) % step, lattice))
    for (step, ones), (width, others) in combinations(by_step.items(), 2):
        for (remainder, one), (offset, other) in product(ones, others):
            if (remainder - offset) % gcd(step, width) == 0:
                yield one, other


def _count_shared_by_pair(one: Spans, other: Spans, duplicates: Duplicates) -> None:
    begins = np.searchsorted(one.high, other.low, side="left")
    counts = np.maximum(np.searchsorted(one.low, other.high, side="right") - begins, 0)
    right = np.repeat(np.arange(other.rows), counts)
    left = np.arange(len(right)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(begins, counts)
    low = np.maximum(one.low[left], other.low[right])
    high = np.minimum(one.high[left], other.high[right])
    step = int(one.step[0])
    width = int(other.step[0])
    met = _solve(step, int(one.low[0]) % step, width, int(other.low[0]) % width)
    if met is None:
        return
    number, period = met
    if period < 2**62:
        ahead = ((number - low % period) % period).view(np.uint64)
        room = distance(high, low)
        some = ahead <= room
        ids = total((room[some] - ahead[some]) // np.uint64(period)) + int(some.sum())
        firsts = (low[some] + ahead[some].view(np.int64)).tolist()
    else:  # The sums above would overflow 64 bits.
        ends = zip(low.tolist(), high.tolist(), strict=True)
        shared = [(begin + (number - begin) % period, end) for begin, end in ends]
        ids = sum((end - first) // period + 1 for first, end in shared if first <= end)
        firsts = [first for first, end in shared if first <= end]
    duplicates.add(ids, [(int(one.name[0]), number) for number in firsts[:99]])


def _solve(step: int, remainder: int, width: int, offset: int) -> tuple[int, int] | None:
    """Find the numbers that are ``remainder`` modulo ``step`` and ``offset`` modulo ``width``.

    Returns:
        One solution, and the distance between solutions (the least common multiple); None if there
        is no solution.
    """
    divisor = gcd(step, width)
    if (offset - remainder) % divisor:
        return None
    factor = (offset - remainder) // divisor * pow(step // divisor, -1, width // divisor)
    period = step // divisor * width
    return (remainder + step * factor) % period, period


class MemoryLimits(NamedTuple):
    """The most that is held in memory at a time."""

    records: int = 2**17  # the records of all logs together
    spans: int = 2_000_000
    piece: int = 1_000_000  # about how many spans are merged at a time


class _Run(NamedTuple):
    """A file of spans, sorted by name and lowest id."""

    path: Path
    rows: int

    def find(self, name: int, low: int) -> int:
        """Return the number of rows before an id of a name."""
        with self.path.open("rb", buffering=0) as file:

            def name_and_low(row: int) -> tuple[int, int]:
                begin = os.pread(file.fileno(), _NAME_AND_LOW.size, row * SPAN.itemsize)
                return _NAME_AND_LOW.unpack(begin)

            return bisect_left(range(self.rows), (name, low), key=name_and_low)

    def read(self, begin: int, end: int) -> Spans:
        return Spans.unpacked(np.fromfile(self.path, SPAN, end - begin, offset=begin * SPAN.itemsize))


class Runs:
    """Collects spans, and yields them in the order of names and ids.

    Args:
        duplicates: Counts the ids that merged spans share.
    """

    def __init__(self, limits: MemoryLimits, duplicates: Duplicates) -> None:
        self._limits = limits
        self._duplicates = duplicates
        self._parts: list[Spans] = []
        self._rows = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[_Run] = []
        # One of this many rows of each run is a sample, at which all runs can be split.
        self._distance = max(1, limits.piece // 2048)
        self._samples: list[tuple[Ints, Ints]] = []

    def close(self) -> None:
        """Remove the temporary files."""
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, spans: Spans) -> None:
        spans = merged(spans, self._duplicates)
        self._parts.append(spans)
        self._rows += spans.rows
        if self._rows > self._limits.spans:
            self._compact()
            if self._rows > self._limits.spans // 2:
                self._spill()

    def count_ids(self) -> dict[int, int]:
        """Return the number of distinct ids by the number of their name, and count duplicates."""
        ids = dict[int, int]()
        for piece in self._pieces():
            piece = piece.without_repeats()
            piece = merged(piece._replace(tag=np.zeros(piece.rows, np.uint64)), self._duplicates)
            if not piece.rows:
                continue
            begins = np.flatnonzero(np.concatenate([[True], piece.name[1:] != piece.name[:-1]]))
            ends = np.append(begins[1:], piece.rows)
            steps = piece.steps()
            shared = count_shared(piece, self._duplicates)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                name = int(piece.name[begin])
                ids[name] = ids.get(name, 0) + total(steps[begin:end]) + end - begin - shared.get(name, 0)
        return ids

    def _pieces(self) -> Iterator[Spans]:
        """Yield all spans in pieces of ascending ids; a span in two pieces is split."""
        self._compact()
        if not self._runs:
            yield from self._parts
            return
        self._spill()
        at = [0] * len(self._runs)
        rest = concatenated([])
        for name, low in self._splitters():
            ends = [run.find(name, low) for run in self._runs]
            parts = [run.read(*span) for run, *span in zip(self._runs, at, ends, strict=True)]
            piece, rest = concatenated([rest, *parts]).split(name, low)
            at = ends
            yield piece
        yield concatenated([rest, *(run.read(begin, run.rows) for run, begin in zip(self._runs, at, strict=True))])

    def _compact(self) -> None:
        if len(self._parts) > 1:
            self._parts = [merged(concatenated(self._parts), self._duplicates)]
            self._rows = self._parts[0].rows

    def _spill(self) -> None:
        if not self._rows:
            return
        (spans,) = self._parts
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="idalloc-verify-")
        run = _Run(Path(self._folder.name) / f"{len(self._runs)}.run", spans.rows)
        spans.packed().tofile(run.path)
        self._runs.append(run)
        self._samples.append((spans.name[:: self._distance].copy(), spans.low[:: self._distance].copy()))
        self._parts = []
        self._rows = 0

    def _splitters(self) -> list[tuple[int, int]]:
        """Return the names and ids at which to split: no piece is much larger than the limit."""
        names, lows = (np.concatenate(columns) for columns in zip(*self._samples, strict=True))
        order = np.lexsort((lows, names))
        # Each run may add up to one distance of rows that no sample shows.
        every = max(1, self._limits.piece // self._distance - len(self._runs))
        chosen = order[every::every]
        return sorted(set(zip(names[chosen].tolist(), lows[chosen].tolist(), strict=True)))
