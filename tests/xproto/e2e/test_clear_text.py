"""Clear text injected between the request for TLS and the handshake is never executed."""

import socket
import ssl
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from idalloc.xprotocol.v1 import connection_pb2
from idalloc_xproto import frames
from idalloc_xproto.session import MESSAGES_A_TURN
from tests.support.certificates import Certificates
from tests.support.processes import running
from tests.xproto.support.client import connected, set_tls

pytestmark = pytest.mark.timeout(300)

# Beyond a turn of the server, so that the bytes that follow meet each of its steps.
BEFORE = frames.frame(1) * (MESSAGES_A_TURN + 1) + frames.frame(2, set_tls())
LOGIN = frames.frame(4, connection_pb2.AuthenticateStart(mech_name="MYSQL41")) + frames.frame(
    5, connection_pb2.AuthenticateContinue(auth_data=b"\0mallory\0*00")
)
# The longest time from the request for TLS to the clear text.
LONGEST = 0.003


def inject(address: str, tls: ssl.SSLContext, clear: bytes, delay: float) -> str:
    """Ask for TLS, send clear text after a delay, and shake hands; return what the server did."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        try:
            raw.sendall(BEFORE)
            ends = time.perf_counter() + delay
            while time.perf_counter() < ends:
                pass
            raw.sendall(clear)
            with raw.makefile("rb", buffering=0) as reader:
                for _ in range(MESSAGES_A_TURN + 3):  # the greeting, the capabilities and the Ok
                    length = int.from_bytes(_exactly(reader, 4), "little")
                    _exactly(reader, length)
            with tls.wrap_socket(raw, server_hostname="127.0.0.1") as secure:
                return "answered" if secure.recv(1) else "closed"
        except (OSError, EOFError):
            return "closed"


def _exactly(reader: socket.SocketIO, size: int) -> bytes:
    content = b""
    while len(content) < size:
        if not (part := reader.read(size - len(content))):
            raise EOFError
        content += part
    return content


@pytest.mark.parametrize("tries", [25, pytest.param(1000, marks=pytest.mark.test_long)])
async def test_clear_text_before_the_handshake_is_not_run(tmp_path: Path, tries: int) -> None:
    """Clear text after the request for TLS, at any delay, ends the connection without an answer."""
    certificates = Certificates(tmp_path)
    shown = certificates.client("127.0.0.1")
    tls = ssl.create_default_context(cafile=certificates.ca)
    with running(tmp_path, xproto_listen="127.0.0.1:0", tls_cert=shown.cert, tls_key=shown.key) as server:
        delays = [LONGEST * number / tries for number in range(tries)]
        with ThreadPoolExecutor(2) as pool:
            for clear in (LOGIN, b"\0"):
                attack = partial(inject, server.xproto, tls, clear)
                assert Counter(pool.map(attack, delays)) == {"closed": tries}
        async with connected(server.xproto, logs_in=False) as client:
            await client.start_tls(tls)
            assert (await client.log_in()).code == 0
            assert (await client.sql("SELECT 1")).rows == [b"\x02"]
        assert "xproto_connection_failed" not in server.log.read_text()
