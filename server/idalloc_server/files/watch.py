"""Reads files again after they have changed."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from idalloc_server.domain.errors import FileUnreadable, StartRefused
from idalloc_server.files.descriptors import spare

# How often the server checks whether files have changed.
POLL_SECONDS = 0.5

T = TypeVar("T")
# The state of each file: inode, size, mtime and ctime, or the number of the error. The inode shows
# a switched link.
_States = list[tuple[int, ...]]


class FileWatch(Generic[T]):
    """Files that are read at start, where an error is fatal, and again after each change.

    - ``AccessFile``, with the digests of tokens, polls, and checks at once on SIGHUP.
    - ``Certificates``, the TLS files of gRPC, checks at each new connection and on SIGHUP.
    - ``ReloadingTlsContext``, those of HTTP and the X Protocol, polls.

    The files in a store's URL are read at start only, see ``store/credentials.py``.

    Args:
        paths: The files.
        load: Reads the files, or raises ``StartRefused``.
        is_settled: Whether content counts before the next check finds it, too.
    """

    def __init__(
        self, paths: Iterable[Path], load: Callable[[], T], is_settled: Callable[[T], bool] = lambda content: True
    ) -> None:
        self._paths = tuple(paths)
        self._load = load
        self._is_settled = is_settled
        self._states: _States | None = None  # None makes the next check read the files, changed or not
        self.requested = asyncio.Event()  # makes ``poll`` check at once, with force
        # Not the event loop's executor: slow readers may occupy all its threads, see transport.py.
        self._reader = ThreadPoolExecutor(1, "files")

    def read(self) -> T:
        """Return what the files contain.

        Raises:
            StartRefused: They cannot be read, or are invalid.
        """
        states = self._look()  # before the content: a change meanwhile is noticed
        self._states = None
        try:
            with spare.lend():  # at the limit of open files, too
                content = self._load()
        except FileUnreadable:
            raise
        except StartRefused:
            self._states = states
            raise
        self._states = states
        return content

    def check(self, *, forced: bool = False) -> T | StartRefused | None:
        """Return what the files contain after a change, or their error; None if it is the same.

        Files with invalid content are read again after a change, unreadable ones at each check: a
        permission or a disk that returns changes no time in a file's state. If ``forced``, the
        files are read in any case, and what they contain counts at once.
        """
        counts = forced or self._states is None
        if not counts and self._states == self._look():
            return None
        try:
            content = self.read()
        except StartRefused as error:
            return error
        if counts or self._is_settled(content):
            return content
        self._states = None
        return None

    async def poll(self) -> AsyncGenerator[tuple[T | StartRefused | None, bool], None]:
        """Yield what each check finds, and whether it was requested, until cancelled."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.requested.wait(), POLL_SECONDS)
            forced = self.requested.is_set()
            self.requested.clear()
            check = partial(self.check, forced=forced)
            yield await asyncio.get_running_loop().run_in_executor(self._reader, check), forced

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
