"""Whether callers notice refills: p99 of calls at a steady rate, with and without refills."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import idalloc
from bench import drivers
from bench.servers import Server
from bench.turns import Turn

IN_FLIGHT = 16
REFILLS = 100
# At this rate a lease lasts a quarter of a second. The refill starts when a fifth of it is used:
# ten or more refills a second, even if the store takes 50 ms.
RATE = 1_000
_LEASE = 250
# More ids than a run uses.
_MANY = 10_000_000


class Refills:
    """Two sequences of one server: one with small leases, one with a lease for the whole run."""

    def __init__(self, server: Server, path: Path) -> None:
        self._address = server.address
        self._path = path
        # Store writes for each sequence, in each turn.
        self.counts: dict[str, list[int]] = {"small": [], "large": []}
        with idalloc.Client(server.address) as client:
            client.sequences.create("small", max_lease_size=_LEASE)
            client.sequences.create("large", min_lease_size=_MANY)

    def turn(self, sequence: str, seconds: float) -> Turn:
        """Call at a steady rate."""
        before = self._writes(sequence)
        done = drivers.unary(self._address, seconds, IN_FLIGHT, sequence, rps=RATE)
        self.counts[sequence].append(self._writes(sequence) - before)
        return done

    def _writes(self, sequence: str) -> int:
        with _reading(self._path) as db:
            found = db.execute("SELECT writes FROM sequences WHERE name = ?", (sequence,)).fetchone()
            return int(found[0])


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, timeout=10)
    try:
        yield db
    finally:
        db.close()
