"""Client certificates on a real server: expiry, replaced CAs, and types of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import trustme
from cryptography import x509
from grpc.experimental.session_cache import SSLSessionCache, ssl_session_cache_lru
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc
from tests.support.certificates import Issued, issue
from tests.support.processes import Server, running
from tests.support.server_calls import wait_until

# Certificates have whole seconds, and a test waits for an expiry.
pytestmark = pytest.mark.timeout(180)

BILLING = x509.DNSName("billing.example.org")
ACCESS = """
[[identity]]
name = "billing"
certificate = ["dns:billing.example.org"]
allocate = ["*"]
read = ["*"]
"""


class Secured(NamedTuple):
    """A TLS server that requires client certificates."""

    server: Server
    authority: trustme.CA
    client_ca: Path

    @contextmanager
    def connected(self, shown: Issued, tickets: SSLSessionCache | None = None) -> Iterator[grpc.Channel]:
        """Open a new connection, which resumes a TLS session if there is one."""
        options: list[Any] = [("grpc.use_local_subchannel_pool", 1)]
        if tickets is not None:
            options.append(("grpc.ssl_session_cache", tickets))
        # gRPC keeps TLS sessions only of servers with a name.
        target = self.server.address.replace("127.0.0.1", "localhost")
        with grpc.secure_channel(target, shown.trust(self.authority), options) as channel:
            yield channel

    def answer(self, shown: Issued, tickets: SSLSessionCache | None = None) -> tuple[grpc.StatusCode, str]:
        """Allocate on a new connection, and return status and details."""
        with self.connected(shown, tickets) as channel:
            return answer_of(lambda: allocate(channel))


@contextmanager
def secured(folder: Path, **settings: object) -> Iterator[Secured]:
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1", "localhost")
    cert, key, client_ca = folder / "server.pem", folder / "server.key", folder / "clients.pem"
    own.cert_chain_pems[0].write_to_path(str(cert))
    own.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(client_ca))
    with running(folder, tls_cert=cert, tls_key=key, tls_client_ca=client_ca, **settings) as server:
        yield Secured(server, authority, client_ca)


def allocate(channel: grpc.Channel) -> Any:
    stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
    return stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)


def answer_of(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    try:
        call()
    except grpc.RpcError as failed:
        error: Any = failed
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


@pytest.mark.test_long  # the certificate expires in real time
@pytest.mark.parametrize("authenticates", [True, False])
def test_an_expired_certificate_is_refused_on_resumption(tmp_path: Path, authenticates: bool) -> None:
    """An expired certificate's TLS sessions, connections and streams are refused."""
    settings = {}
    if authenticates:
        settings["access_file"] = tmp_path / "access.toml"
        (tmp_path / "access.toml").write_text(ACCESS)
    with secured(tmp_path, **settings) as place:
        shown, tickets = issue(place.authority, BILLING, seconds=6), ssl_session_cache_lru(8)  # type: ignore[no-untyped-call]
        assert place.answer(shown, tickets) == (grpc.StatusCode.OK, "")
        with place.connected(shown, tickets) as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            watched: Any = health_pb2_grpc.HealthStub(channel)
            list_request: Any = health_pb2.HealthListRequest()  # type: ignore[attr-defined]
            request = pb.StreamRangesRequest(sequence="orders", total_id_count=10**9, chunk_id_count=1)
            messages = stub.StreamRanges(request, timeout=60)
            next(messages)
            wait_until(
                lambda: place.answer(shown)[0] == grpc.StatusCode.UNAVAILABLE, "the handshake refuses it", seconds=60
            )
            for ended in (
                place.answer(shown, tickets),
                answer_of(lambda: allocate(channel)),
                answer_of(lambda: node_pb2_grpc.NodeServiceStub(channel).GetNode(node_pb2.GetNodeRequest())),
                answer_of(lambda: watched.Check(health_pb2.HealthCheckRequest(), timeout=20)),
                answer_of(lambda: watched.List(list_request, timeout=20)),
                answer_of(lambda: next(watched.Watch(health_pb2.HealthCheckRequest(), timeout=20))),
                answer_of(lambda: list(messages)),
            ):
                assert ended[0] == grpc.StatusCode.UNAUTHENTICATED, ended
                assert "the client certificate expired at 20" in ended[1]
        assert place.server.stop() == 0


def test_a_session_of_a_removed_authority_is_not_resumed(tmp_path: Path) -> None:
    """Replacing `tls_client_ca` ends the TLS sessions of the old CA's certificates."""
    with secured(tmp_path) as place:
        shown, tickets = issue(place.authority, BILLING), ssl_session_cache_lru(8)  # type: ignore[no-untyped-call]
        assert place.answer(shown, tickets)[0] == grpc.StatusCode.OK
        trustme.CA().cert_pem.write_to_path(str(place.client_ca))
        assert place.answer(shown, tickets)[0] == grpc.StatusCode.UNAVAILABLE


def test_a_name_of_another_type_is_not_authenticated(tmp_path: Path) -> None:
    """A CA for DNS names only cannot authenticate a URI, an address or an e-mail address."""
    names = {
        "uri:spiffe://example.org/billing": x509.UniformResourceIdentifier("spiffe://example.org/billing"),
        "ip:10.0.0.7": x509.IPAddress(ip_address("10.0.0.7")),
        "email:billing@example.org": x509.RFC822Name("billing@example.org"),
    }
    listed = ", ".join(f"'{name}'" for name in names)
    (tmp_path / "access.toml").write_text(
        f"[[identity]]\nname = 'billing'\ncertificate = [{listed}]\nallocate = ['*']\n"
    )
    with secured(tmp_path, access_file=tmp_path / "access.toml") as place:
        for name, right in names.items():
            assert place.answer(issue(place.authority, right))[0] == grpc.StatusCode.OK
            wrong = x509.DNSName(name.partition(":")[2])
            assert place.answer(issue(place.authority, wrong))[0] == grpc.StatusCode.UNAUTHENTICATED
