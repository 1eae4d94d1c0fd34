"""Client certificates: who calls is told by their names, over real TLS."""

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
from tests.support.identities import bearer, known
from tests.support.rpc_errors import Details, details_of


def holder(name: str, *certificate: str) -> Identity:
    return Identity(name, certificates=certificate, roles=dict.fromkeys(ROLES, Patterns([f"{name}*"])))


ACCESS = AccessPolicy(
    [
        holder("billing", "dns:billing.example.org", "ip:10.0.0.7"),
        holder("orders", "email:orders@example.org"),
        known("allocate", allocate=["*"]),
    ]
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_credentials(authority: trustme.CA) -> grpc.ServerCredentials:
    own = authority.issue_cert("localhost")
    pair = (own.private_key_pem.bytes(), b"".join(each.bytes() for each in own.cert_chain_pems))
    return grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), require_client_auth=True)


@pytest.fixture
async def secure(authority: trustme.CA) -> AsyncIterator[Served]:
    async with serving("grpcio", ACCESS, credentials=server_credentials(authority)) as served:
        yield served


async def allocate(
    served: Served, authority: trustme.CA, names: list[str], sequence: str, metadata: tuple[tuple[str, str], ...] = ()
) -> Details | None:
    """Calls with a certificate of these names; returns the refusal, if any."""
    own = authority.issue_cert(*names)
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), own.private_key_pem.bytes(), chain)
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
async def test_a_certificates_names_say_who_calls(
    secure: Served, authority: trustme.CA, names: list[str], sequence: str, reason: str
) -> None:
    refused = await allocate(secure, authority, names, sequence)
    assert (refused.info.reason if refused else "") == reason


async def test_a_token_goes_before_the_certificate(secure: Served, authority: trustme.CA) -> None:
    names = ["billing.example.org"]
    assert await allocate(secure, authority, names, "anything", bearer("allocate")) is None
    wrong = (("authorization", "Bearer nobody"),)
    refused = await allocate(secure, authority, names, "billing.at", wrong)
    assert refused is not None
    assert refused.info.reason == "UNAUTHENTICATED"


async def test_a_certificate_of_another_authority_makes_no_connection(secure: Served, authority: trustme.CA) -> None:
    own = trustme.CA().issue_cert("billing.example.org")
    chain = b"".join(each.bytes() for each in own.cert_chain_pems)
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), own.private_key_pem.bytes(), chain)
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
async def test_a_name_matches_with_its_type_only(
    authority: trustme.CA, names: list[x509.GeneralName], reason: str
) -> None:
    """An authority whose names are constrained to one type, or to names before a NUL, is no other identity."""
    mapped = f"ip:{ip_address('::ffff:10.0.0.7')}"
    listed = ["dns:billing.example.org", "uri:spiffe://example.org/orders", "ip:10.0.0.7", "ip:2001:db8::7", mapped]
    access = AccessPolicy([holder("billing", *listed), holder("orders", "email:orders@example.org")])
    async with serving("grpcio", access, credentials=server_credentials(authority)) as served:
        credentials = issue(authority, *names).trust(authority)
        async with grpc.aio.secure_channel(served.address, credentials) as channel:
            stub = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            call = stub.AllocateRange(pb.AllocateRangeRequest(sequence="billing.at"), timeout=20)
            if reason:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                assert details_of(failed.value).info.reason == reason
            else:
                await call


@pytest.mark.parametrize("access", [ACCESS, None])
async def test_every_call_sees_that_a_certificate_has_ended(authority: trustme.CA, access: AccessPolicy | None) -> None:
    """Each kind of method, a stream that runs, and a right token are refused on a connection that was made before."""
    clock = FakeClock(wall=time())
    async with serving("grpcio", access, credentials=server_credentials(authority), auth_clock=clock) as served:
        credentials = issue(authority, x509.DNSName("billing.example.org"), seconds=600).trust(authority)
        async with grpc.aio.secure_channel(served.address, credentials) as channel:
            ids: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            sequences: Any = sequences_pb2_grpc.SequenceServiceStub(channel)
            request = pb.StreamRangesRequest(sequence="billing", total_id_count=10**9, chunk_id_count=1)
            stream = ids.StreamRanges(request, timeout=40)
            assert (await stream.read()).range.id_count == 1
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
            # The first ten refusals of a host say why; later ones are counted.
            for call in (*calls, lambda: calls[0](bearer("allocate"))):
                with pytest.raises(grpc.aio.AioRpcError, match="the client certificate expired at 20") as failed:
                    await call()
                assert details_of(failed.value).info.reason == "UNAUTHENTICATED"
            with pytest.raises(grpc.aio.AioRpcError, match="the client certificate expired at 20"):
                while await stream.read():
                    pass


def shown(pem: bytes, name: str) -> Any:
    """A call on a connection with this certificate."""
    return SimpleNamespace(auth_context=lambda: {"x509_pem_cert": [pem], "peer_dns": [name.encode()]})


def test_a_certificate_is_read_once_and_few_are_kept(authority: trustme.CA) -> None:
    """What is known of certificates is bounded, and costs no parsing at each call."""
    certificates = ClientCertificates(FakeClock(wall=time()), max_certificates=2)
    first, second, third = (issue(authority, x509.DNSName("x")).cert for _ in range(3))
    assert certificates.check(shown(first, "read")) == ("dns:read",)
    assert certificates.check(shown(first, "known by its bytes")) == ("dns:read",)
    certificates.check(shown(second, "x"))
    assert certificates.check(shown(first, "known by its bytes")) == ("dns:read",)
    certificates.check(shown(third, "x"))
    assert certificates.check(shown(first, "read again")) == ("dns:read again",)
    assert len(certificates._parsed) == 2


def of_version_7() -> bytes:
    der = pem_to_der(issue(trustme.CA(), x509.DNSName("billing.example.org")).cert.decode())
    version = b"\xa0\x03\x02\x01"
    return der_to_pem(der.replace(version + b"\x02", version + b"\x06", 1)).encode()


@pytest.mark.parametrize(
    "pem", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", of_version_7()]
)
def test_what_is_no_certificate_is_refused(pem: bytes) -> None:
    """Where gRPC has a certificate that this server cannot read, it is of no use."""
    with pytest.raises(Unauthenticated, match="the client certificate cannot be read"):
        ClientCertificates(FakeClock()).check(shown(pem, "billing.example.org"))
