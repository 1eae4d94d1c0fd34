"""What holds ids of this process learns that it is in the child of a fork (P8)."""

import os
import weakref
from typing import Protocol

# Not that of the child: an id of a process alone may come back, as 1 does in every container.
NO_PROCESS = -1


class ForkAware(Protocol):
    """Holds something that is this process's alone."""

    def forget_after_fork(self) -> None:
        """Gives up what the parent of this process holds, in the child of a fork."""
        ...


_watched: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def register(holder: ForkAware) -> None:
    """Has ``holder.forget_after_fork`` called in each child that this process forks, as long as it lives."""
    _watched.add(holder)


def _forget_in_child() -> None:
    for holder in list(_watched):
        holder.forget_after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
    os.register_at_fork(after_in_child=_forget_in_child)
