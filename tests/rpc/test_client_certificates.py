"""Authentication by client certificates, over real TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_address
from ssl import DER_cert_to_PEM_cert as der_to_pem
from ssl import PEM_cert_to_DER_cert as pem_to_der
from time import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc, node_pb2, node_pb2_grpc, sequences_pb2, sequences_pb2_grpc
from idalloc_server.auth.access import ROLES, AccessPolicy, Identity
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.domain.errors import Unauthenticated
from idalloc_server.domain.sequences.patterns import Patterns
from tests.rpc.conftest import Served, serving
from tests.support.certificates import issue
from tests.support.fake_store import FakeClock
from tests.support.identities import bearer, identity_with_token
from tests.support.rpc_errors import Details, details_of


def identity_with_certificate(name: str, *certificate: str) -> Identity:
    return Identity(name, certificates=certificate, roles=dict.fromkeys(ROLES, Patterns([f"{name}*"])))


ACCESS = AccessPolicy(
    [
        identity_with_certificate("billing", "dns:billing.example.org", "ip:10.0.0.7"),
        identity_with_certificate("orders", "email:orders@example.org"),
        identity_with_token("allocate", allocate=["*"]),
    ]
)


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def server_credentials(ca: trustme.CA) -> grpc.ServerCredentials:
    own = ca.issue_cert("localhost")
    pair = (own.private_key_pem.bytes(), b"".join(each.bytes() for each in own.cert_chain_pems))
    return grpc.ssl_server_credentials([pair], ca.cert_pem.bytes(), require_client_auth=True)


@pytest.fixture
async def secure(ca: trustme.CA) -> AsyncIterator[Served]:
    async with serving("grpcio", ACCESS, credentials=server_credentials(ca)) as served:
        yield served


async def allocate(
    served: Served, ca: trustme.CA, names: list[str], sequence: str, metadata: tuple[tuple[str, str], ...] = ()
) -> Details | None:
    """Allocate with a certificate of these names; return the error, or None."""
    own = ca.issue_cert(*names)
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes(), own.private_key_pem.bytes(), chain)
    async with grpc.aio.secure_channel(served.address, credentials) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        try:
            await stub.AllocateRange(pb.AllocateRangeRequest(sequence=sequence), metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            return details_of(error)
        return None


@pytest.mark.parametrize(
    ("names", "sequence", "reason"),
    [
        (["billing.example.org"], "billing.at", ""),
        (["x.example.org", "billing.example.org"], "billing.at", ""),
        (["10.0.0.7"], "billing.at", ""),
        (["orders@example.org"], "orders", ""),
        (["billing.example.org"], "orders", "PERMISSION_DENIED"),
        (["billing.example.com"], "billing.at", "UNAUTHENTICATED"),
        (["*.example.org"], "billing.at", "UNAUTHENTICATED"),
        (["billing.example.org", "orders@example.org"], "billing.at", "UNAUTHENTICATED"),
    ],
)
async def test_certificate_names_authenticate_the_caller(
    secure: Served, ca: trustme.CA, names: list[str], sequence: str, reason: str
) -> None:
    """The names in a client certificate authenticate exactly one identity."""
    refused = await allocate(secure, ca, names, sequence)
    assert (refused.info.reason if refused else "") == reason


async def test_token_takes_precedence_over_certificate(secure: Served, ca: trustme.CA) -> None:
    """A token takes precedence over the certificate, even if the token is invalid."""
    names = ["billing.example.org"]
    assert await allocate(secure, ca, names, "anything", bearer("allocate")) is None
    wrong = (("authorization", "Bearer nobody"),)
    refused = await allocate(secure, ca, names, "billing.at", wrong)
    assert refused is not None
    assert refused.info.reason == "UNAUTHENTICATED"


async def test_certificate_of_an_untrusted_ca_cannot_connect(secure: Served, ca: trustme.CA) -> None:
    """TLS rejects a client certificate that an untrusted CA has signed."""
    own = trustme.CA().issue_cert("billing.example.org")
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    credentials = grpc.ssl_channel_credentials(ca.cert_pem.bytes(), own.private_key_pem.bytes(), chain)
    async with grpc.aio.secure_channel(secure.address, credentials) as channel:
        stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.AllocateRange(pb.AllocateRangeRequest(sequence="billing"), timeout=20)
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([x509.DNSName("10.0.0.7")], "UNAUTHENTICATED"),
        ([x509.DNSName("spiffe://example.org/orders")], "UNAUTHENTICATED"),
        ([x509.UniformResourceIdentifier("billing.example.org")], "UNAUTHENTICATED"),
        ([x509.DNSName("BILLING.example.org")], "UNAUTHENTICATED"),
        ([x509.DNSName("orders@example.org")], "UNAUTHENTICATED"),
        ([x509.DNSName("billing.example.org\0.evil.example")], "UNAUTHENTICATED"),
        ([x509.RFC822Name("billing.example.org")], "UNAUTHENTICATED"),
        ([x509.UniformResourceIdentifier("spiffe://example.org/orders")], ""),
        ([x509.IPAddress(ip_address("2001:db8::7"))], ""),
        ([x509.IPAddress(ip_address("::ffff:10.0.0.7"))], ""),
        ([x509.RFC822Name("billing@example.org"), x509.DNSName("billing.example.org")], ""),
    ],
)
async def test_certificate_name_matches_only_with_its_type(
    ca: trustme.CA, names: list[x509.GeneralName], reason: str
) -> None:
    """A certificate name authenticates only with the type that the access file lists for it."""
    mapped = f"ip:{ip_address('::ffff:10.0.0.7')}"
    listed = ["dns:billing.example.org", "uri:spiffe://example.org/orders", "ip:10.0.0.7", "ip:2001:db8::7", mapped]
    policy = AccessPolicy(
        [identity_with_certificate("billing", *listed), identity_with_certificate("orders", "email:orders@example.org")]
    )
    async with serving("grpcio", policy, credentials=server_credentials(ca)) as served:
        credentials = issue(ca, *names).trust(ca)
        async with grpc.aio.secure_channel(served.address, credentials) as channel:
            stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            call = stub.AllocateRange(pb.AllocateRangeRequest(sequence="billing.at"), timeout=20)
            if reason:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                assert details_of(failed.value).info.reason == reason
            else:
                await call


@pytest.mark.parametrize("policy", [ACCESS, None])
async def test_expired_certificate_is_rejected_on_every_call(ca: trustme.CA, policy: AccessPolicy | None) -> None:
    """An expired certificate is rejected on open connections, in each method, and on streams."""
    clock = FakeClock(wall=time())
    async with serving("grpcio", policy, credentials=server_credentials(ca), auth_clock=clock) as served:
        credentials = issue(ca, x509.DNSName("billing.example.org"), seconds=600).trust(ca)
        async with grpc.aio.secure_channel(served.address, credentials) as channel:
            ids: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            sequences: Any = sequences_pb2_grpc.SequenceServiceStub(channel)
            request = pb.StreamRangesRequest(sequence="billing", total_id_count=10**9, chunk_id_count=1)
            stream = ids.StreamRanges(request, timeout=40)
            assert (await stream.read()).range.id_count == 1
            asked = pb.AllocateStreamRequest(allocate_range=pb.AllocateRangeRequest(sequence="billing"))
            requests = ids.AllocateStream(timeout=40)
            await requests.write(asked)
            assert (await requests.read()).HasField("allocate_range")
            calls: list[Any] = [
                lambda metadata=(): ids.AllocateRange(pb.AllocateRangeRequest(sequence="billing"), metadata=metadata),
                lambda: ids.GenerateDocId(pb.GenerateDocIdRequest()),
                lambda: node_pb2_grpc.NodeServiceStub(channel).GetNode(node_pb2.GetNodeRequest()),
                lambda: sequences.GetSequence(sequences_pb2.GetSequenceRequest(name="billing")),
                lambda: sequences.ListSequences(sequences_pb2.ListSequencesRequest()),
                lambda: sequences.DeleteSequence(sequences_pb2.DeleteSequenceRequest(name="billing.none")),
            ]
            for call in calls[:-1]:
                await call()
            clock.wall_seconds += 599
            await calls[0]()
            clock.wall_seconds += 2
            # The first ten rejections of a host have their cause; later ones are only counted.
            for call in (*calls, lambda: calls[0](bearer("allocate"))):
                with pytest.raises(grpc.aio.AioRpcError, match="the client certificate expired at 20") as failed:
                    await call()
                assert details_of(failed.value).info.reason == "UNAUTHENTICATED"
            with pytest.raises(grpc.aio.AioRpcError, match="the client certificate expired at 20"):
                while await stream.read():
                    pass
            await requests.write(asked)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await requests.read()
            assert details_of(failed.value).info.reason == "UNAUTHENTICATED"


def call_with_certificate(pem: bytes, name: str) -> Any:
    """Return the context of a call on a connection with this certificate."""
    return SimpleNamespace(auth_context=lambda: {"x509_pem_cert": [pem], "peer_dns": [name.encode()]})


def test_certificate_is_parsed_once_and_cache_is_bounded(ca: trustme.CA) -> None:
    """Each certificate is parsed once, and the number of parsed certificates is bounded."""
    certificates = ClientCertificates(FakeClock(wall=time()), max_certificates=2)
    first, second, third = (issue(ca, x509.DNSName("x")).cert for _ in range(3))
    assert certificates.check(call_with_certificate(first, "read")) == ("dns:read",)
    assert certificates.check(call_with_certificate(first, "known by its bytes")) == ("dns:read",)
    certificates.check(call_with_certificate(second, "x"))
    assert certificates.check(call_with_certificate(first, "known by its bytes")) == ("dns:read",)
    certificates.check(call_with_certificate(third, "x"))
    assert certificates.check(call_with_certificate(first, "read again")) == ("dns:read again",)
    assert len(certificates._parsed) == 2


def certificate_of_version_7() -> bytes:
    der = pem_to_der(issue(trustme.CA(), x509.DNSName("billing.example.org")).cert.decode())
    version = b"\xa0\x03\x02\x01"
    return der_to_pem(der.replace(version + b"\x02", version + b"\x06", 1)).encode()


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", certificate_of_version_7()]
)
def test_unreadable_certificate_is_rejected(pem: bytes) -> None:
    """A certificate that the server cannot parse does not authenticate."""
    with pytest.raises(Unauthenticated, match="the client certificate cannot be read"):
        ClientCertificates(FakeClock()).check(call_with_certificate(pem, "billing.example.org"))
