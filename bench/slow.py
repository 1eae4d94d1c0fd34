"""A server with a slow store: each grant of ids takes 50 ms more.

python -m bench.slow STORE    prints its address and serves until it is stopped.
"""

import asyncio
import os
import sys
from typing import Any

import uvloop

from idalloc_server import app
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import Grant
from idalloc_server.node.mode import ProcessMode
from idalloc_server.settings.sources import load
from idalloc_server.store import stores
from idalloc_server.store.urls import open_store
from idalloc_server.telemetry import logs

DELAY_SECONDS = 0.05


class _Slow:
    """A store that delays grants."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def grant(self, name: str, wanted: int, lease_ms: int, *floor: Any) -> Grant | None:
        await asyncio.sleep(DELAY_SECONDS)
        return await self._store.grant(name, wanted, lease_ms, *floor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _open_slow(*args: Any) -> _Slow:
    return _Slow(open_store(*args))


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    settings, _, node_settings, _ = load({"listen": "127.0.0.1:0", "store": sys.argv[1]}, None, os.environ)
    logs.configure(settings.log_level)
    stores.open_store = _open_slow  # type: ignore[assignment, attr-defined]
    uvloop.run(app.serve(settings, ProcessMode(node_settings, settings.drain_timeout)))
