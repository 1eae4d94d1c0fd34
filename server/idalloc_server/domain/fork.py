"""Discard the ids held by a process in its forked children (P8)."""

import os
import weakref
from typing import Protocol

# Never the id of a child: process ids repeat, as 1 does in every container.
NO_PROCESS = -1


class ForkAware(Protocol):
    """An object that holds ids of one process."""

    def forget_after_fork(self) -> None:
        """Discard the ids of the parent process; called in the child of a fork."""


class Process(Protocol):
    """The process that holds ids; tests replace it."""

    def pid(self) -> int:
        """Return the process id. It also changes in a fork that Python does not notice."""

    def register(self, holder: ForkAware) -> None:
        """Call ``holder.forget_after_fork`` in each forked child. Keep only a weak reference."""


class OsProcess:
    """The process of the operating system; see ``Process``."""

    # A built-in function: every call of an RPC checks the process id.
    pid = staticmethod(os.getpid)

    def __init__(self) -> None:
        self._holders: weakref.WeakSet[ForkAware] = weakref.WeakSet()
        if hasattr(os, "register_at_fork"):  # Windows has neither this nor fork
            os.register_at_fork(after_in_child=self._forget_in_child)

    def register(self, holder: ForkAware) -> None:
        self._holders.add(holder)

    def _forget_in_child(self) -> None:
        for holder in list(self._holders):
            holder.forget_after_fork()


OS_PROCESS = OsProcess()
