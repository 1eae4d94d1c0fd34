"""Values that the supervisor and a worker send each other: JSON objects, one a line, over a socket pair."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Values = dict[str, Any]

_MAX_MESSAGE_BYTES = 2**20


class Pipe:
    """One end of the connection between two processes, each of which sees the newest values of the other.

    Attributes:
        values: The other process's newest values, by name.
        has_ended: Whether the other process sends no more, since it has exited.

    Args:
        reader: Reads the other end's messages.
        writer: Writes this end's messages.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.values: Values = {}
        self.has_ended = False
        self._reader = reader
        self._writer = writer
        self._received = asyncio.Event()

    @classmethod
    async def over(cls, connection: socket.socket) -> "Pipe":
        """Return a pipe over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_MAX_MESSAGE_BYTES))

    def send(self, **values: object) -> None:
        """Send JSON values without waiting; they are lost if the other process has exited."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(values).encode() + b"\n")

    async def receive(self) -> Values | None:
        """Receive the next message into ``values``, and return it; return None after the last one."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            line = b""
        message = json.loads(line) if line.endswith(b"\n") else None  # A killed process may leave half a line.
        self.has_ended = message is None
        self.values |= message or {}
        self._received.set()
        self._received = asyncio.Event()
        return message

    async def wait_until(self, condition: Callable[[Values], object]) -> None:
        """Wait until the other process's values meet a condition, or it has exited; another task must ``receive``."""
        while not self.has_ended and not condition(self.values):
            await self._received.wait()

    async def close(self) -> None:
        """Close this end once everything is sent or the other end is gone."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
