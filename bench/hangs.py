"""How long a call takes while the store hangs: paused processes, or a locked file."""

import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from bench.servers import Server
from bench.turns import Contender

Hang: TypeAlias = AbstractContextManager[None]
HANG_SECONDS = 3.0
# Before the hang leases grow; after it the calls that waited end.
_BEFORE_SECONDS, _AFTER_SECONDS = 3.0, 1.0


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """Pause all processes of a server."""
    server.send(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send(signal.SIGCONT)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of a SQLite file."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as file:
        file.execute("BEGIN IMMEDIATE")
        yield
        file.execute("ROLLBACK")


def measure(contender: Contender, hang: Callable[[], Hang]) -> dict[str, Any]:
    """Return the longest call of a contender whose store hangs in the middle of its turn."""
    seconds = _BEFORE_SECONDS + HANG_SECONDS + _AFTER_SECONDS
    found = {"name": contender.name, "in_flight": contender.in_flight, "longest": None, "failure": ""}
    try:
        with ThreadPoolExecutor(1) as threads:
            turn = threads.submit(contender.drive, seconds)
            time.sleep(_BEFORE_SECONDS)
            with hang():
                time.sleep(HANG_SECONDS)
            return found | {"longest": turn.result().longest}
    except Exception as error:  # The other contenders go on.
        return found | {"failure": f"{type(error).__name__}: {error}"}
