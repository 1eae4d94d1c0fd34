"""How many ids a row has left, with every setting that may be NULL in an adopted table."""

from idalloc_server.domain.sequence import MAX_ID

DEFAULT_STEP = 1
DEFAULT_MIN_VALUE = 1
DEFAULT_GENERATION = 1


def ids_left(last_value: int, step: int, min_value: int | None, max_value: int | None) -> int:
    """Returns how many steps the counter can go before its bound: 0 where it is at it or past it.

    Only the bound that the counter runs towards matters. The result may exceed 2^63 where ``last_value`` lies far
    on the other side of 0.
    """
    if step > 0:
        distance = min(MAX_ID, MAX_ID if max_value is None else max_value) - last_value
    else:
        distance = last_value - (DEFAULT_MIN_VALUE if min_value is None else min_value)
    return max(0, distance) // abs(step)
