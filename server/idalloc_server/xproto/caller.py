"""What a statement may ask about, and of, the session that runs it."""

from collections.abc import AsyncGenerator
from typing import Protocol

from google.protobuf.message import Message

from idalloc_server.auth.access import Role


class Caller(Protocol):
    """The session that a statement runs in.

    Attributes:
        schema: The default schema; empty if none was chosen.
        connection_id: The number of the connection.
    """

    schema: str
    connection_id: int

    @property
    def has_left(self) -> bool:
        """Whether the client has left, so that nobody waits for the statement."""
        ...

    def require_role(self, role: Role, command: str, schema: str, collection: str) -> None:
        """Check that the caller has a role on a collection.

        Args:
            role: ``read`` to find and count, ``allocate`` to insert, ``admin`` for the rest.
            command: The name of the command in the error, such as ``INSERT``.
            schema: The schema of the collection.
            collection: Its name.

        Raises:
            XError: 1142, the caller lacks the role.
        """
        ...

    async def make_ids(self, count: int) -> list[str]:
        """Return new document ids, made with the variables of this session; charge them and the call to the quota.

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
