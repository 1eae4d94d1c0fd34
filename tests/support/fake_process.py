"""A process that forks on command."""

from idalloc_server.domain.fork import ForkAware


class FakeProcess:
    """A ``Process`` whose fork turns it into the child."""

    def __init__(self, pid: int = 1) -> None:
        self._pid = pid
        self._holders: list[ForkAware] = []

    def pid(self) -> int:
        return self._pid

    def register(self, holder: ForkAware) -> None:
        self._holders.append(holder)

    def fork(self, *, repeats_pid: bool = False, is_noticed: bool = True) -> None:
        """Become the child of a fork.

        Args:
            repeats_pid: Whether the child has its parent's process id, as in a container of its
                own.
            is_noticed: Whether Python notices the fork; it does not notice one in C.
        """
        if not repeats_pid:
            self._pid += 1
        if is_noticed:
            for holder in self._holders:
                holder.forget_after_fork()
