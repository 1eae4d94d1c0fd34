"""What the supervisor and its workers tell each other: JSON, one message a line, over a pair of sockets."""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

from idalloc_server.domain import errors
from idalloc_server.domain.errors import Refusal, StartRefused

Message = dict[str, Any]

_LONGEST = 2**20


class Pipe:
    """One end. That the other process ended is the end of its messages.

    Args:
        reader: Where the other's messages come from.
        writer: Where one's own go to.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, connection: socket.socket) -> "Pipe":
        """Returns the end that a connected socket is."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_LONGEST))

    def tell(self, what: str, **values: object) -> None:
        """Sends a message, without waiting; to a process that ended it is lost.

        Args:
            what: What is told, or to be done.
            values: What else belongs to it, as JSON can say it.
        """
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"what": what} | values).encode() + b"\n")

    async def hear(self) -> Message | None:
        """Returns the next message; None where no more will come."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        # A process that was killed may have left half a line.
        return json.loads(line) if line.endswith(b"\n") else None

    async def close(self) -> None:
        """Closes this end, once all was sent or the other one is gone."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def encode_error(error: Refusal | StartRefused) -> Message:
    """Returns an error of the catalogue as JSON can say it."""
    kind = next(each.__name__ for each in type(error).__mro__ if hasattr(errors, each.__name__))
    return {"kind": kind, "message": str(error), "attributes": vars(error)}


def decode_error(packed: Message) -> Refusal | StartRefused:
    """Returns the error that was packed."""
    kind: type[Refusal | StartRefused] = getattr(errors, packed["kind"])
    error = kind.__new__(kind, packed["message"])
    vars(error).update(packed["attributes"])
    return error
