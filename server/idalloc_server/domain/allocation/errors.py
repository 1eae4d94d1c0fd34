"""Why a caller cannot have as many ids as were asked for."""

from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.errors import InvalidRequest, Refusal, SequenceAheadOfClock, SequenceExhausted
from idalloc_server.domain.sequences.model import Kind, Sequence


def too_few_left(
    title: str, sequence: Sequence, count: int, lease: Lease, remaining: int, wall: float, max_clock_skew: float
) -> Refusal:
    """Returns the error for a caller who wants more than there is.

    Args:
        title: The sequence's name.
        sequence: Its settings.
        count: How many ids the caller wants.
        lease: What the node holds of it.
        remaining: How many ids the store has left for this caller.
        wall: The clock, for timestamps.
        max_clock_skew: How far timestamps may run ahead of it, in seconds.
    """
    left, kind = lease.left + remaining, sequence.kind
    if kind == Kind.COUNTER:
        return SequenceExhausted(title, count, left, lease.next_range or remaining)
    # Timestamps go on from the clock, wherever the counter is.
    now = int(wall * kind.per_second)
    value = max(sequence.max_value - left, now - 1)
    if value + count > sequence.max_value:
        left = max(0, sequence.max_value - value)
        return SequenceExhausted(title, count, left, left)
    return SequenceAheadOfClock(title, (value + count - now) / kind.per_second, max_clock_skew)


def never_fits(title: str, kind: Kind, count: int, max_clock_skew: float) -> InvalidRequest | None:
    """Returns the error for a caller who wants more timestamps than there ever are at once; None for any other."""
    most = int(max_clock_skew * kind.per_second) + 1
    if count <= most:
        return None
    rule = f"must be at most {most} for sequence {title!r}, whose timestamps do not run further ahead"
    return InvalidRequest("id_count", rule)
