"""A store that was exchanged for another one under its name."""

from idalloc_server.domain.errors import StoreFailure, StoreRefused, StoreWentBackwards


class StoreExchanged(StoreWentBackwards, StoreRefused):
    """Another place answers under the name that this process opened (P3).

    An alias was moved, or a table was swapped, for example.
    """

    def __init__(self, seen: str, found: str) -> None:
        StoreFailure.__init__(
            self,
            f"the store was exchanged: this process opened {seen}, and now found {found}; it issues no ids from there; "
            "stop all servers of the store, then put the opened one back, or restore as after a backup "
            "(docs/operations/backup-and-restore.md)",
        )
        self.metadata |= {"seen": seen, "found": found}
        self.seen, self.found = seen, found  # what this process opened, and what answers now
