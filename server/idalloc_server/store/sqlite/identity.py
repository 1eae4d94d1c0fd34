"""Which file a path names, without its times."""

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

_AT_FDCWD = -100
_STATX_NLINK, _STATX_INO = 0x4, 0x100
# A ``struct statx`` of linux/stat.h: the number of links, the inode, the device's two numbers.
_STATX = struct.Struct("=16xI12xQ96xII112x")


class FileIdentity(NamedTuple):
    """The file that a path names."""

    device: int
    inode: int
    links: int  # how many names the file has


def _by_stat(path: str) -> Callable[[], FileIdentity]:
    def examine() -> FileIdentity:
        status = os.stat(path)  # noqa: PTH116 - a Path is slower
        return FileIdentity(status.st_dev, status.st_ino, status.st_nlink)

    return examine


def _find() -> Callable[[str], Callable[[], FileIdentity]]:
    """Return the function for this system."""
    if sys.platform != "linux":
        return _by_stat
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):  # an old C library
        return _by_stat

    def by_statx(path: str) -> Callable[[], FileIdentity]:
        found = ctypes.create_string_buffer(_STATX.size)
        # Converted once, not at each call.
        numbers = (ctypes.c_int(0), ctypes.c_uint(_STATX_INO | _STATX_NLINK))
        arguments = (ctypes.c_int(_AT_FDCWD), ctypes.c_char_p(os.fsencode(path)), *numbers, found)

        def examine() -> FileIdentity:
            if statx(*arguments):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
            links, inode, major, minor = _STATX.unpack(found)
            return FileIdentity(os.makedev(major, minor), inode, links)

        return examine

    try:
        by_statx("/")()
    except OSError:  # a sandbox refuses the call
        return _by_stat
    return by_statx


# Takes a path, and returns a function that returns which file the path names at each call, or
# raises OSError if it cannot be examined. The function serves one thread. Linux does not read the
# file's times: since Linux 6.13 the next write to a file whose times were read changes its inode,
# and the ``fdatasync`` after it must write the inode, too (``multigrain-ts.rst`` of Linux).
examiner = _find()
