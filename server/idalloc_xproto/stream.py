"""The bytes of a connection, as an ``asyncio.Protocol`` whose buffer the connection can see."""

import asyncio
import ssl
from typing import Any

# The most bytes that wait for ``Stream.read``. Beyond them the client cannot send.
READ_BYTES = 64 * 1024


class Stream(asyncio.Protocol):
    """The bytes of one connection that have arrived, and those to send."""

    def __init__(self) -> None:
        self.has_left = False  # whether the client has sent its last byte, or the connection is lost
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None  # uvloop's transports are not subclasses of asyncio's
        self._buffer = bytearray()
        self._is_secure = self._is_paused = False
        self._reading: asyncio.Future[None] | None = None  # the wait of ``read``
        self._lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def tls(self) -> Any:
        """The TLS of the connection, as ``ssl.SSLObject``; None without."""
        return self._transport.get_extra_info("ssl_object")

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        self._buffer += data
        self.wake()
        if len(self._buffer) >= READ_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``."""
        self.has_left = True
        self.wake()
        # The running statement ends. The client may still read its replies, except with TLS.
        return not self._is_secure

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.has_left = True
        self.wake()
        self._lost.set()
        self._writable.set()

    # What the connection calls.

    async def read(self) -> bytes:
        """Return all bytes that arrived; wait for the first one, the end, or ``wake``.

        Other tasks run meanwhile, also if bytes have arrived already.
        """
        if self._buffer or self.has_left:
            await asyncio.sleep(0)
        else:
            self._reading = self._loop.create_future()
            await self._reading
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def wake(self) -> None:
        """End the wait of ``read``, if it waits."""
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    @property
    def is_full(self) -> bool:
        """Whether the client does not read what was sent, so that ``drain`` would wait."""
        return not self._writable.is_set()

    def write(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            ConnectionResetError: The connection is lost.
        """
        self._check()
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read most of what was sent.

        Raises:
            ConnectionResetError: The connection is lost.
        """
        await self._writable.wait()
        self._check()

    async def start_tls(self, context: ssl.SSLContext, before: bytes, timeout: float) -> None:
        """Send bytes, and start TLS; the handshake may take ``timeout`` seconds.

        Raises:
            ConnectionAbortedError: Bytes have arrived already; they could be an attacker's.
            OSError: The handshake failed.
        """
        if self._buffer:
            raise ConnectionAbortedError("clear text before the handshake")
        self._check()
        self._transport.write(before)
        # The loop gives the transport to TLS before it waits: all later bytes belong to the
        # handshake.
        self._transport = await self._loop.start_tls(
            self._transport, self, context, server_side=True, ssl_handshake_timeout=timeout
        )
        self._is_secure = True
        self._check()

    async def close(self) -> None:
        """Send what was written, then close the connection."""
        self._transport.close()
        await self._lost.wait()

    def abort(self) -> None:
        """Close the connection now."""
        self._transport.abort()

    def _check(self) -> None:
        if self._lost.is_set() or self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is lost")
