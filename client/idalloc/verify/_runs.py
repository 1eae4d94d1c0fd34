"""An external merge sort of spans: sorted runs in temporary files, merged piece by piece."""

import os
import struct
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from idalloc.verify._columns import Ints
from idalloc.verify._spans import SPAN, Duplicates, Spans, concatenated, merged

_NAME_AND_LOW = struct.Struct("<qq")


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

    def pieces(self) -> Iterator[Spans]:
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
