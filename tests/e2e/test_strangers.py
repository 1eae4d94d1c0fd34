"""A stranger who can only connect costs a caller nothing: the ports of a real server."""

import json
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest
import trustme

from idalloc.v1 import id_allocator_pb2
from tests.e2e.test_access import new_token
from tests.e2e.test_crate import Crate
from tests.support import http2
from tests.support.faults.attacks import gzip_bombs
from tests.support.processes import Server, running
from tests.support.server_calls import connect, id_allocator, log_events, status_of
from tests.support.waiting import hold_for, wait_until

# Each starts servers; the limits themselves have unit tests.
pytestmark = [pytest.mark.test_long, pytest.mark.timeout(120)]
LOOPBACK = "127.0.0.1:0"
# Addresses of loopback that are not the caller's.
STRANGERS = [f"127.0.0.{number}" for number in range(2, 10)]
SECRET = "Bearer idalloc_one_of_the_secrets"


def port_of(server: Server, name: str = "http") -> int:
    """Return the port in the line that the server printed."""
    return int(json.loads(server.serving)[name].rstrip("/").rpartition(":")[2])


def opened(port: int, source: str = "127.0.0.1", sent: bytes = b"") -> socket.socket:
    """Return a connection from an address of loopback, on which bytes were sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
    if sent:
        connection.sendall(sent)
    return connection


@contextmanager
def holding(port: int, number: int, sources: list[str], sent: bytes = b"") -> Iterator[list[socket.socket]]:
    """Hold connections, each with the same bytes sent."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(port, sources[each % len(sources)], sent)) for each in range(number)]


