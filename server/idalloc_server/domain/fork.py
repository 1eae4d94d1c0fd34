"""Discard the ids held by a process in its forked children (P8)."""

import os
import weakref
from typing import Protocol

# Never the id of a child: process ids repeat, as 1 does in every container.
NO_PROCESS = -1


class ForkAware(Protocol):
    """An object that holds ids of one process."""

    def forget_after_fork(self) -> None:
        """Discards the ids of the parent process; called in the child of a fork."""
        ...


_registered: "weakref.WeakSet[ForkAware]" = weakref.WeakSet()


def register(holder: ForkAware) -> None:
    """Calls ``holder.forget_after_fork`` in each forked child. Keeps only a weak reference."""
    _registered.add(holder)


def _forget_in_child() -> None:
    for holder in list(_registered):
        holder.forget_after_fork()


if hasattr(os, "register_at_fork"):  # Windows has neither this nor fork
    os.register_at_fork(after_in_child=_forget_in_child)
