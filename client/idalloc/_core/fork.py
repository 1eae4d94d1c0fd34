"""Detection of forks, including forks that bypass Python, such as uWSGI's.

``os.register_at_fork`` sees ``os.fork`` only. On Linux 4.14 and later, the values here are read
from a page of memory that the kernel zeroes in the child of every fork (``MADV_WIPEONFORK``). On
other systems, each read compares process ids. That is about three times slower, and misses a fork
into another PID namespace in which the child has the same id.
"""

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Iterator
from functools import cache
from itertools import chain, repeat

# From linux/mman.h; the module mmap does not define it.
_MADV_WIPEONFORK = 18
# Readers iterate over the page and then start over; a larger page makes that rarer.
_PAGE_BYTES = 4096


def wiped_on_fork(value: float) -> Iterator[float]:
    """Return an endless iterator that yields the value, and 0.0 in the child of any fork.

    It runs in C. Threads may share it.
    """
    if not hasattr(os, "fork"):
        return repeat(value)
    if not _kernel_wipes():
        return _by_process_id(value)
    try:
        page = _map_page()
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EAGAIN, errno.EPERM):  # raised by a signal handler
            raise
        return _by_process_id(value)  # the process has reached its limit of mappings
    view = memoryview(page).cast("d")
    view[:] = array("d", [value]) * len(view)
    return chain.from_iterable(repeat(view))


def process_marker() -> Iterator[float]:
    """Return this process's marker: an endless iterator of 1.0, and of 0.0 in a fork's child."""
    global _marker
    if not next(_marker):
        _marker = wiped_on_fork(1.0)
    return _marker


def _map_page() -> mmap.mmap:
    page = mmap.mmap(-1, _PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.madvise(_MADV_WIPEONFORK)
    return page


def _by_process_id(value: float) -> Iterator[float]:
    return map({os.getpid(): value}.get, iter(os.getpid, None), repeat(0.0))


@cache
def _kernel_wipes() -> bool:
    if sys.platform != "linux":
        return False
    try:
        page = _map_page()
    except OSError:
        return False
    try:
        page.madvise(-1)
    except OSError:
        return True
    return False  # an emulator that accepts any advice and ignores it


_marker = wiped_on_fork(1.0)
