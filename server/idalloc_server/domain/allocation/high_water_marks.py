"""What this process saw of each sequence: how a store that went backwards is noticed (P3)."""

import math
from collections.abc import Container, Iterator
from functools import cache
from typing import NamedTuple

import structlog

from idalloc_server.domain.errors import StoreWentBackwards, TooManySequences
from idalloc_server.domain.records import NO_FLOOR, Grant, GrantFloor, Row
from idalloc_server.domain.sequences.model import PERIOD_MARK, Kind, Reset, Sequence, name_of_period

# The share of max_sequences that is worth a warning.
WARN_SHARE = 0.8

_log = structlog.get_logger("idalloc.high_water_marks")


class _Shape(NamedTuple):
    """What no change of a sequence can change: a row of another shape replaced the one that was seen."""

    rises: bool
    kind: Kind
    reset: Reset


class _HighWaterMark(NamedTuple):
    generation: int
    value: int
    shape: _Shape

    def is_past(self, value: int) -> bool:
        """Whether the counter was further than ``value``."""
        return self.value > value if self.shape.rises else self.value < value


class HighWaterMarks:
    """By name, the generation, the last value and the shape, as this process's own writes returned them.

    A mark outlives its lane: a process that saw a name never takes it for new again. Of reads only that of ``accept``
    moves it.
    The value of a sequence with a reset does not count: its ids come from the rows of its periods.

    No mark is evicted in favor of another, so the number of sequences with a mark is limited. A sequence with a reset
    counts once, whatever the number of its periods.

    Args:
        max_sequences: The most sequences with a mark.
    """

    def __init__(self, max_sequences: int) -> None:
        self._max_sequences = max_sequences
        self._warn_at = math.ceil(max_sequences * WARN_SHARE)
        self._high_water_marks: dict[str, _HighWaterMark] = {}
        # How many of these are of sequences; by sequence, when its periods are over, in ``Clock.boot`` seconds.
        self._sequence_count = 0
        self._period_ends: dict[str, dict[str, float]] = {}
        # Sequences that wait for the store's first answer about them, and have a place reserved for their mark.
        self._admitted: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether a write of this process ever returned something of this sequence."""
        return name in self._high_water_marks

    def __iter__(self) -> Iterator[str]:
        """Yields every name with a mark."""
        return iter(self._high_water_marks)

    def admit(self, sequence: str) -> None:
        """Reserves a place for the mark of a sequence, unless it has one, until it gets the mark or ``dismiss``.

        Raises:
            TooManySequences: There is no place left.
        """
        if sequence in self._high_water_marks or sequence in self._admitted:
            return
        if self._sequence_count + len(self._admitted) >= self._max_sequences:
            raise TooManySequences(sequence, self._max_sequences)
        self._admitted.add(sequence)

    def dismiss(self, sequence: str) -> None:
        """Frees the place that was reserved for a sequence."""
        self._admitted.discard(sequence)

    def advance(self, name: str, grant: Grant) -> None:
        """Moves the mark to what a write returned.

        Raises:
            StoreWentBackwards: Before that write the store was behind the mark, or the row is of another shape. The
                mark stays.
        """
        mark = self._high_water_marks.get(name)
        shape = _shape_of(grant.sequence)
        if mark is not None:
            if shape == mark.shape:
                refused = _counts(name, shape) and mark.is_past(grant.value_before)
            else:
                refused = not _is_vouched_for(name, grant.generation, mark)
            if refused or grant.generation < mark.generation:
                found = f"value {grant.value_before} in generation {grant.generation}"
                raise self._backwards(name, found + _differences(mark.shape, shape))
        else:
            self._begin(name)
        self._high_water_marks[name] = _HighWaterMark(grant.generation, grant.last_value, shape)

    def seen(self, name: str) -> GrantFloor:
        """Returns what the store must not be behind of."""
        mark = self._high_water_marks.get(name)
        if mark is None:
            return NO_FLOOR
        if not _counts(name, mark.shape):
            return GrantFloor(mark.generation)
        return (
            GrantFloor(mark.generation, least=mark.value)
            if mark.shape.rises
            else GrantFloor(mark.generation, most=mark.value)
        )

    def missing(self, name: str) -> StoreWentBackwards:
        """Returns the error for a sequence that was seen and is not in the store any more."""
        return self._backwards(name, "no such row")

    def accept(self, row: Row | None) -> bool:
        """Returns whether an operator let a sequence go on that was behind its mark.

        The row is in a newer generation, and its counter is at the mark or past it. The values of a row of another
        shape cannot be compared: it must have been changed since it was created. Its mark then begins anew.
        """
        if row is None or row.last_value is None:
            return False
        mark = self._high_water_marks.get(row.name)
        if mark is None:
            return True
        if row.generation <= mark.generation:
            return False
        shape = _shape_of(row.sequence)
        if shape == mark.shape:
            return not (_counts(row.name, shape) and mark.is_past(row.last_value))
        accepted = row.revision > 0 or _is_vouched_for(row.name, row.generation, mark)
        if accepted:  # the name stays known; the next write says where the counter is
            self._high_water_marks[row.name] = _HighWaterMark(row.generation, row.sequence.before_start, shape)
        return accepted

    def generation(self, name: str) -> int:
        """Returns the generation that was seen last; 0 where none was."""
        mark = self._high_water_marks.get(name)
        return mark.generation if mark else 0

    def begin_period(self, sequence: str, period: str, now: float, over_at: float, used: Container[str]) -> None:
        """Forgets the counters of the periods before one that begins, as far as they are over.

        What is over is measured on the clock that no one can set: a clock that was set forward, and back again, finds
        the mark of the period that it really is.

        Args:
            sequence: The sequence.
            period: The period that begins.
            now: The time, in ``Clock.boot`` seconds.
            over_at: When the period will be over, in the same.
            used: Periods that are still in use.
        """
        ends = self._period_ends.setdefault(sequence, {})
        ends[period] = max(over_at, ends.get(period, over_at))
        for other, end in list(ends.items()):
            # Periods of another length are those of another sequence of that name.
            if len(other) == len(period) and other < period and end <= now and other not in used:
                del ends[other]
                self._high_water_marks.pop(name_of_period(sequence, other), None)

    def give_back(self, name: str, generation: int, end: int, value: int) -> None:
        """Lets the counter be as low as ``value``, where a tail that ends at ``end`` starts.

        A mark that stands elsewhere by now, since a newer lane of the name went on, stays where it is.
        """
        mark = self._high_water_marks.get(name)
        if mark is not None and (mark.generation, mark.value) == (generation, end):
            self._high_water_marks[name] = mark._replace(value=value)

    def _begin(self, name: str) -> None:
        """Counts the first mark of a name."""
        if PERIOD_MARK in name:
            return
        self._admitted.discard(name)
        self._sequence_count += 1
        if self._sequence_count == self._warn_at:  # no mark of a sequence is ever removed: this is true once
            _log.warning("many_sequences", sequences=self._sequence_count, max_sequences=self._max_sequences)

    def _backwards(self, name: str, found: str) -> StoreWentBackwards:
        mark = self._high_water_marks[name]
        sequence, _, period = name.partition(PERIOD_MARK)
        of_period = f" of {period}" if period else ""
        seen = f"value {mark.value} in generation {mark.generation}"
        return StoreWentBackwards(sequence, seen=seen + of_period, found=found + of_period)


def _counts(name: str, shape: _Shape) -> bool:
    return shape.reset == Reset.NEVER or PERIOD_MARK in name


def _is_vouched_for(name: str, generation: int, mark: _HighWaterMark) -> bool:
    """Whether the row of a period belongs to a newer generation of its sequence, of which an operator decided."""
    return PERIOD_MARK in name and generation > mark.generation


def _shape_of(sequence: Sequence) -> _Shape:
    return _shape(sequence.step > 0, sequence.kind, sequence.reset)


@cache
def _shape(rises: bool, kind: Kind, reset: Reset) -> _Shape:
    """Returns one object for all high-water marks of a shape."""
    return _Shape(rises, kind, reset)


def _differences(before: _Shape, after: _Shape) -> str:
    """Returns what an error adds where a row is of another shape."""
    words = []
    if before.rises != after.rises:
        words.append(f"counts {'up' if after.rises else 'down'}")
    if before.kind != after.kind:
        words.append(f"kind {after.kind.name} instead of {before.kind.name}")
    if before.reset != after.reset:
        words.append(f"reset {after.reset.name} instead of {before.reset.name}")
    return f" of another sequence ({', '.join(words)})" if words else ""
