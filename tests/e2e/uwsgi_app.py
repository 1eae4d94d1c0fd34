"""A WSGI application whose module takes ids when it is loaded, in uWSGI's master; each request is given more of them.

A request is answered once every worker has one, so that as many requests at the same time go to as many workers.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import idalloc
from idalloc.ext.sqlalchemy import idalloc_default

GIVEN = Path(os.environ["GIVEN"])
WORKERS = int(os.environ["WORKERS"])

ids = idalloc.Client(os.environ["IDALLOC_SERVER"], timeout=20).ids("orders")
loop = iter(ids)
default = idalloc_default("orders")


def write(name: str) -> None:
    """Writes what this process is given, until an error ends it."""
    given: list[int | str] = []
    try:
        given += (next(ids) for _ in range(300))
        given += islice(loop, 300)
        given += (default() for _ in range(300))
    except Exception as error:
        given.append(f"{type(error).__name__}: {error}")
    file = GIVEN / f"{name}.part"
    file.write_text(json.dumps(given))
    file.rename(GIVEN / f"{name}.json")


write("master")
while (
    threading.active_count() > 1
):  # Python does not survive a fork that it does not see while other threads want to run
    time.sleep(0.01)
time.sleep(0.1)


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Writes what this worker is given."""
    write(f"worker-{os.getpid()}")
    while len(list(GIVEN.glob("worker-*.json"))) < WORKERS:
        time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"done\n"]
