"""A caller of statements on documents, with ids that the test chooses."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from idalloc_xproto import frames
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.mysql_errors import XError
from idalloc_xproto.operations import Operation
from idalloc_xproto.rights import SessionRights


def numbered() -> Iterator[str]:
    """Yield ids in MySQL's format that rise."""
    yield from (f"00006b02428c{serial:016x}" for serial in range(1, 2**63))


class AllRights(SessionRights):
    """The rights of a caller that may do everything. Nothing is recorded."""

    def __init__(self) -> None:
        pass

    def require(self, operation: Operation, schema: str, collection: str = "") -> None:
        pass

    def visible(self, names: Iterable[str], schema: str = "") -> list[str]:
        return list(names)

    @contextmanager
    def audited(self, operation: Operation, schema: str, collection: str = "") -> Iterator[dict[str, Any]]:
        yield {}


@dataclass
class FakeCaller:
    """A session that may do everything."""

    schema: str = ""
    connection_id: int = 1
    doc_ids: Iterator[str] = field(default_factory=numbered)  # where its ids come from
    burned: int = 0  # how many ids it counted as burned
    reply: list[bytes] = field(default_factory=list)  # the frames that it sent
    rights: AllRights = field(default_factory=AllRights)
    has_left: bool = False

    async def send(self, frame: bytes) -> None:
        self.reply.append(frame)

    async def generate_ids(self, count: int, given: int) -> list[str]:
        return [next(self.doc_ids) for _ in range(count)]

    def burn_ids(self, count: int) -> None:
        self.burned += count


async def reply_to(documents: Documents, message: Message, caller: FakeCaller | None = None) -> list[bytes]:
    """Run a statement; return the frames of the reply, with an error's frame last."""
    caller = caller or FakeCaller()
    before = len(caller.reply)
    try:
        await Collections(documents, MAX_SIZE, SideThread("statements")).execute(message, caller)
    except XError as error:
        caller.reply.append(frames.error(error))
    return caller.reply[before:]
