"""High-water marks: the last state of each counter, to detect a store that went backwards (P3)."""

import math
from collections.abc import Container, Iterator
from functools import cache
from typing import NamedTuple

import structlog

from idalloc_server.domain.errors import StoreWentBackwards, TooManySequences
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Kind, Reset, counts_ids, name_of_period
from idalloc_server.domain.store.records import NO_FLOOR, Grant, GrantFloor, Row

# A warning is logged at this share of max_sequences.
WARN_SHARE = 0.8

_log = structlog.get_logger("idalloc.high_water_marks")


class _FixedSettings(NamedTuple):
    """Settings that no update changes, and by which a row of another sequence is recognized."""

    counts_up: bool
    kind: Kind
    reset: Reset


class _HighWaterMark(NamedTuple):
    generation: int
    value: int
    fixed_settings: _FixedSettings
    counts: bool  # whether the row counts ids (``counts_ids``), so that its value can be compared

    def is_past(self, value: int) -> bool:
        """Return whether the mark is past ``value`` in the direction of the sequence."""
        return self.value > value if self.fixed_settings.counts_up else self.value < value


class HighWaterMarks:
    """The last known state of each counter: what the last write of this process returned.

    A mark outlives its lease: a known name is never created again. Only ``accept`` moves a mark by
    a read. The value of a sequence with a reset is not checked, since its ids come from the rows of
    its periods.

    No mark is evicted for another, so the number of sequences with a mark is limited. The periods
    of a sequence do not count.

    Args:
        max_sequences: The most sequences with a mark.
    """

    def __init__(self, max_sequences: int) -> None:
        self._max_sequences = max_sequences
        self._warn_at = math.ceil(max_sequences * WARN_SHARE)
        self._marks: dict[str, _HighWaterMark] = {}
        # The number of marks without periods; the end of each period by sequence, in ``Clock.boot``
        # seconds.
        self._sequence_count = 0
        self._period_ends: dict[str, dict[str, float]] = {}
        # Sequences that have no mark yet and count towards the limit.
        self._admitted: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Return whether the counter has a mark: a write of this process returned its row."""
        return name in self._marks

    def __iter__(self) -> Iterator[str]:
        """Yield the names with a mark."""
        return iter(self._marks)

    def admit(self, sequence: str) -> None:
        """Count a sequence without a mark towards the limit, until ``cancel_admission`` or a mark.

        Raises:
            TooManySequences: The limit is reached.
        """
        if sequence in self._marks or sequence in self._admitted:
            return
        if self._sequence_count + len(self._admitted) >= self._max_sequences:
            raise TooManySequences(sequence, self._max_sequences)
        self._admitted.add(sequence)

    def cancel_admission(self, sequence: str) -> None:
        """Reverse ``admit`` for a sequence without a mark."""
        self._admitted.discard(sequence)

    def update(self, name: str, grant: Grant | None) -> None:
        """Move the mark to the result of a write; None if there is no row.

        Raises:
            StoreWentBackwards: Before the write the row was behind the mark, or it belongs to
                another sequence, or is missing. The mark stays.
        """
        mark = self._marks.get(name)
        if grant is None:
            if mark is not None:
                raise self._backwards_error(name, "no such row")
            return
        fixed_settings = _fixed_settings(grant.sequence.step > 0, grant.sequence.kind, grant.sequence.reset)
        value_before = grant.last_value - grant.granted * grant.sequence.step
        is_same = mark is not None and fixed_settings == mark.fixed_settings
        if mark is not None:
            if is_same:
                is_behind = mark.counts and mark.is_past(value_before)
            else:
                is_behind = not _is_newer_period(name, grant.generation, mark)
            if is_behind or grant.generation < mark.generation:
                found = f"value {value_before} in generation {grant.generation}"
                raise self._backwards_error(name, found + _differences(mark.fixed_settings, fixed_settings))
        elif PERIOD_SEPARATOR not in name:
            self._admitted.discard(name)
            self._sequence_count += 1
            if self._sequence_count == self._warn_at:  # true once, since no sequence's mark is removed
                _log.warning("many_sequences", sequences=self._sequence_count, max_sequences=self._max_sequences)
        counts = mark.counts if mark is not None and is_same else counts_ids(name, fixed_settings.reset)
        self._marks[name] = _HighWaterMark(grant.generation, grant.last_value, fixed_settings, counts)

    def floor(self, name: str) -> GrantFloor:
        """Return the state that the store must have reached."""
        mark = self._marks.get(name)
        if mark is None:
            return NO_FLOOR
        if not mark.counts:
            return GrantFloor(mark.generation)
        if mark.fixed_settings.counts_up:
            return GrantFloor(mark.generation, least=mark.value)
        return GrantFloor(mark.generation, most=mark.value)

    def accept(self, row: Row | None) -> bool:
        """Return whether an operator has repaired a sequence that was behind its mark.

        The row must have a newer generation, and its counter must have reached the mark. A row of
        another sequence cannot be compared: it must have been changed since its creation, and then
        gets a new mark.
        """
        if row is None or row.last_value is None:
            return False
        mark = self._marks.get(row.name)
        if mark is None:
            return True
        if row.generation <= mark.generation:
            return False
        fixed_settings = _fixed_settings(row.sequence.step > 0, row.sequence.kind, row.sequence.reset)
        if fixed_settings == mark.fixed_settings:
            return not (mark.counts and mark.is_past(row.last_value))
        accepted = row.revision > 0 or _is_newer_period(row.name, row.generation, mark)
        if accepted:  # the name stays known; the next write returns the value
            counts = counts_ids(row.name, fixed_settings.reset)
            self._marks[row.name] = _HighWaterMark(row.generation, row.sequence.before_start, fixed_settings, counts)
        return accepted

    def generation(self, name: str) -> int:
        """Return the last known generation, or 0."""
        mark = self._marks.get(name)
        return mark.generation if mark else 0

    def begin_period(self, sequence: str, period: str, now: float, ends_at: float, used: Container[str]) -> None:
        """Start a period of a sequence, and remove the marks of earlier ones that have ended.

        Ends are measured on ``Clock.boot``: after the wall clock was set forward and back again,
        the mark of the true period still exists.

        ``now`` and ``ends_at``, the end of the period, are in ``Clock.boot`` seconds; ``used`` are
        the periods that have a sequence allocator.
        """
        ends = self._period_ends.setdefault(sequence, {})
        ends[period] = max(ends_at, ends.get(period, ends_at))
        for other, end in list(ends.items()):
            # Periods of another length belong to another sequence of this name.
            if len(other) == len(period) and other < period and end <= now and other not in used:
                del ends[other]
                self._marks.pop(name_of_period(sequence, other), None)

    def forget_unused_period(self, name: str) -> None:
        """Remove the mark of a period that was opened early, and of which no id was issued."""
        self._marks.pop(name, None)

    def move_back(self, name: str, generation: int, end: int, value: int) -> None:
        """Move a mark back from ``end`` to ``value``, the start of a tail to be given back.

        Does nothing if the mark has changed: a newer sequence allocator has used the counter.
        """
        mark = self._marks.get(name)
        if mark is not None and (mark.generation, mark.value) == (generation, end):
            self._marks[name] = mark._replace(value=value)

    def _backwards_error(self, name: str, found: str) -> StoreWentBackwards:
        mark = self._marks[name]
        sequence, _, period = name.partition(PERIOD_SEPARATOR)
        of_period = f" of {period}" if period else ""
        seen = f"value {mark.value} in generation {mark.generation}"
        return StoreWentBackwards(sequence, seen=seen + of_period, found=found + of_period)


def _is_newer_period(name: str, generation: int, mark: _HighWaterMark) -> bool:
    """Return whether a period's row has a newer generation, which an operator has made."""
    return PERIOD_SEPARATOR in name and generation > mark.generation


@cache
def _fixed_settings(counts_up: bool, kind: Kind, reset: Reset) -> _FixedSettings:
    """Return one object for all high-water marks with the same settings, to save memory."""
    return _FixedSettings(counts_up, kind, reset)


def _differences(before: _FixedSettings, after: _FixedSettings) -> str:
    """Return the addition to the error message for a row of another sequence."""
    words = []
    if before.counts_up != after.counts_up:
        words.append(f"counts {'up' if after.counts_up else 'down'}")
    if before.kind != after.kind:
        words.append(f"kind {after.kind.name} instead of {before.kind.name}")
    if before.reset != after.reset:
        words.append(f"reset {after.reset.name} instead of {before.reset.name}")
    return f" of another sequence ({', '.join(words)})" if words else ""
