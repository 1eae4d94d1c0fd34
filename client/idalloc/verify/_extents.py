"""The extents of the ids of each sequence: the order of generations, and the ids to expect."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from idalloc.verify._columns import Positions, factorize_rows
from idalloc.verify._logs import Rows
from idalloc.verify._spans import Spans


@dataclass(slots=True)
class Extent:
    """The extent of the ids of one step and remainder, in one generation of a sequence."""

    low: int
    high: int
    records: int = 0  # the number of their records


class ExtentKey(NamedTuple):
    """The ids that an extent describes."""

    name: int
    generation: int
    step: int
    remainder: int


class Overlap(NamedTuple):
    """A generation that does not follow an older one."""

    name: int
    older: int  # the older generation
    newer: int
    last: int  # the last id of the older generation
    first: int  # the first id of the newer one


class Extents:
    """Collects the extents of records."""

    def __init__(self) -> None:
        self._extents: dict[ExtentKey, Extent] = {}

    def add(self, rows: Rows, spans: Spans) -> None:
        """Add records, and the spans of their ids."""
        step = np.where(spans.name & 1, 1, rows["step"])  # document ids may have any step
        width = np.abs(step)
        remainder = spans.low % width if int(width.max()) > 1 else np.zeros(spans.rows, np.int64)
        columns = (spans.name, rows["generation"], step, remainder)
        examples, codes = factorize_rows(*columns)
        order: slice | Positions = slice(None)
        begins = np.zeros(1, np.intp)
        if len(examples) > 1:
            order = np.argsort(codes, kind="stable")
            begins = np.searchsorted(codes[order], np.arange(len(examples)))
        lows = np.minimum.reduceat(spans.low[order], begins)
        highs = np.maximum.reduceat(spans.high[order], begins)
        counts = np.diff(begins, append=spans.rows)
        keys = zip(*(column[examples].tolist() for column in columns), strict=True)
        for key, low, high, count in zip(keys, lows.tolist(), highs.tolist(), counts.tolist(), strict=True):
            known = self._extents.setdefault(ExtentKey._make(key), Extent(low, high))
            known.low = min(known.low, low)
            known.high = max(known.high, high)
            known.records += count

    def by_sequence(self) -> dict[int, dict[ExtentKey, Extent]]:
        """Return the extents by the number of their name, without those of document ids."""
        by_name: defaultdict[int, dict[ExtentKey, Extent]] = defaultdict(dict)
        for key, extent in self._extents.items():
            if not key.name & 1:
                by_name[key.name][key] = extent
        return by_name

    def overlaps(self) -> Iterator[Overlap]:
        """Yield the generations that do not follow all older ones."""
        ends: defaultdict[tuple[int, bool], dict[int, tuple[int, int]]] = defaultdict(dict)
        for key, extent in self._extents.items():
            if key.name & 1:
                continue
            down = key.step < 0
            back, front = _along(extent, down=down)
            begin, end = ends[key.name, down].get(key.generation, (back, front))
            ends[key.name, down][key.generation] = (min(begin, back), max(end, front))
        for (name, down), generations in ends.items():
            older, *others = sorted(generations)
            for newer in others:
                _, last = generations[older]
                first, end = generations[newer]
                if first <= last:
                    yield Overlap(name, older, newer, last=~last if down else last, first=~first if down else first)
                if end > last:
                    older = newer


def expected_ids(extents: dict[ExtentKey, Extent], end: int, *, down: bool) -> int:
    """Return how many ids lie on the lattices of a sequence, from its first id to the end."""
    spans = sorted((*_along(extent, down=down), abs(key.step)) for key, extent in extents.items())
    count = 0
    reach = spans[0][0] - 1
    for low, high, step in spans:
        # A gap between two generations counts in steps of the later one.
        count += max(0, low - reach - 1) // step + (high - low) // step + 1
        reach = max(reach, high)
    return count + max(0, (~end if down else end) - reach) // spans[-1][2]


def _along(extent: Extent, *, down: bool) -> tuple[int, int]:
    """Return the first and last id along the order; the complement makes falling ids rise."""
    return (~extent.high, ~extent.low) if down else (extent.low, extent.high)
