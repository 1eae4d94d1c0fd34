"""Finds out whether a file system keeps locks. Where it grants each to everyone, two processes give the same ids."""

import os
import struct
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from idalloc_server.domain.errors import StartRefused

if sys.platform == "linux":
    import fcntl

    # struct flock: type, whence, start, length (0 is all there is), process.
    _WRITE_LOCK = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def check_locks(path: Path) -> None:
    """Sees that a lock on a file beside this one keeps a second one out.

    Linux has locks that belong to a descriptor, so that one process can try them against itself. Where that cannot be
    tried, it is left to SQLite to say what is wrong.

    Raises:
        StartRefused: It does not.
    """
    if sys.platform != "linux":
        return
    with ExitStack() as files:
        try:
            first = files.enter_context(tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-lock-"))
            second = files.enter_context(Path(first.name).open("r+b"))
            fcntl.fcntl(first, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except OSError:
            return
        try:
            fcntl.fcntl(second, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except OSError:
            return
    raise StartRefused(
        "store",
        f"the file system of {path} grants one lock twice, and two processes would issue the same ids; "
        "choose a local disk",
    )