def asked(port: int, request: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Return what the server answers until it closes the connection."""
    with opened(port) as plain, tls.wrap_socket(plain) if tls else plain as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def probed(port: int, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether /livez answers within a second."""
    begun = time.monotonic()
    try:
        answer = asked(port, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", tls)
    except OSError:
        return False
    return answer.startswith(b"HTTP/1.1 200 ") and time.monotonic() - begun < 1


def test_half_requests_do_not_stop_probes(tmp_path: Path) -> None:
    """Half requests, from the caller's address and others, fail no probe; they end after 5 s."""
    with running(tmp_path, http_listen=LOOPBACK) as server:
        port = port_of(server)
        with holding(port, 230, ["127.0.0.1", *STRANGERS], b"GET /livez HTTP/1.1\r\nHost: localh") as held:
            assert [probed(port) for _ in range(15)] == [True] * 15
            assert held[-1].recv(1) == b""
        wait_until(lambda: log_events(server, "connections_refused"), "the line of the log")
        lines = log_events(server, "connections_refused")
        assert {(line["port"], line["reason"]) for line in lines} == {("http_listen", "ended")}
        assert sum(line["count"] for line in lines) >= 30


def test_half_handshakes_do_not_stop_probes_or_callers(tmp_path: Path) -> None:
    """Silent HTTPS connections that take all descriptors fail no probe and no new gRPC caller."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", "localhost")
    leaf.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    trust = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    trust.check_hostname = False
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with running(tmp_path, None, False, 600, http_listen=LOOPBACK, **files) as server:
        port = port_of(server)
        with holding(port, 800, ["127.0.0.1", *STRANGERS], b"\x16\x03\x01"):
            assert [probed(port, trust) for _ in range(5)] == [True] * 5
            with grpc.secure_channel(server.address, credentials) as channel:
                take(channel)
            assert len([*Path(f"/proc/{server.process.pid}/fd").iterdir()]) < 400


def take(channel: grpc.Channel, token: str = "", sequence: str = "orders") -> None:
    """Take an id."""
    request = id_allocator_pb2.AllocateRangeRequest(sequence=sequence, id_count=1)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    id_allocator(channel).AllocateRange(request, timeout=5, metadata=metadata)


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_at_the_limit_of_open_files_the_store_is_reached(tmp_path: Path, transport: str) -> None:
    """Strangers with all descriptors prevent no connection to a cluster, even a restarted one."""
    crate = Crate(tmp_path / "crate.db")
    try:
        settings = {"transport": transport, "store": crate.url}
        with running(tmp_path, None, False, 160, **settings) as server, connect(server) as channel:
            take(channel)
            with holding(int(server.address.rpartition(":")[2]), 200, STRANGERS):
                hold_for(1.5, "gRPC accepts what it can")
                crate.kill()
                crate.restart()
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(lambda number: take(channel, sequence=f"s{number}"), range(8)))
    finally:
        crate.kill()


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_at_the_limit_of_open_files_callers_go_on(tmp_path: Path, transport: str) -> None:
    """Strangers with all descriptors stop no connected caller, no probe, no new access file."""
    access = tmp_path / "access.toml"
    token = new_token(access, "billing", "--allocate", "*")
    settings = {"transport": transport, "access_file": access, "probe_listen": LOOPBACK}
    with running(tmp_path, None, False, 160, **settings) as server, connect(server) as channel:
        take(channel, token)
        port = server.address.rpartition(":")[2]
        with holding(int(port), 200, STRANGERS):
            hold_for(1.5, "gRPC accepts what it can, and native logs each attempt")
            assert [probed(port_of(server, "probes")) for _ in range(5)] == [True] * 5
            take(channel, token)
            access.write_text(f'[[identity]]\nname = "other"\ntoken_sha256 = ["{"0" * 64}"]\n')
            replaced = time.monotonic()
            with pytest.raises(grpc.RpcError) as refused:
                while time.monotonic() < replaced + 10:
                    take(channel, token)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert time.monotonic() - replaced < 1
        lines = [line for line in log_events(server, "library") if "accept failed" in line["message"]]
        assert len(lines) <= time.monotonic() - replaced + 3
        assert [line["limit"] for line in log_events(server, "open_files_limit_low")] == [160]


BROKEN = {
    "line feed in a token": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
    + SECRET.encode()
    + b"\r\n x\0\r\n\r\n",
    "no colon": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + SECRET.encode() + b"\r\n\r\n",
    "method": SECRET.replace(" ", "_").encode() + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "version": b"GET / HTTP/" + SECRET.encode() + b"\r\nHost: localhost\r\n\r\n",
    "path": b"GET /" + SECRET.encode() + b"\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown path": b"GET /" + SECRET[7:].encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + SECRET.encode() * 1000 + b"\r\n\r\n",
    "expectation": b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: "
    + SECRET.encode()
    + b"\r\nConnection: close\r\n\r\n",
    "length": b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + SECRET.encode() + b"\r\n\r\n",
    "host": b"GET / HTTP/1.1\r\nHost: " + SECRET[7:].encode() + b"\r\nConnection: close\r\n\r\n",
    "target": b"GET http://[" + SECRET[7:].encode() + b"/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "parameter": b"GET /api/sequences?sort="
    + SECRET[7:].encode()
    + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
}


def test_no_byte_of_a_request_is_in_an_answer_or_the_log(tmp_path: Path) -> None:
    """Unreadable requests, and refused ones: each answer has our headers, and no secret."""
    with running(tmp_path, http_listen=LOOPBACK) as server:
        answers = {name: asked(port_of(server), request) for name, request in BROKEN.items()}
        wait_until(lambda: log_events(server, "connections_refused"), "the reasons in the log")
    for name, answer in answers.items():
        head = answer.partition(b"\r\n\r\n")[0].decode().splitlines()
        assert head[0].split()[1][0] == "4" or name == "expectation", (name, answer)
        assert "Server: idalloc" in head, (name, answer)
        assert "X-Content-Type-Options: nosniff" in head, (name, answer)
        assert b"one_of_the_secrets" not in answer, (name, answer)
    assert "one_of_the_secrets" not in server.log.read_text()
    reasons = {line["reason"] for line in log_events(server, "connections_refused")}
    assert {"BadHttpMessage", "BadHttpMethod", "LineTooLong"} <= reasons


REFUSED = {
    b"GET /livez\r\n\r\n": b"505",
    b"GET /livez HTTP/0.9\r\n\r\n": b"505",
    b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n": b"505",
    b"GET /livez#f HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": b"400",
    b"GET /page#f HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": b"400",
    b"GET /api/sequences?sort=name#f HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": b"400",
}


def test_other_versions_and_fragments_are_refused(tmp_path: Path) -> None:
    """HTTP/0.9, without headers, HTTP/2 and a path with a fragment get HTTP/1 with our headers."""
    with running(tmp_path, http_listen=LOOPBACK) as server:
        for request, status in REFUSED.items():
            answer = asked(port_of(server), request)
            assert answer.startswith((b"HTTP/1.0 " + status, b"HTTP/1.1 " + status)), (request, answer)
            assert b"\r\nServer: idalloc\r\n" in answer, (request, answer)
        assert log_events(server, "http_request_failed") == []


METADATA = {
    "control characters": [("authorization", f"{SECRET}\r\nx: y\0")],
    "no scheme": [("authorization", SECRET[7:])],
    "wrong token": [("authorization", SECRET)],
    "two tokens": [("authorization", SECRET), ("authorization", SECRET)],
    "bytes": [("authorization", f"{SECRET}\xff\xfe")],
    "no UTF-8": [("authorization", f"{SECRET}\udcff")],
    "upper case": [("Authorization", SECRET)],
    "timeout": [("grpc-timeout", SECRET[7:])],
    "encoding": [("grpc-encoding", SECRET[7:])],
    "base64": [("token-bin", SECRET)],
}


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_no_byte_of_metadata_is_in_a_reply_or_the_log(tmp_path: Path, transport: str) -> None:
    """Metadata that is invalid or wrong is neither in the reply of a call nor in the log."""
    access = tmp_path / "access.toml"
    new_token(access, "billing", "--allocate", "*")
    request = id_allocator_pb2.AllocateRangeRequest(sequence="orders", id_count=1).SerializeToString()
    with running(tmp_path, transport=transport, access_file=access) as server:
        for name, metadata in METADATA.items():
            with http2.connect(server.address) as connection:
                connection.sendall(http2.headers(1, "AllocateRange", metadata) + http2.message(1, request))
                reply = b""
                with suppress(ConnectionError):
                    kind, flags = http2.DATA, 0
                    while not (kind in (http2.RST_STREAM, http2.GOAWAY) or flags & http2.END_STREAM):
                        kind, flags, stream, payload = http2.read_frame(connection)
                        flags = flags if stream else 0
                        reply += payload
                assert reply
                assert b"one_of_the_secrets" not in reply, name
        assert server.stop() == 0
    assert "one_of_the_secrets" not in server.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_other_names_are_refused_while_nobody_authenticates(tmp_path: Path, workers: int) -> None:
    """Pages answer under the server's names, with an access file under any; probes always."""
    with running(tmp_path, http_listen=LOOPBACK, http_hosts="idalloc-1", workers=workers) as server:
        for path in ("/", "/status.js", "/metrics", "/api/status", "/api/sequences"):
            assert status_of(server, path, "evil.example:50080") == 421
            assert status_of(server, path, "localhost:1234") == 200
        assert status_of(server, "/metrics", "idalloc-1:50080") == 200
        assert status_of(server, "/livez", "evil.example") == 200
        answer = asked(port_of(server), b"GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert b"http_hosts" in answer
        assert b"evil" not in answer
    access = tmp_path / "access.toml"
    new_token(access, "billing", "--allocate", "*")
    with running(tmp_path, http_listen=LOOPBACK, access_file=access, workers=workers) as server:
        assert status_of(server, "/", "ids.example") == 200
        assert status_of(server, "/metrics", "ids.example") == 401


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reachable_grpc_port_is_warned_of_once(tmp_path: Path, workers: int) -> None:
    """A start on all addresses logs one line, with all workers; one on loopback logs none."""
    with running(tmp_path, listen="0.0.0.0:0", insecure=True, workers=workers) as server:
        assert server.stop() == 0
    assert [line["address"] for line in log_events(server, "grpc_without_proxy")] == [server.address]
    with running(tmp_path, workers=workers) as server:
        assert server.stop() == 0
    assert log_events(server, "grpc_without_proxy") == []


def test_gzip_of_grpcio_is_unpacked_up_to_the_size_of_a_request(tmp_path: Path) -> None:
    """A 200 kB request that unpacks to 200 MB costs no memory; a small compressed one is served."""
    with running(tmp_path) as server:
        before = peak_memory(server)
        seen = gzip_bombs(server.address, number=4, concurrency=2, size=200_000_000)
        assert seen == {"answered": 4}
        assert peak_memory(server) - before < 20
        with connect(server) as channel:
            request = id_allocator_pb2.AllocateRangeRequest(sequence="orders" * 20)
            id_allocator(channel).AllocateRange(request, timeout=5, compression=grpc.Compression.Gzip)


def peak_memory(server: Server) -> float:
    """Return the most memory that a server's process has had, in MB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
