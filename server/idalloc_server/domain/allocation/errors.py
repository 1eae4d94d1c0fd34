"""The errors for requests that ask for more ids than a sequence can give."""

from idalloc_server.domain.allocation.lease import Lease
from idalloc_server.domain.errors import InvalidRequest, Refusal, SequenceAheadOfClock, SequenceExhausted
from idalloc_server.domain.sequences.model import Kind, Sequence


def insufficient_ids_error(
    name: str, sequence: Sequence, count: int, lease: Lease, remaining: int, wall: float, max_clock_skew: float
) -> Refusal:
    """Returns SequenceExhausted, or SequenceAheadOfClock if the timestamps will be available later.

    Args:
        name: The sequence's name.
        sequence: Its settings.
        count: The number of ids requested.
        lease: The node's lease of the sequence.
        remaining: The number of ids that the store has left for this request.
        wall: The wall clock, in seconds since 1970.
        max_clock_skew: How far timestamps may be ahead of the clock, in seconds.
    """
    left, kind = lease.left + remaining, sequence.kind
    if kind == Kind.COUNTER:
        return SequenceExhausted(name, count, left, lease.next_range_size or remaining)
    # Timestamps continue from the clock, regardless of the counter.
    now = int(wall * kind.per_second)
    value = max(sequence.max_value - left, now - 1)
    if value + count > sequence.max_value:
        left = max(0, sequence.max_value - value)
        return SequenceExhausted(name, count, left, left)
    return SequenceAheadOfClock(name, (value + count - now) / kind.per_second, max_clock_skew)


def oversized_request_error(name: str, kind: Kind, count: int, max_clock_skew: float) -> InvalidRequest | None:
    """Returns the error for a request of more timestamps than ``max_clock_skew`` can ever allow; otherwise None."""
    limit = int(max_clock_skew * kind.per_second) + 1
    if count <= limit:
        return None
    rule = f"must be at most {limit} for sequence {name!r}, as max_clock_skew allows; is {count}"
    return InvalidRequest("id_count", rule)
