"""Numbers that the child of any fork reads as 0.0, also of a fork that bypasses Python, as uWSGI's.

``os.register_at_fork`` works for ``os.fork`` only. Linux (4.14 and newer) wipes a page of memory in the child of every
fork if ``madvise`` asked for that, so these numbers lie in such a page and are read anew each time. Elsewhere each
reading asks for the process id, which makes it about three times as slow, and takes a child for its parent where both
have one id, as may happen between two PID namespaces.
"""

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Iterator
from functools import cache
from itertools import chain, repeat

# Of linux/mman.h; the module mmap has no name for it.
_MADV_WIPEONFORK = 18
# Each id is one reading, and the readings go through the page: the larger it is, the rarer they start over.
_BYTES = 4096


def wiped_on_fork(value: float) -> Iterator[float]:
    """Gives the number without end, in C, and 0.0 in the child of any fork. Threads may share it."""
    if not hasattr(os, "fork"):
        return repeat(value)
    if not _kernel_wipes():
        return _by_process_id(value)
    try:
        page = _page()
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EAGAIN, errno.EPERM):  # the error of a signal's handler
            raise
        return _by_process_id(value)  # this process may have no more pages
    view = memoryview(page).cast("d")
    view[:] = array("d", [value]) * len(view)
    return chain.from_iterable(repeat(view))


def this_process() -> Iterator[float]:
    """Returns a mark of this process: it gives 1.0 without end, and 0.0 in the child of any fork."""
    global _mark
    if not next(_mark):
        _mark = wiped_on_fork(1.0)
    return _mark


def _page() -> mmap.mmap:
    page = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.madvise(_MADV_WIPEONFORK)
    return page


def _by_process_id(value: float) -> Iterator[float]:
    return map({os.getpid(): value}.get, iter(os.getpid, None), repeat(0.0))


@cache
def _kernel_wipes() -> bool:
    if sys.platform != "linux":
        return False
    try:
        page = _page()
    except OSError:
        return False
    try:
        page.madvise(-1)
    except OSError:
        return True
    return False  # an emulator that accepts any advice, and follows none


_mark = wiped_on_fork(1.0)
