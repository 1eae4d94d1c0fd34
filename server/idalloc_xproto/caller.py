"""The session that runs a statement, as the statement sees it."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from idalloc_xproto.operations import Operation


class Rights(Protocol):
    """What the caller of a statement may do and see."""

    def require(self, operation: Operation, schema: str, collection: str = "") -> None:
        """Check that the caller has the role of an operation on a collection, or on a schema.

        Raises:
            XError: 1142, the caller lacks the role; the audit records it.
        """

    def visible(self, names: Iterable[str], schema: str = "") -> list[str]:
        """Return those collections of a schema on which the caller has any role.

        Without ``schema`` the names are schemas: it returns those on which, or on anything in
        which, the caller has a role. Statements answer any other name as one that does not exist.
        """

    def audited(
        self, operation: Operation, schema: str, collection: str = ""
    ) -> AbstractContextManager[dict[str, Any]]:
        """Check the role of an administrative operation, and audit what this block does.

        The block may add fields to the record: how much it changed, and nothing of a document.

        Raises:
            XError: See ``require``.
        """


class Caller(Protocol):
    """The session that a statement runs in."""

    schema: str  # the default schema; empty if none was chosen
    connection_id: int

    @property
    def rights(self) -> Rights:
        """What the caller may do and see."""

    @property
    def has_left(self) -> bool:
        """Whether the client has left, so that nobody waits for the statement."""

    async def send(self, frame: bytes) -> None:
        """Add a frame to the reply, and send what has gathered if it is long.

        Raises:
            Unauthenticated: The identity was removed meanwhile.
        """

    async def generate_ids(self, count: int, given: int) -> list[str]:
        """Generate document ids with the variables of this session, and charge them to the quota.

        Args:
            count: How many to generate; each is charged as an id.
            given: How many documents of the same statement have an id; each is charged as a call.

        Raises:
            XError: 1226, the quota is exhausted; 1105, no ids can be generated.
        """

    def burn_ids(self, count: int) -> None:
        """Count ids that ``generate_ids`` returned and that no stored document has."""
