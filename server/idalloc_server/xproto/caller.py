"""What a statement may ask about, and of, the session that runs it."""

from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from google.protobuf.message import Message

from idalloc_server.xproto.operations import Operation


class Rights(Protocol):
    """What the caller of a statement may do and see."""

    def require(self, operation: Operation, schema: str, collection: str = "") -> None:
        """Check that the caller has the role of an operation on a collection; without one, on the schema itself.

        Raises:
            XError: 1142, the caller lacks the role; the audit records it.
        """
        ...

    def visible(self, names: Iterable[str], schema: str = "") -> list[str]:
        """Return those collections of a schema on which the caller has any role.

        Without ``schema`` the names are schemas: those on which, or on anything in which, it has a
        role. Any other name is answered as one that does not exist.
        """
        ...

    def audited(
        self, operation: Operation, schema: str, collection: str = ""
    ) -> AbstractContextManager[dict[str, Any]]:
        """Check the role of an administrative operation, and record what this block does when the block ends.

        The block may add fields to the record: how much it changed, and nothing of a document.

        Raises:
            XError: See ``require``.
        """
        ...


class Caller(Protocol):
    """The session that a statement runs in."""

    schema: str  # the default schema; empty if none was chosen
    connection_id: int  # the number of the connection

    @property
    def rights(self) -> Rights:
        """What the session may do and see."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether the client has left, so that nobody waits for the statement."""
        ...

    async def make_ids(self, count: int, given: int) -> list[str]:
        """Return new document ids, made with the variables of this session, and charge all ids to the quota.

        Args:
            count: How many ids are to be made; each counts as an id.
            given: How many documents of the same statement have one; each counts as a call.

        Raises:
            XError: 1226, the quota is exhausted; 1105, no ids can be made.
        """
        ...

    def burn_ids(self, count: int) -> None:
        """Count ids that ``make_ids`` returned and that no stored document has."""
        ...


class Statements(Protocol):
    """Runs statements on collections: Mysqlx.Crud."""

    def execute(self, message: Message, caller: Caller) -> AsyncGenerator[bytes, None]:
        """Run a Find, Insert, Update or Delete, and yield the frames of its reply, up to StmtExecuteOk.

        Raises:
            XError: The statement failed. Frames before it may have been sent.
        """
        ...
