"""File locks: a check that the file system enforces them, and one that detects other files."""

import os
import struct
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from idalloc_server.domain.errors import StartRefused

if sys.platform == "linux":
    import fcntl

    # struct flock: type, whence, start, length (0: to the end), process.
    _LOCK = struct.Struct("hhqqi0q")
    _WRITE_LOCK = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

# Past the bytes that SQLite locks, which begin at 2^30, and past the end of any database.
_FIRST_OFFSET = 2**62


def check_locks(path: Path) -> None:
    """Check that the file system of a database refuses a second lock on a file.

    On Linux locks may belong to a descriptor (F_OFD_SETLK), so one process can test them without
    another, on a temporary file in the folder of ``path``. On other systems, and if the test cannot
    run, SQLite reports the error.

    Raises:
        StartRefused: The file system grants one lock twice, so two processes would issue the same
            ids.
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


def lock_offset(descriptor: int, offset: int) -> bool:
    """Take a shared lock at one of a file's 2^61 offsets.

    Returns True if no other offset is locked. The lock belongs to the inode, not to the path, and
    ends when the descriptor is closed. Of two processes that lock different offsets at the same
    time, at least one detects the other. Returns True if the system has no such locks.
    """
    if sys.platform != "linux":
        return True
    at = _FIRST_OFFSET + 1 + offset
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, at, 1, 0))
        found = [
            fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
            for start, length in ((_FIRST_OFFSET, at - _FIRST_OFFSET), (at + 1, 0))
        ]
    except OSError:
        return True
    return all(_LOCK.unpack(each)[0] == fcntl.F_UNLCK for each in found)
