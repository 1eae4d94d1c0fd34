"""Change tokens identify an administrative request, to recognize a retry."""

import hashlib
import re
import uuid
from collections.abc import Callable
from typing import NamedTuple

from idalloc_server.domain.errors import InvalidRequest, RequestIdReused
from idalloc_server.domain.store.records import Row

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ChangeToken(NamedTuple):
    """Identifies one change request, also when it is sent again."""

    request_id: str  # the caller's request id, or a random one
    digest: str  # digest of the request's method and content

    @property
    def value(self) -> str:
        """The token as the store keeps it in ``Row.revised_by``."""
        return f"{self.request_id}:{self.digest}"

    def wrote(self, row: Row) -> bool:
        """Return whether this request made the last change of a row.

        Raises:
            RequestIdReused: A different request with the same request id did.
        """
        if row.revised_by != self.value and row.revised_by.startswith(f"{self.request_id}:"):
            raise RequestIdReused(self.request_id, f"another change of sequence {row.name!r}")
        return row.revised_by == self.value


def make_change_token(request_id: str, content: bytes, random: Callable[[int], bytes]) -> ChangeToken:
    """Return the token of a request.

    Args:
        request_id: The caller's request id, a UUID; empty for a random one.
        content: The request's method and content.
        random: Returns random bytes of a given number.

    Raises:
        InvalidRequest: The request id is not a UUID.
    """
    if not request_id:
        request_id = str(uuid.UUID(bytes=random(16), version=4))
    elif not _UUID.fullmatch(request_id := request_id.lower()):
        raise InvalidRequest("request_id", "must be a UUID such as 0b5ff5ea-9b2a-4bf0-8a1c-3f0d6e1f2a77")
    return ChangeToken(request_id, hashlib.sha256(content).hexdigest()[:16])
