"""Ids as spans: from a lowest to a highest one in even steps. Which ids are in two of them?"""

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from math import gcd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from idalloc._core.congruences import solve
from idalloc.verify._columns import Ints, Positions, combine, distance, pack, running_most, sorting, total

# As they lie in a file.
SPAN = np.dtype([("name", "<i8"), ("low", "<i8"), ("high", "<i8"), ("step", "<i8"), ("tag", "<u8")])


class Spans(NamedTuple):
    """Columns of spans.

    Attributes:
        name: The number of the name whose ids they are.
        low: The lowest id.
        high: The highest id.
        step: How far an id is from the next, above 0.
        tag: Equal, and not 0, where a request was answered with the same range again; else 0.
    """

    name: Ints
    low: Ints
    high: Ints
    step: Ints
    tag: npt.NDArray[np.uint64]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.low)

    def take(self, which: npt.NDArray[np.bool_] | Positions | slice) -> "Spans":
        """Some of them."""
        return Spans._make(column[which] for column in self)

    def ids(self) -> Ints:
        """How many ids each one has."""
        if not self.rows or (int(self.step.min()) == int(self.step.max()) == 1):
            return self.high - self.low + 1
        return (distance(self.high, self.low) // self.step.view(np.uint64)).view(np.int64) + 1

    def sorted_by_low(self) -> "Spans":
        """Sorted by name, and then by the lowest id."""
        (keys,) = pack(self.name, self.low)
        order = sorting(keys)
        return self if order is None else self.take(order)

    def without_repeats(self) -> "Spans":
        """Without the further answers to a request, which are no further ids."""
        tagged = np.flatnonzero(self.tag)
        if not len(tagged):
            return self
        order = tagged[np.lexsort((self.tag[tagged], self.name[tagged]))]
        again = (self.tag[order[1:]] == self.tag[order[:-1]]) & (self.name[order[1:]] == self.name[order[:-1]])
        kept = np.ones(self.rows, np.bool_)
        kept[order[1:][again]] = False
        return self.take(kept)

    def clipped(self, name: int, end: int) -> tuple["Spans", "Spans"]:
        """Splits them into what sorts before an id of a name, and the rest."""
        before = (self.name < name) | ((self.name == name) & (self.low < end))
        below, above = self.take(before), self.take(~before)
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
        """As they lie in a file."""
        rows = np.empty(self.rows, SPAN)
        for field, column in zip(self._fields, self, strict=True):
            rows[field] = column
        return rows

    @classmethod
    def unpacked(cls, rows: npt.NDArray[np.void]) -> "Spans":
        """As they lay in a file."""
        return cls._make(np.ascontiguousarray(rows[field]) for field in cls._fields)


def concatenated(parts: Iterable[Spans]) -> Spans:
    """All of them as one."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Spans.unpacked(np.empty(0, SPAN))
    return Spans._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


class Twice:
    """Ids that were found once more than they should be.

    Attributes:
        ids: How many: an id of n spans in equal steps counts n - 1 times; where steps differ, each pair of them
            counts.
        examples: Some of them: the number of the name, and the id.
    """

    def __init__(self, most_examples: int) -> None:
        self.ids = 0
        self.examples: list[tuple[int, int]] = []
        self._most = most_examples

    def add(self, ids: int, examples: Iterable[tuple[int, int]]) -> None:
        """Counts some, of which examples may be known already."""
        self.ids += ids
        for example in examples:
            if len(self.examples) >= self._most:
                return
            if example not in self.examples:
                self.examples.append(example)


def joined(spans: Spans, twice: Twice) -> Spans:
    """Joins spans that touch or overlap, in equal steps; returns them sorted by name and lowest id.

    Those with a tag stay as they are, but for repeats, which go.
    """
    spans = spans.without_repeats()
    tagged = spans.tag != 0
    apart = spans.take(tagged) if tagged.any() else None
    if apart is not None:
        spans = spans.take(~tagged)
    if spans.rows > 1:
        spans = _joined(spans, twice)
    if apart is not None:
        spans = concatenated([spans, apart]).sorted_by_low()
    return spans


def _joined(spans: Spans, twice: Twice) -> Spans:
    plain = int(spans.step.max()) == 1
    # Ids of one name that may be the same: those of one step and one remainder.
    lattices = spans.name if plain else combine(spans.name, spans.step, spans.low % spans.step)[1]
    (keys,) = pack(lattices, spans.low)
    order = sorting(keys)
    if order is not None:
        spans, lattices = spans.take(order), lattices[order]
    low, high, step = spans.low, spans.high, spans.step
    same = lattices[1:] == lattices[:-1]
    reach = high
    if bool((same & (low[1:] <= high[:-1])).any()):
        reach = running_most(lattices, high)
        again = np.flatnonzero(same & (low[1:] <= reach[:-1])) + 1
        ends = np.minimum(high[again], reach[again - 1])
        found = spans.take(again)._replace(high=ends)
        twice.add(total(found.ids()), zip(found.name.tolist()[:99], found.low.tolist()[:99], strict=True))
    touches = same & ((low[1:] <= reach[:-1]) | (low[1:] - reach[:-1] == step[1:]))
    begins = np.flatnonzero(np.concatenate([[True], ~touches]))
    if len(begins) < spans.rows:
        ends = np.append(begins[1:], spans.rows) - 1
        spans = spans.take(begins)._replace(high=reach[ends])
    return spans if plain else spans.sorted_by_low()


def shared(spans: Spans, twice: Twice) -> dict[int, int]:
    """Finds the ids that are in spans of different steps.

    Args:
        spans: Sorted by name and lowest id; of those of equal steps none overlap.
        twice: Where they are counted.

    Returns:
        How many there are, by the number of the name.
    """
    overlap = (spans.name[1:] == spans.name[:-1]) & (spans.low[1:] <= spans.high[:-1])
    counts: dict[int, int] = {}
    for name in np.unique(spans.name[1:][overlap]).tolist():
        begin, end = np.searchsorted(spans.name, [name, name + 1])
        before = twice.ids
        for first, second in _pairs(spans.take(slice(begin, end))):
            _count_shared(first, second, twice)
        counts[name] = twice.ids - before
    return counts


def _pairs(spans: Spans) -> Iterator[tuple[Spans, Spans]]:
    """Pairs of lattices that have ids in common, if they go on for ever."""
    examples, codes = combine(spans.step, spans.low % spans.step)
    by_step: dict[int, list[tuple[int, Spans]]] = {}
    for code, example in enumerate(examples.tolist()):
        lattice = spans.take(codes == code)
        step = int(spans.step[example])
        by_step.setdefault(step, []).append((int(spans.low[example]) % step, lattice))
    for (step, ones), (width, others) in combinations(by_step.items(), 2):
        for (remainder, one), (offset, other) in product(ones, others):
            if (remainder - offset) % gcd(step, width) == 0:
                yield one, other


def _count_shared(one: Spans, other: Spans, twice: Twice) -> None:
    begins = np.searchsorted(one.high, other.low, side="left")
    counts = np.maximum(np.searchsorted(one.low, other.high, side="right") - begins, 0)
    right = np.repeat(np.arange(other.rows), counts)
    left = np.arange(len(right)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(begins, counts)
    low, high = np.maximum(one.low[left], other.low[right]), np.minimum(one.high[left], other.high[right])
    step, width = int(one.step[0]), int(other.step[0])
    met = solve(step, int(one.low[0]) % step, width, int(other.low[0]) % width)
    if met is None:
        return
    number, period = met
    if period >= 2**62:  # at most a few ids, and no int64 holds what is reckoned with
        ahead = np.array([(number - begin) % period for begin in low.tolist()], np.uint64)
    else:
        ahead = ((number - low % period) % period).view(np.uint64)
    room = distance(high, low)
    some = ahead <= room
    ids = (room[some] - ahead[some]) // np.uint64(min(period, 2**64 - 1)) + np.uint64(1)
    found = (low[some] + ahead[some].view(np.int64)).tolist()
    twice.add(total(ids.view(np.int64)), [(int(one.name[0]), number) for number in found[:99]])
