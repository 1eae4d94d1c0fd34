"""Pairs of congruences, solved by the Chinese remainder theorem."""

from math import gcd


def solve(step: int, remainder: int, width: int, offset: int) -> tuple[int, int] | None:
    """Find the numbers that are ``remainder`` modulo ``step`` and ``offset`` modulo ``width``.

    Returns:
        One solution, and the distance between solutions (the least common multiple); None if there
        is no solution.
    """
    divisor = gcd(step, width)
    if (offset - remainder) % divisor:
        return None
    factor = (offset - remainder) // divisor * pow(step // divisor, -1, width // divisor)
    period = step // divisor * width
    return (remainder + step * factor) % period, period
