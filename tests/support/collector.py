"""Tests that nothing keeps an object in memory but what refers to it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Run the block without the garbage collector, which would free cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
