"""A WSGI application that allocates ids when uWSGI's master loads it, and again in each request.

A request waits until every worker has one, so that concurrent requests reach all workers.
"""

import json
import os
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import idalloc
from idalloc.ext.sqlalchemy import idalloc_default
from tests.support.waiting import hold_for, wait_until

FOLDER = Path(os.environ["RECEIVED_FOLDER"])
WORKERS = int(os.environ["WORKERS"])

ids = idalloc.Client(os.environ["IDALLOC_SERVER"], timeout=20).ids("orders")
loop = iter(ids)
default = idalloc_default("orders")


def write(name: str) -> None:
    """Allocate ids, and write them to a file, with the error message if a call fails."""
    received: list[int | str] = []
    try:
        received += (next(ids) for _ in range(300))
        received += islice(loop, 300)
        received += (default() for _ in range(300))
    except Exception as error:
        received.append(f"{type(error).__name__}: {error}")
    file = FOLDER / f"{name}.part"
    file.write_text(json.dumps(received))
    file.rename(FOLDER / f"{name}.json")


write("master")
# A fork that Python does not notice may hang while other threads run.
wait_until(lambda: threading.active_count() == 1)
hold_for(0.1, "gRPC's own threads, which Python does not count, end")


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Handle a request."""
    write(f"worker-{os.getpid()}")
    wait_until(lambda: len(list(FOLDER.glob("worker-*.json"))) == WORKERS)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done\n"]
