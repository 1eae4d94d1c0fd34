"""The number of examples of properties that need more or fewer than others."""

from hypothesis import settings


def examples(number: int) -> settings:
    """Return settings with ``number`` examples; in ``make test`` with as small a part as others have."""
    return settings(max_examples=number * settings().max_examples // 100)
