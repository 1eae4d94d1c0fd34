"""gRPC's health service. It needs no authentication, so no caller may delay others."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from idalloc_server.auth.call_types import Context, PeerReader, UnaryHandler, connection_peer
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.rejected_callers import host_of
from idalloc_server.domain.errors import ServerDraining, Unauthenticated
from idalloc_server.rpc import status
from idalloc_server.rpc.calls import UNDECODABLE, Service, undecodable_request

# The most open watches in total, and per host. A watch costs some kB and the size of its request,
# has no time limit, and needs no authentication.
MAX_WATCHES = 2_000
MAX_WATCHES_OF_HOST = 200
MAX_REQUEST_BYTES = 1_000

# The name of the store's health. While it is NOT_SERVING, the server may still serve from its
# leases.
STORE = "store"

_Response = health_pb2.HealthCheckResponse
# Older packages lack this message and its method.
_ListResponse: Any = getattr(health_pb2, "HealthListResponse", None)


class HealthServicer:
    """Serves one status for all services, and one for the store; both are NOT_SERVING at first.

    See health.proto. The servicer of grpcio-health-checking writes while it holds a lock: a client
    that never reads would block other clients and the server's stop.

    Args:
        services: The names of the services, besides the empty one.
        certificates: Checks client certificates; None if clients present none.
        peer_of: Reads the address of a call's peer; by default the connection's.
    """

    descriptor: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]

    def __init__(
        self,
        services: Iterable[str],
        certificates: ClientCertificates | None = None,
        peer_of: PeerReader = connection_peer,
    ) -> None:
        self._certificates = certificates
        self._peer_of = peer_of
        self._services = frozenset(["", *services])
        self._statuses: dict[str, int] = dict.fromkeys([*self._services, STORE], _Response.NOT_SERVING)
        self._changed = asyncio.Event()
        self._ending = False
        self._watches: Counter[str] = Counter()

    def service(self) -> Service:
        """Return the service."""
        names = [method.name for method in self.descriptor.methods]
        handlers = {name: _rejecting_undecodable(getattr(self, name)) for name in names}
        return Service(self.descriptor, self.descriptor.full_name, handlers)

    def set_serving(self, *, serving: bool) -> None:
        """Set the status of all services, and notify their watches."""
        self._set(self._services, serving)

    def set_store_serving(self, *, serving: bool) -> None:
        """Set the status of the store, and notify its watches."""
        self._set([STORE], serving)

    def _set(self, names: Iterable[str], serving: bool) -> None:
        statuses = self._statuses | dict.fromkeys(names, _Response.SERVING if serving else _Response.NOT_SERVING)
        if statuses != self._statuses:
            self._statuses = statuses
            self._changed.set()
            self._changed = asyncio.Event()

    def end(self) -> None:
        """End all watches: a watch does not end by itself."""
        self._ending = True
        self._changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """See health.proto."""
        await self._check_certificate(context)
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service[:100]!r}")
        return _Response(status=self._statuses[request.service])

    async def List(self, request: Any, context: Context) -> Any:
        """See health.proto."""
        await self._check_certificate(context)
        return _ListResponse(statuses={name: _Response(status=each) for name, each in self._statuses.items()})

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """See health.proto."""
        if request.ByteSize() > MAX_REQUEST_BYTES:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the request has {request.ByteSize()} bytes; at most {MAX_REQUEST_BYTES}",
            )
        host = host_of(self._peer_of(context))
        if self._watches[host] >= MAX_WATCHES_OF_HOST or self._watches.total() >= MAX_WATCHES:
            limits = f"at most {MAX_WATCHES}, and {MAX_WATCHES_OF_HOST} of one host"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"too many open watches ({limits}): use Check")
        self._watches[host] += 1
        try:
            sent = None
            while True:
                changed = self._changed
                current = self._statuses.get(request.service, _Response.SERVICE_UNKNOWN)
                if current != sent:
                    await self._check_certificate(context)
                    await context.write(_Response(status=current))
                    sent = current
                if self._ending:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, str(ServerDraining()))
                await changed.wait()
        finally:
            self._watches[host] -= 1
            if not self._watches[host]:
                del self._watches[host]

    async def _check_certificate(self, context: Context) -> None:
        """Abort the call if the client's certificate has expired."""
        if self._certificates is not None:
            try:
                self._certificates.check(context)
            except Unauthenticated as refusal:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(refusal))


def _rejecting_undecodable(handler: UnaryHandler) -> UnaryHandler:
    async def call(request: Any, context: Context) -> Any:
        if request is UNDECODABLE:
            failure = status.from_refusal(undecodable_request())
            await context.abort(failure.code, failure.message, failure.trailers)
        return await handler(request, context)

    return call
