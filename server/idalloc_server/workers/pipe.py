"""Messages between the supervisor and a worker: one JSON object a line, over a socket pair."""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

from idalloc_server.domain import errors
from idalloc_server.domain.errors import Refusal, StartRefused

Message = dict[str, Any]

_MAX_MESSAGE_BYTES = 2**20


class Pipe:
    """One end of the connection. Messages end when the other process exits.

    Args:
        reader: Reads the other end's messages.
        writer: Writes this end's messages.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, connection: socket.socket) -> "Pipe":
        """Return a pipe over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_MAX_MESSAGE_BYTES))

    def send(self, kind: str, **values: object) -> None:
        """Send a message without waiting; it is lost if the other process has exited.

        Args:
            kind: The kind of message.
            values: Its fields, as JSON values.
        """
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"kind": kind} | values).encode() + b"\n")

    async def receive(self) -> Message | None:
        """Return the next message, or None after the last one."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        # A killed process may leave half a line.
        return json.loads(line) if line.endswith(b"\n") else None

    async def close(self) -> None:
        """Close this end once everything is sent or the other end is gone."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


def encode_error(error: Refusal | StartRefused) -> Message:
    """Return an error of ``domain.errors`` as JSON values; a subclass from elsewhere becomes its base class."""
    name = next(each.__name__ for each in type(error).__mro__ if hasattr(errors, each.__name__))
    return {"class": name, "message": str(error), "attributes": vars(error)}


def decode_error(encoded: Message) -> Refusal | StartRefused:
    """Return the error that ``encode_error`` encoded."""
    error_class: type[Refusal | StartRefused] = getattr(errors, encoded["class"])
    error = error_class.__new__(error_class, encoded["message"])
    vars(error).update(encoded["attributes"])
    return error
