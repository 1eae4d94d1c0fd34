"""High-water marks: the last state of each counter, to detect a store that went backwards (P3)."""

import math
from collections.abc import Container, Iterator

import structlog

from idalloc_server.domain.errors import StoreWentBackwards, TooManySequences
from idalloc_server.domain.sequences.sequence import PERIOD_SEPARATOR, Kind, Reset, Sequence, counts_ids, name_of_period
from idalloc_server.domain.store.records import NO_MARK, Grant, Mark, Row

# A warning is logged at this share of max_sequences.
WARN_SHARE = 0.8

_log = structlog.get_logger("idalloc.high_water_marks")


# The kind and the reset of most sequences.
_PLAIN = (Kind.COUNTER, Reset.NEVER)


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
        self._marks: dict[str, Mark] = {}
        # The kind and the reset of the counters that are not ``_PLAIN``. No update changes them, or
        # the direction: a row that differs is one of another sequence.
        self._kinds: dict[str, tuple[Kind, Reset]] = {}
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
        sequence = grant.sequence
        value_before = grant.last_value - grant.granted * sequence.step
        is_same = mark is not None and self._is_of(name, mark, sequence)
        if mark is not None:
            counts = name not in self._kinds or self._counts_ids(name)
            is_behind = mark.is_ahead_of(grant.generation, value_before if counts and is_same else None)
            if is_behind or not (is_same or _is_newer_period(name, grant.generation, mark)):
                found = f"value {value_before} in generation {grant.generation}"
                raise self._backwards_error(name, found + self._differences(name, mark, sequence))
        elif PERIOD_SEPARATOR not in name:
            self._admitted.discard(name)
            self._sequence_count += 1
            if self._sequence_count == self._warn_at:  # true once, since no sequence's mark is removed
                _log.warning("many_sequences", sequences=self._sequence_count, max_sequences=self._max_sequences)
        self._marks[name] = Mark(grant.generation, grant.last_value, sequence.step)
        if not is_same:
            self._set_kind(name, sequence)

    def floor(self, name: str) -> Mark:
        """Return the state that the store must have reached."""
        mark = self._marks.get(name)
        if mark is None:
            return NO_MARK
        return mark if name not in self._kinds or self._counts_ids(name) else Mark(mark.generation)

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
        if self._is_of(row.name, mark, row.sequence):
            return not (mark.is_past(row.last_value) and self._counts_ids(row.name))
        accepted = row.revision > 0 or _is_newer_period(row.name, row.generation, mark)
        if accepted:  # the name stays known; the next write returns the value
            self._marks[row.name] = Mark(row.generation, row.sequence.before_start, row.sequence.step)
            self._set_kind(row.name, row.sequence)
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
                self.forget_period(name_of_period(sequence, other))

    def forget_period(self, name: str) -> None:
        """Remove the mark of a period: it has ended, or no id of it was issued."""
        self._marks.pop(name, None)
        self._kinds.pop(name, None)

    def move_back(self, name: str, generation: int, end: int, value: int) -> None:
        """Move a mark back from ``end`` to ``value``, the start of a tail to be given back.

        Does nothing if the mark has changed: a newer sequence allocator has used the counter.
        """
        mark = self._marks.get(name)
        if mark is not None and (mark.generation, mark.value) == (generation, end):
            self._marks[name] = mark._replace(value=value)

    def _is_of(self, name: str, mark: Mark, sequence: Sequence) -> bool:
        """Return whether a mark is one of this sequence, not of another one of its name."""
        kind = (sequence.kind, sequence.reset)
        return mark.step * sequence.step > 0 and kind == self._kinds.get(name, _PLAIN)

    def _set_kind(self, name: str, sequence: Sequence) -> None:
        kind = (sequence.kind, sequence.reset)
        if kind == _PLAIN:
            self._kinds.pop(name, None)
        else:
            self._kinds[name] = kind

    def _counts_ids(self, name: str) -> bool:
        """Return whether the row of a mark counts ids, so that its value can be compared."""
        return counts_ids(name, self._kinds.get(name, _PLAIN)[1])

    def _differences(self, name: str, mark: Mark, sequence: Sequence) -> str:
        """Return the addition to the error message for a row of another sequence."""
        kind, reset = self._kinds.get(name, _PLAIN)
        words = []
        if mark.step * sequence.step < 0:
            words.append(f"counts {'up' if sequence.step > 0 else 'down'}")
        if kind != sequence.kind:
            words.append(f"kind {sequence.kind.name} instead of {kind.name}")
        if reset != sequence.reset:
            words.append(f"reset {sequence.reset.name} instead of {reset.name}")
        return f" of another sequence ({', '.join(words)})" if words else ""

    def _backwards_error(self, name: str, found: str) -> StoreWentBackwards:
        mark = self._marks[name]
        sequence, _, period = name.partition(PERIOD_SEPARATOR)
        of_period = f" of {period}" if period else ""
        seen = f"value {mark.value} in generation {mark.generation}"
        return StoreWentBackwards(sequence, seen=seen + of_period, found=found + of_period)


def _is_newer_period(name: str, generation: int, mark: Mark) -> bool:
    """Return whether a period's row has a newer generation, which an operator has made."""
    return PERIOD_SEPARATOR in name and generation > mark.generation
