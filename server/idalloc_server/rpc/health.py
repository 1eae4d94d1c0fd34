"""gRPC's health service: whether this server serves. Open to all, so nobody may hold up others in it."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.door import Context
from idalloc_server.auth.rejected_callers import host_of
from idalloc_server.domain.errors import ServerDraining, Unauthenticated

# The most that watch at a time, and of these the most from one host. Each costs some kB, and the size of its request,
# for as long as it likes, and need not say who it is.
MAX_WATCHES = 2_000
MAX_WATCHES_OF_HOST = 200
MAX_REQUEST_BYTES = 1_000

# The name of the check of the store: where that fails, a server may still serve from its leases.
STORE = "store"

_Response = health_pb2.HealthCheckResponse
# Older packages have neither this nor the method.
_ListResponse: Any = getattr(health_pb2, "HealthListResponse", None)


class HealthServicer(health_pb2_grpc.HealthServicer):
    """See health.proto. One status for all services, and one for the store; NOT_SERVING at first.

    That of the package grpcio-health-checking writes while it holds a lock: a client that never reads would keep the
    others, and the server's stop, waiting for it.

    Args:
        services: The names it is asked for, besides the empty one.
        certificates: Checks client certificates; None where clients show none.
    """

    def __init__(self, services: Iterable[str], certificates: ClientCertificates | None = None) -> None:
        self._certificates = certificates
        self._services = frozenset(["", *services])
        self._statuses: dict[str, int] = dict.fromkeys([*self._services, STORE], _Response.NOT_SERVING)
        self._changed = asyncio.Event()
        self._ending = False
        self._watches: Counter[str] = Counter()

    def turn(self, *, serving: bool) -> None:
        """Tells all who watch, and all who ask from now on."""
        self._turn(self._services, serving)

    def turn_store(self, *, works: bool) -> None:
        """Does the same for the store."""
        self._turn([STORE], works)

    def _turn(self, names: Iterable[str], serving: bool) -> None:
        statuses = self._statuses | dict.fromkeys(names, _Response.SERVING if serving else _Response.NOT_SERVING)
        if statuses != self._statuses:
            self._statuses = statuses
            self._changed.set()
            self._changed = asyncio.Event()

    def end(self) -> None:
        """Ends all watches, which would last as long as their clients."""
        self._ending = True
        self._changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """See health.proto."""
        await self._check_certificate(context)
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _Response(status=self._statuses[request.service])

    async def List(self, request: Any, context: Context) -> Any:
        """See health.proto."""
        await self._check_certificate(context)
        return _ListResponse(statuses={name: _Response(status=each) for name, each in self._statuses.items()})

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        """See health.proto."""
        if request.ByteSize() > MAX_REQUEST_BYTES:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request has over {MAX_REQUEST_BYTES} bytes")
        host = host_of(context.peer())
        if self._watches[host] >= MAX_WATCHES_OF_HOST or self._watches.total() >= MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watch already: ask with Check")
        self._watches[host] += 1
        try:
            told = None
            while True:
                changed = self._changed
                status = self._statuses.get(request.service, _Response.SERVICE_UNKNOWN)
                if status != told:
                    await self._check_certificate(context)
                    await context.write(_Response(status=status))
                    told = status
                if self._ending:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, str(ServerDraining()))
                await changed.wait()
        finally:
            self._watches[host] -= 1
            if not self._watches[host]:
                del self._watches[host]

    async def _check_certificate(self, context: Context) -> None:
        """Ends the call where the client's certificate has ended."""
        if self._certificates is not None:
            try:
                self._certificates.check(context)
            except Unauthenticated as refusal:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(refusal))
