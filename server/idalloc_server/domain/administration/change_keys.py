"""Change keys identify an administrative request, to recognize a retry."""

from typing import NamedTuple

from idalloc_server.domain.errors import RequestIdReused
from idalloc_server.domain.store.records import Row


class ChangeKey(NamedTuple):
    """Identifies one change request, also when it is sent again."""

    request_id: str  # the caller's request id, or a random one
    digest: str  # digest of the request's method and content

    @property
    def value(self) -> str:
        """The key as the store keeps it in ``Row.revised_by``."""
        return f"{self.request_id}:{self.digest}"

    def wrote(self, row: Row) -> bool:
        """Return whether this request made the last change of a row.

        Raises:
            RequestIdReused: A different request with the same request id did.
        """
        if row.revised_by != self.value and row.revised_by.startswith(f"{self.request_id}:"):
            raise RequestIdReused(self.request_id, f"another change of sequence {row.name!r}")
        return row.revised_by == self.value
