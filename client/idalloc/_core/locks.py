"""A lock that an exception of a signal handler never leaves locked."""

import threading
from operator import attrgetter
from typing import Any


class Lock:
    """A lock for ``with``, which is released whenever a signal handler raises.

    After a call CPython may run a signal handler. Since Python 3.14 ``with`` calls ``__enter__`` in
    this way, so a ``threading.Lock`` could stay locked: it was taken, and ``__exit__`` was not yet
    due.
    """

    __slots__ = ("_acquisitions", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acquisitions = iter(self._lock.acquire, None)

    def __enter__(self) -> None:
        # No signal handler runs after a step of an iterator in C, nor after the return.
        for _ in self._acquisitions:
            return

    # A function in C: no signal handler runs before it releases the lock.
    __exit__: Any = property(attrgetter("_lock.__exit__"))
