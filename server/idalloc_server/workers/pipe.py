"""The connection of the supervisor and a worker: messages over a socket pair."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar

from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.workers.messages import Answered, Asked, Message, decode, encode

_MAX_MESSAGE_BYTES = 2**20

M = TypeVar("M", bound=Message)


@dataclass(eq=False)
class Pipe:
    """One end of the connection of two processes; it keeps the newest messages of the other one."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    has_ended: bool = field(init=False, default=False)  # whether the other process has exited
    _newest: dict[type[Message], Message] = field(init=False, default_factory=dict)
    _received: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(init=False, default_factory=partial(count, 1))  # of questions
    _answers: dict[int, Answered | None] = field(init=False, default_factory=dict)  # to what is asked at present

    @classmethod
    async def over(cls, connection: socket.socket) -> "Pipe":
        """Return a pipe over a connected socket."""
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=_MAX_MESSAGE_BYTES)
        return cls(reader, writer)

    def send(self, message: Message) -> None:
        """Send a message without waiting; it is lost if the other process has exited."""
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    async def receive(self) -> Message | None:
        """Receive and return the next message; return None after the last one."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            line = b""
        message = decode(line) if line.endswith(b"\n") else None  # A killed process may leave half a line.
        if message is None:
            self.has_ended = True
        else:
            self._newest[type(message)] = message
            if isinstance(message, Answered) and message.number in self._answers:
                self._answers[message.number] = message
        self._received.set()
        self._received = asyncio.Event()
        return message

    def newest(self, kind: type[M]) -> M | None:
        """Return the newest message of a type; None before the first one."""
        return self._newest.get(kind)  # type: ignore[return-value]

    def has(self, *kinds: type[Message]) -> bool:
        """Return whether a message of one of these types was received."""
        return any(kind in self._newest for kind in kinds)

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until a message makes a condition true, or the other process exits.

        Another task must call ``receive``.
        """
        while not self.has_ended and not condition():
            await self._received.wait()

    async def wait_for(self, *kinds: type[Message]) -> None:
        """Wait until a message of one of these types was received, or the other process exits."""
        await self.wait_until(lambda: self.has(*kinds))

    async def ask(self, question: str, arguments: Mapping[str, Any], timeout: float | None) -> Any:
        """Return the other process's answer to a question.

        Args:
            question: The name of the question, see ``node.answers`` and ``Supervisor``.
            arguments: Its arguments, as JSON values.
            timeout: The longest wait, in seconds; None to wait until the other process exits.

        Raises:
            StoreUnavailable: It did not answer in time, exited, or refused with this message.
        """
        number = next(self._numbers)
        self._answers[number] = None
        self.send(Asked(number, question, arguments))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.wait_until(lambda: self._answers[number])
        finally:
            answered = self._answers.pop(number)
        if answered is None:
            raise StoreUnavailable("the worker did not answer in time, or exited")
        if answered.error:
            raise StoreUnavailable(answered.error)
        return answered.result

    async def close(self) -> None:
        """Close this end once everything is sent or the other end is gone."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
