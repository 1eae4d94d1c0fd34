"""Where ids of different steps can be the same: the arithmetic of remainders."""

from math import gcd


def meeting(step: int, remainder: int, width: int, offset: int) -> tuple[int, int] | None:
    """Finds the numbers that leave ``remainder`` when divided by ``step``, and ``offset`` when divided by ``width``.

    Returns:
        One of them, and how far each is from the next, which is the least common multiple; None if there are none.
    """
    divisor = gcd(step, width)
    if (offset - remainder) % divisor:
        return None
    turns = (offset - remainder) // divisor * pow(step // divisor, -1, width // divisor)
    period = step // divisor * width
    return (remainder + step * turns) % period, period
