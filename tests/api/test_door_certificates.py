"""Client certificates: who calls is told by their names, over real TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import trustme

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from idalloc_server.domain.access import ROLES, Access, Identity, Patterns
from tests.api.conftest import Served, serving
from tests.api.errors import Details, details_of
from tests.api.identities import bearer, known


def holder(name: str, *certificate: str) -> Identity:
    return Identity(name, certificates=certificate, roles=dict.fromkeys(ROLES, Patterns([f"{name}*"])))


ACCESS = Access(
    [
        holder("billing", "billing.example.org", "10.0.0.7"),
        holder("orders", "orders@example.org"),
        known("allocate", allocate=["*"]),
    ]
)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def secure(authority: trustme.CA) -> AsyncIterator[Served]:
    own = authority.issue_cert("localhost")
    pair = (own.private_key_pem.bytes(), b"".join(each.bytes() for each in own.cert_chain_pems))
    credentials = grpc.ssl_server_credentials([pair], authority.cert_pem.bytes(), require_client_auth=True)
    async with serving("grpcio", ACCESS, credentials=credentials) as served:
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
