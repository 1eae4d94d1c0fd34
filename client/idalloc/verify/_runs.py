"""Spans of any number: sorted runs in files once memory is not enough, merged piece by piece."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from idalloc.verify._columns import Ints
from idalloc.verify._spans import SPAN, Spans, Twice, concatenated, joined

_NAME_AND_LOW = np.dtype([("name", "<i8"), ("low", "<i8")])


class Limits(NamedTuple):
    """How much is held in memory at a time.

    Attributes:
        records: How many records, of all logs together.
        spans: How many spans.
        piece: About how many spans are merged at a time.
    """

    records: int = 2**17
    spans: int = 2_000_000
    piece: int = 1_000_000


class _Run(NamedTuple):
    """A file of spans, sorted by name and lowest id."""

    path: Path
    rows: int

    def find(self, name: int, low: int) -> int:
        """How many rows come before an id of a name."""
        begin, end = 0, self.rows
        with self.path.open("rb", buffering=0) as file:
            while begin < end:
                middle = (begin + end) // 2
                (row,) = np.frombuffer(os.pread(file.fileno(), 16, middle * SPAN.itemsize), _NAME_AND_LOW).tolist()
                if row < (name, low):
                    begin = middle + 1
                else:
                    end = middle
        return begin

    def read(self, begin: int, end: int) -> Spans:
        rows = np.fromfile(self.path, SPAN, end - begin, offset=begin * SPAN.itemsize)
        return Spans.unpacked(rows)


class Runs:
    """Collects spans, and gives all of them back in the order of names and ids.

    Args:
        limits: How much memory it may use.
        twice: Where ids are counted that it meets twice while it joins spans.
    """

    def __init__(self, limits: Limits, twice: Twice) -> None:
        self._limits = limits
        self._twice = twice
        self._parts: list[Spans] = []
        self._rows = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._runs: list[_Run] = []
        # Every so many rows of a run one is kept, to split all runs at by and by.
        self._distance = max(1, limits.piece // 2048)
        self._samples: list[tuple[Ints, Ints]] = []

    def close(self) -> None:
        """Removes the files."""
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, spans: Spans) -> None:
        """Adds some."""
        spans = joined(spans, self._twice)
        self._parts.append(spans)
        self._rows += spans.rows
        if self._rows > self._limits.spans:
            self._compact()
            if self._rows > self._limits.spans // 2:
                self._spill()

    def pieces(self) -> Iterator[Spans]:
        """Yields all of them, one part of the ids after the other; a span that lies in two parts is split."""
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
            piece, rest = concatenated([rest, *parts]).clipped(name, low)
            at = ends
            yield piece
        yield concatenated([rest, *(run.read(begin, run.rows) for run, begin in zip(self._runs, at, strict=True))])

    def _compact(self) -> None:
        if len(self._parts) > 1:
            self._parts = [joined(concatenated(self._parts), self._twice)]
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
        self._parts, self._rows = [], 0

    def _splitters(self) -> list[tuple[int, int]]:
        """Where to split, so that no piece is much larger than it may be."""
        names, lows = (np.concatenate(columns) for columns in zip(*self._samples, strict=True))
        order = np.lexsort((lows, names))
        # Between two samples of each run, one more run's rows may lie that no sample tells of.
        every = max(1, self._limits.piece // self._distance - len(self._runs))
        chosen = order[every::every]
        splitters = zip(names[chosen].tolist(), lows[chosen].tolist(), strict=True)
        return sorted(set(splitters))
