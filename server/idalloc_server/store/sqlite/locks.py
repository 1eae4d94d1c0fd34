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
    _LOCK = struct.Struct("hhqqi0q")
    _WRITE_LOCK = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

# Past the bytes that SQLite locks, which begin at 2^30, and past the end of any database.
_PLACES = 2**62


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


def lock_place(descriptor: int, place: int) -> bool:
    """Locks one of a file's 2^61 places, shared, and sees whether anybody else has locked another place.

    The lock belongs to the inode, whatever path it was opened by, and ends when the descriptor is closed. Of two
    processes that do this at once at least one sees the other.

    Args:
        descriptor: The file, open for reading.
        place: A number from 0 on.

    Returns:
        Whether nobody holds another place. True also where such locks are not supported.
    """
    if sys.platform != "linux":
        return True
    at = _PLACES + 1 + place
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, at, 1, 0))
        found = [
            fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
            for start, length in ((_PLACES, at - _PLACES), (at + 1, 0))
        ]
    except OSError:
        return True
    return all(_LOCK.unpack(each)[0] == fcntl.F_UNLCK for each in found)
