"""Counter arithmetic that all stores share, in integers of any size: nothing overflows."""

from typing import NamedTuple

from idalloc_server.domain.sequences.sequence import MAX_ID, Sequence

# The lowest BIGINT that CrateDB stores.
MIN_BIGINT = -(2**63) + 1


class CounterGrant(NamedTuple):
    """The result of a grant."""

    last_value: int  # the counter after the grant
    granted: int  # the number of granted ids or timestamps
    remaining: int  # how many are left before the counter's bound


def advance_counter(last_value: int, at_least: int, sequence: Sequence) -> int:
    """Return the counter, moved to the first point of its lattice at or past ``at_least``.

    The counter never moves back. If the next point exceeds the range of BIGINT, the counter goes to
    the end of that range, which is past its bound.
    """
    later = at_least if sequence.is_past(at_least, last_value) else last_value
    value = clamp_to_bigint(sequence.align(clamp_to_bigint(later)))
    return last_value if sequence.is_past(last_value, value) else value


def timestamp_grant(last_value: int, max_value: int, wanted: int, now: int, ahead: int) -> CounterGrant:
    """Return the timestamps that can be granted; see ``Store.grant_timestamps``.

    An empty grant keeps the counter.
    """
    before = max(last_value, now - 1)
    granted = max(0, min(wanted, now + ahead - before, max_value - before))
    return CounterGrant(
        last_value=before + granted if granted else last_value,
        granted=granted,
        remaining=max(0, max_value - before - granted),
    )


def clamp_to_bigint(value: int) -> int:
    """Return the nearest number that CrateDB stores in a BIGINT."""
    return max(MIN_BIGINT, min(value, MAX_ID))


def lattice(sequence: Sequence) -> tuple[int, int]:
    """Return the lattice for the arithmetic of a database: the size of the step, and an offset.

    The first point at or past ``value`` is ``(offset - value % size) % size`` further, or ``(offset
    + value % size) % size`` if the sequence falls; ``%`` truncates towards 0. The offset is 1 to 2
    times the size, so no dividend is negative.
    """
    size = abs(sequence.step)
    remainder = sequence.before_start % size
    return size, (size + remainder if sequence.step > 0 else 2 * size - remainder)
