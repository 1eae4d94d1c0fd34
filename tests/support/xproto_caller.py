"""A caller of statements on documents, with ids that the test chooses."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import Message

from idalloc_server.auth.access import Role
from idalloc_server.documents.cost import MAX_SIZE
from idalloc_server.documents.protocol import Documents
from idalloc_server.documents.side_thread import SideThread
from idalloc_server.xproto import frames
from idalloc_server.xproto.collections import Collections
from idalloc_server.xproto.errors import XError


def numbered() -> Iterator[str]:
    """Yields ids in MySQL's format that rise."""
    yield from (f"00006b02428c{serial:016x}" for serial in range(1, 2**63))


@dataclass
class FakeCaller:
    """A session that may do everything.

    Attributes:
        doc_ids: Where its ids come from.
        burned: How many ids it counted as burned.
    """

    schema: str = ""
    connection_id: int = 1
    doc_ids: Iterator[str] = field(default_factory=numbered)
    burned: int = 0
    roles: list[Role] = field(default_factory=list)
    has_left: bool = False

    def require_role(self, role: Role, command: str, schema: str, collection: str) -> None:
        self.roles.append(role)

    async def make_ids(self, count: int) -> list[str]:
        return [next(self.doc_ids) for _ in range(count)]

    def burn_ids(self, count: int) -> None:
        self.burned += count


async def reply_to(documents: Documents, message: Message, caller: FakeCaller | None = None) -> list[bytes]:
    """Runs a statement; returns the frames of the reply, with the error's frame at the end if there is one."""
    reply: list[bytes] = []
    try:
        async for frame in Collections(documents, MAX_SIZE, SideThread("statements")).execute(
            message, caller or FakeCaller()
        ):
            reply.append(frame)  # noqa: PERF401 - an error keeps what came before
    except XError as error:
        reply.append(frames.error(error))
    return reply
