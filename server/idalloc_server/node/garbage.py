"""Keeps the pauses of Python's garbage collector short, however many sequences are in use.

Each sequence in use has some 15 objects that live long, and a collection of all generations visits
each of them: with 10,000 sequences it takes 100 ms. Frozen objects are not visited.
"""

import asyncio
import gc
from collections.abc import Callable

# How many new objects start a collection. A call of 1,000 requests makes some thousands, which its
# reply frees; by Python's default of 700 each such call would start several collections.
YOUNG_OBJECTS = 10_000
# How many new sequences are worth a freeze. A freeze visits what was made since the last one.
NEW_SEQUENCES = 1_000
CHECK_SECONDS = 1.0


def freeze() -> None:
    """Exempt all objects that exist now from further collections."""
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    gc.collect()  # or the present garbage would stay
    gc.freeze()


async def freeze_new_sequences(count: Callable[[], int]) -> None:
    """Freeze whenever ``count()``, the number of sequences, has grown much, until cancelled."""
    frozen = count()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        present = count()
        frozen = min(frozen, present)  # some were closed
        if present - frozen >= NEW_SEQUENCES:
            freeze()
            frozen = present
