"""Where counters may go: the arithmetic that every store shares, in integers that cannot overflow."""

from typing import NamedTuple

from idalloc_server.domain.sequences.model import MAX_ID, Sequence
from idalloc_server.store.packed_settings import DEFAULT_MIN_VALUE

# CrateDB stores no lower BIGINT.
LOWEST = -(2**63) + 1


class Timestamps(NamedTuple):
    """What a grant of timestamps comes to.

    Attributes:
        last_value: The counter after it.
        granted: How many there are.
        remaining: How many are left before max_value.
    """

    last_value: int
    granted: int
    remaining: int


def ids_left(last_value: int, step: int, min_value: int | None, max_value: int | None) -> int:
    """Returns how many steps the counter can go before its bound: 0 where it is at it or past it.

    Every setting may be NULL, as in an adopted table. Only the bound that the counter runs towards matters. The
    result may exceed 2^63 where ``last_value`` lies far on the other side of 0.
    """
    if step > 0:
        distance = min(MAX_ID, MAX_ID if max_value is None else max_value) - last_value
    else:
        distance = last_value - (DEFAULT_MIN_VALUE if min_value is None else min_value)
    return max(0, distance) // abs(step)


def moved_on(last_value: int, at_least: int, sequence: Sequence) -> int:
    """Returns where a counter goes that is to be at ``at_least``, or past it, and then on the lattice.

    Never back. Where the lattice leaves what a store can hold, the counter stays at that end: it is past its bound.
    """
    later = at_least if sequence.is_past(at_least, last_value) else last_value
    value = _held(sequence.align(_held(later)))
    return last_value if sequence.is_past(last_value, value) else value


def timestamps(last_value: int, max_value: int, wanted: int, now: int, ahead: int) -> Timestamps:
    """Returns which timestamps can be granted; see ``Store.grant_timestamps``. Without any the counter stays."""
    before = max(last_value, now - 1)
    granted = max(0, min(wanted, now + ahead - before, max_value - before))
    return Timestamps(
        last_value=before + granted if granted else last_value,
        granted=granted,
        remaining=max(0, max_value - before - granted),
    )


def _held(value: int) -> int:
    return max(LOWEST, min(MAX_ID, value))
