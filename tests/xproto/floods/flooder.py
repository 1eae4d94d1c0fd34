"""Floods of the X Protocol's port, a program like ``tests/floods/flooder.py``."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from idalloc.xprotocol.v1 import connection_pb2
from idalloc_xproto import frames
from tests.floods.flooder import CALLS, HELD, SILENT, Flood, Flooder, run, silent, then_reset, unread
from tests.support.faults.attacks import TLS_HELLO
from tests.xproto.support.client import XClient, set_tls


@asynccontextmanager
async def _x_client(flooder: Flooder) -> AsyncIterator[XClient]:
    async with flooder.connected(is_plain=True) as (reader, writer):
        client = XClient(reader, writer)
        await client.read()  # the hello
        yield client


_ASK = frames.frame(1, connection_pb2.CapabilitiesGet())


async def half_x_messages(flooder: Flooder) -> None:
    """Send half a message."""
    async with _x_client(flooder) as client:
        await flooder.hold((client.reader, client.writer), b"\x64\0\0\0\x04half")


async def half_x_handshakes(flooder: Flooder) -> None:
    """Ask for TLS, and send the beginning of its handshake."""
    async with _x_client(flooder) as client:
        await client.ask(set_tls())
        await flooder.hold((client.reader, client.writer), TLS_HELLO)


async def x_resets(flooder: Flooder) -> None:
    """Reset a connection right after a message."""
    async with _x_client(flooder) as client:
        client.writer.write(_ASK)
        flooder.seen["sent"] += 1
        then_reset(client.writer)


async def unread_x_replies(flooder: Flooder) -> None:
    """Ask for the capabilities, and read no reply."""
    async with flooder.connected(is_plain=True, buffer=1) as connection:
        await unread(flooder, connection, _ASK * CALLS, _ASK * CALLS)


async def x_logins(flooder: Flooder) -> None:
    """Log in over TLS with a wrong token, until the server ends the connection."""
    async with _x_client(flooder) as client:
        assert flooder.tls
        await client.start_tls(flooder.tls)
        while True:
            await client.log_in_plain("root", "x" * 43)
            flooder.seen["sent"] += 1
            await flooder.share.pause()


FLOODS = {
    "x": {
        "half requests": Flood(half_x_messages, HELD),
        "half-open TLS": Flood(half_x_handshakes, SILENT, needs_tls=True),
        "silent": Flood(silent, SILENT),
        "resets": Flood(x_resets, 4),
        "slow reads": Flood(unread_x_replies, HELD),
        "logins": Flood(x_logins, 4, needs_tls=True),
    },
}


if __name__ == "__main__":
    run(FLOODS)
