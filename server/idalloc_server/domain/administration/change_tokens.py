"""Who makes a change of a sequence: how its repetition is told from another change."""

import hashlib
import re
import uuid
from collections.abc import Callable
from typing import NamedTuple

from idalloc_server.domain.errors import InvalidRequest, RequestIdReused
from idalloc_server.domain.records import Row

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class ChangeToken(NamedTuple):
    """Who makes a change: one request, however often it is sent.

    Attributes:
        request_id: The caller's own, or a random one.
        digest: Of the request's content.
    """

    request_id: str
    digest: str

    @property
    def by(self) -> str:
        """What the store keeps of it."""
        return f"{self.request_id}:{self.digest}"

    def made(self, row: Row) -> bool:
        """Whether the last change of a row is this one.

        Raises:
            RequestIdReused: It is another one with the same request id.
        """
        if row.revised_by != self.by and row.revised_by.startswith(f"{self.request_id}:"):
            raise RequestIdReused(self.request_id, f"another change of sequence {row.name!r}")
        return row.revised_by == self.by


def change_token_of(request_id: str, content: bytes, random: Callable[[int], bytes]) -> ChangeToken:
    """Returns who makes a change.

    Args:
        request_id: The caller's own; empty for none.
        content: All that the request says, and which method it is for.
        random: Returns that many random bytes.

    Raises:
        InvalidRequest: The request id is no UUID.
    """
    if not request_id:
        request_id = str(uuid.UUID(bytes=random(16), version=4))
    elif not _UUID.fullmatch(request_id := request_id.lower()):
        raise InvalidRequest("request_id", "must be a UUID such as 0b5ff5ea-9b2a-4bf0-8a1c-3f0d6e1f2a77")
    return ChangeToken(request_id, hashlib.sha256(content).hexdigest()[:16])
