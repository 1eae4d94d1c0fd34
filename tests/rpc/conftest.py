"""A server with the real servicers on a real socket, and a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest

from idalloc.v1 import id_allocator_pb2_grpc, node_pb2_grpc, sequences_pb2_grpc
from idalloc_server.auth import rejected_callers
from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.clock import Clock, SystemClock
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamps
from idalloc_server.domain.idempotency.idempotent_allocator import IdempotentAllocator
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.listen.transport import TRANSPORTS, make_server
from idalloc_server.node.change import NodeChanges
from idalloc_server.rpc.calls import CallLayer, Service
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.health import HealthServicer
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.items import DocIdSource, RangeSource
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.rpc.reflection import AuthenticatedReflection
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.rpc.server import add_service
from idalloc_server.telemetry.metrics import CallMetrics
from tests.support.fake_store import MemoryStore
from tests.support.identities import ACCESS
from tests.support.waiting import until as until

MAX_IDS_PER_CALL = 100_000
# These run on both transports in `make test`; `make test-long` runs the others on native.
ON_BOTH = ("calls", "deadlines", "decoding", "health", "limits", "ranges", "transport")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_native = item.nodeid.startswith("tests/rpc/") and "native" in item.nodeid.partition("[")[2]
        if is_native and item.path.stem.removeprefix("test_") not in ON_BOTH:
            item.add_marker(pytest.mark.test_long)


@dataclass
class Served:
    """A running server and its parts."""

    ids: id_allocator_pb2_grpc.IdAllocatorServiceAsyncStub
    node: node_pb2_grpc.NodeServiceAsyncStub
    sequences: sequences_pb2_grpc.SequenceServiceAsyncStub
    channel: grpc.aio.Channel
    server: grpc.aio.Server
    address: str
    store: MemoryStore
    allocator: Allocator
    doc_ids: DocIdGenerator
    calls: CallLayer
    draining: Draining
    metrics: CallMetrics
    access_control: AccessControl
    health: HealthServicer
    id_service: Service  # the handlers of IdAllocatorService, with the layer around them


@pytest.fixture(params=["grpcio", "native"])
def transport(request: pytest.FixtureRequest) -> str:
    """The server's transport: both keep all promises of the wire."""
    return str(request.param)


@pytest.fixture(autouse=True)
def answers_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts whose calls are rejected too often are answered at once: tests may reject many."""
    delay_answers(monkeypatch, 0.0)


def delay_answers(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set how long an answer to such a host waits."""
    monkeypatch.setattr(rejected_callers, "MIN_DELAY_SECONDS", seconds)
    monkeypatch.setattr(rejected_callers, "MAX_DELAY_SECONDS", seconds)


@pytest.fixture
async def served(transport: str) -> AsyncIterator[Served]:
    async with serving(transport) as server:
        yield server


@pytest.fixture
async def secured(transport: str) -> AsyncIterator[Served]:
    """A server that requires authentication."""
    async with serving(transport, ACCESS) as server:
        yield server


@asynccontextmanager
async def serving(
    transport: str,
    policy: AccessPolicy | None = None,
    *,
    credentials: grpc.ServerCredentials | None = None,
    auth_clock: Clock | None = None,
    max_ids: int = MAX_IDS_PER_CALL,
) -> AsyncIterator[Served]:
    """Run a server until the end of the block.

    Args:
        transport: The server's transport.
        policy: The access policy; None to allow every call.
        credentials: The server's TLS credentials, with client certificates. The port is then
            localhost's, and ``channel`` cannot be used.
        auth_clock: The clock of quotas and of the expiry of certificates; None for the system's.
        max_ids: The setting max_ids_per_call.
    """
    clock = SystemClock()
    made = TRANSPORTS[transport]
    certificates = ClientCertificates(auth_clock or clock) if credentials else None
    access_control = AccessControl(
        auth_clock or clock, max_ids, policy, metadata_of=made.metadata_of, certificates=certificates
    )
    store = MemoryStore(clock)
    start_timestamps = StartTimestamps(store, clock, prefix=7, holder="here:1", max_clock_skew=60.0)
    start = await start_timestamps.start()
    doc_ids = DocIdGenerator(start_timestamps, start)
    allocator = Allocator(
        store, clock, AllocationConfig(lease_ttl=180.0, store_timeout=5.0, auto_create_sequences=True)
    )
    metrics = CallMetrics()
    draining = Draining(metrics)
    calls = CallLayer(metrics, draining, access_control, allocator.store_health, log_each=True, transport=made)
    server = make_server(transport, reuse_port=False)

    request_ids = IdempotentAllocator(allocator, store, clock, node="here:1", window=3600.0)
    servicers = (
        IdAllocatorServicer(
            RangeSource(allocator, request_ids, doc_ids=doc_ids, clock=clock, max_ids=max_ids, node_id=start.node),
            DocIdSource(doc_ids, max_ids),
            uuids=UuidGenerator(clock),
            record_failure=calls.record_failure,
        ),
        NodeServicer(allocator, doc_ids, store.address, NodeChanges(doc_ids)),
        SequencesServicer(SequenceService(store, clock, allocator)),
    )
    services = [each.descriptor.full_name for each in servicers]
    reflection = AuthenticatedReflection(services, access_control, calls, draining)
    health = HealthServicer(services, certificates)
    health.set_serving(serving=True)
    health.set_store_serving(serving=True)
    own = [calls.service(each) for each in servicers]
    for service in (*own, *reflection.services(), health.service()):
        add_service(server, service, registered=made.needs_registered_methods)

    if credentials is None:
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        address = f"localhost:{server.add_secure_port('localhost:0', credentials)}"
    await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        yield Served(
            ids=id_allocator_pb2_grpc.IdAllocatorServiceStub(channel),
            node=node_pb2_grpc.NodeServiceStub(channel),
            sequences=sequences_pb2_grpc.SequenceServiceStub(channel),
            channel=channel,
            server=server,
            address=address,
            store=store,
            allocator=allocator,
            doc_ids=doc_ids,
            calls=calls,
            id_service=own[0],
            draining=draining,
            metrics=metrics,
            access_control=access_control,
            health=health,
        )
    await server.stop(None)
    await doc_ids.cancel_claims()
