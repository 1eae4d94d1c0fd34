"""The number of examples of properties that need more or fewer than others."""

from hypothesis import settings


def examples(number: int) -> settings:
    """Return settings with ``number`` examples; in ``make test`` with a part of them."""
    return settings(max_examples=number * settings().max_examples // 100)
