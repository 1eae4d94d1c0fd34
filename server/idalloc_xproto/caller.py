"""The session that runs a statement, as the statement sees it."""

from typing import Protocol

from idalloc_xproto.rights import SessionRights


class Caller(Protocol):
    """The session that a statement runs in."""

    schema: str  # the default schema; empty if none was chosen
    connection_id: int

    @property
    def rights(self) -> SessionRights:
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
