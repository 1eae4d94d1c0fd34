"""Notices that files have changed since they were last read."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from idalloc_server.domain.errors import FileUnreadable, StartRefused
from idalloc_server.files.descriptors import spare

# How often the server checks whether files have changed.
POLL_SECONDS = 0.5

T = TypeVar("T")
# The state of each file: inode, size, mtime and ctime, or the number of the error. The inode shows
# a switched link.
_States = list[tuple[int, ...]]


class FileWatch:
    """The state of files when they were last read.

    Files with invalid content are read again after a change, unreadable ones at each check: a
    permission or a disk that returns changes no time in a file's state.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self.states: _States | None = None  # None makes the next check read the files, changed or not
        self.requested = asyncio.Event()  # ends the present or the next ``wait`` at once

    def has_changed(self) -> bool:
        """Return whether the files must be read: they have changed, or were not read."""
        return self.states is None or self.states != self._look()

    def read(self, load: Callable[[], T]) -> T:
        """Return what ``load`` returns, which reads the files.

        Raises:
            StartRefused: See ``load``.
        """
        states = self._look()  # before the content: a change meanwhile is noticed
        self.states = None
        try:
            with spare.lend():  # at the limit of open files, too
                loaded = load()
        except FileUnreadable:
            raise
        except StartRefused:
            self.states = states
            raise
        self.states = states
        return loaded

    async def wait(self) -> bool:
        """Wait until the next check; return whether it was requested."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.requested.wait(), POLL_SECONDS)
        requested = self.requested.is_set()
        self.requested.clear()
        return requested

    def _look(self) -> _States:
        states: _States = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError as error:
                states.append((error.errno or 0,))
            else:
                states.append((status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return states
