"""Spare file descriptors, for what must work at the limit of open files."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# For the store, the access file, probes, and to refuse connections.
SPARE = 32
_REFILL_SECONDS = 1.0


@dataclass(eq=False)
class SpareDescriptors:
    """Descriptors that are held open, so that no connection can take them. Safe for threads.

    ``lend`` closes some, for files or sockets that are opened at once. Another thread may take one
    in between, such as gRPC's for a new connection: then opening fails as it would have without
    spare ones. Before ``fill`` there are none.
    """

    size: int = SPARE
    _held: list[int] = field(default_factory=list, init=False)
    _lent: int = field(default=0, init=False)
    _fills: bool = field(default=False, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def fill(self) -> None:
        """Hold as many as the limit allows, up to the size; from now on ``lend`` refills, too."""
        with self._lock:
            self._fills = True
            self._fill()

    @contextmanager
    def lend(self, count: int = 1) -> Iterator[None]:
        """Make descriptors free while this block opens what it needs."""
        with self._lock:
            self._lent += count
            for _ in range(min(count, len(self._held))):
                os.close(self._held.pop())
        try:
            yield
        finally:
            with self._lock:
                self._lent -= count
                self._fill()

    def close(self) -> None:
        """Release all descriptors, and hold none until the next ``fill``."""
        with self._lock:
            self._fills = False
            while self._held:
                os.close(self._held.pop())

    async def refill(self) -> None:
        """Fill them every second, until cancelled: a lent descriptor may stay in use."""
        while True:
            await asyncio.sleep(_REFILL_SECONDS)
            self.fill()

    def _fill(self) -> None:
        while self._fills and len(self._held) < self.size - self._lent:
            try:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return  # at the limit


spare = SpareDescriptors()
