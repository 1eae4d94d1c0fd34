"""The gRPC port of a process: which services are served, and how they end at a stop."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import structlog

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import Clock
from idalloc_server.listen import open_files, transport
from idalloc_server.listen.held_address import HeldAddress
from idalloc_server.listen.tls import Certificates
from idalloc_server.node.mode import ProcessMode
from idalloc_server.node.ports import Port, ServedNode
from idalloc_server.rpc.calls import CallLayer, Servicer
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.health import HealthServicer
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.items import DocIdSource, RangeSource
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.rpc.reflection import AuthenticatedReflection
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.rpc.server import add_service, bind
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry import families
from idalloc_server.telemetry.metrics import CallMetrics, Counts
from idalloc_server.telemetry.traces import Traces

# The share of drain_timeout after which running streams are ended.
STREAMS_SHARE = 0.8
# A stop closes the port when no call arrived for this long and none runs. grpc answers a call that
# arrives during the close with CANCELLED, which callers do not retry.
QUIET_SECONDS = 0.1
# The longest wait for that: calls may run long, and callers may send without a pause.
MAX_QUIET_WAIT_SECONDS = 1.0
# The longest wait for clients to read the last replies and to acknowledge the close of their
# connections.
LAST_REPLIES_SECONDS = 5.0
# The grace of the stop that sends GOAWAY; a stop without grace ends it. If both ended in one turn
# of the event loop, grpcio would use a server that it has destroyed, and crash.
UNENDING_GRACE_SECONDS = 86_400.0

_log = structlog.get_logger("idalloc")


class RpcPort(Port):
    """This server's own services, health and reflection, with one layer around every call.

    Args:
        settings: All settings.
        access_control: Authenticates, authorizes and limits the calls.
        clock: The clock of leases and dates.
        mode: Whether this process is one of several workers, which bind the same port.
        traces: Traces the calls; None if traces are off.

    Raises:
        StartRefused: A file or the address cannot be used.
    """

    health: HealthServicer  # from the start on
    calls: CallLayer  # from the start on

    def __init__(
        self,
        settings: Settings,
        access_control: AccessControl,
        clock: Clock,
        mode: ProcessMode,
        *,
        traces: Traces | None,
    ) -> None:
        self._settings = settings
        self._access_control = access_control
        self._clock = clock
        self._traces = traces
        self._wait_all_closed = mode.wait_all_closed
        self._shares_port = mode.workers is not None
        # The TLS files; None without TLS.
        self.certificates = Certificates(settings) if transport.uses_tls(settings) else None
        self._server = transport.make_server(
            settings.transport,
            reuse_port=self._shares_port,
            max_connection_age=settings.max_connection_age,
            max_connections=open_files.most_grpc_connections(settings),
        )
        self._address = settings.listen  # with the port in use once bound
        self._held_address = None if self._shares_port else HeldAddress(settings.listen)
        self._transport = transport.TRANSPORTS[settings.transport]
        self.metrics = CallMetrics()
        self.draining = Draining(self.metrics)

    @property
    def addresses(self) -> Mapping[str, str]:
        return {"address": self._address}

    async def open(self) -> None:
        # A worker binds later: connections to its port would wait for it while others could answer.
        if not self._shares_port:
            self._bind()

    def _bind(self) -> None:
        self._address = bind(self._server, self._address, self.certificates)

    async def start(self, node: ServedNode) -> None:
        access_control = self._access_control
        settings = self._settings
        issuers = node.issuers
        allocator = issuers.allocator
        addresses = node.report.describe()
        self.calls = CallLayer(
            self.metrics,
            self.draining,
            access_control,
            allocator.store_health,
            transport=self._transport,
            log_each=settings.log_level == "debug",
            traces=self._traces,
        )
        ranges = RangeSource(
            allocator,
            issuers.request_ids,
            doc_ids=issuers.doc_ids,
            clock=self._clock,
            max_ids=settings.max_ids_per_call,
            node_id=issuers.start.node,
        )
        doc_ids = DocIdSource(issuers.doc_ids, settings.max_ids_per_call)
        servicers: tuple[Servicer, ...] = (
            IdAllocatorServicer(ranges, doc_ids, uuids=issuers.uuids, record_failure=self.calls.record_failure),
            SequencesServicer(issuers.sequences),
            NodeServicer(
                allocator,
                issuers.doc_ids,
                store=addresses["store"],
                changes=node.changes,
                witness=addresses.get("witness", ""),
            ),
        )
        names = [each.descriptor.full_name for each in servicers]
        self.health = HealthServicer(names, access_control.certificates, access_control.peer_of)
        names.append(HealthServicer.descriptor.full_name)
        self._reflection = AuthenticatedReflection(names, access_control, self.calls, self.draining)
        registered = self._transport.needs_registered_methods
        for service in (*map(self.calls.service, servicers), self.health.service(), *self._reflection.services()):
            add_service(self._server, service, registered=registered)
        if self._shares_port:
            self._bind()
        await self._server.start()

    def count(self, counts: Counts) -> None:
        counts.counters[families.STREAM_ANSWERS] = self.metrics.stream_answers

    async def close(self) -> None:
        await self._server.stop(None)
        if self._held_address:
            self._held_address.close()

    def set_serving(self) -> None:
        """Set the health of the services and of the store, which the start used."""
        self.health.set_serving(serving=True)
        self.health.set_store_serving(serving=True)

    async def drain(self, timeout: float) -> None:
        """Reject new calls, close connections, and wait for running calls.

        End streams near ``timeout``.

        Args:
            timeout: How long running calls may continue, in seconds.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()

        def remaining(share: float = 1.0) -> float:
            return max(0.0, start + timeout * share - loop.time())

        _log.info("draining", calls=self.metrics.in_flight, drain_timeout=timeout)
        self.health.set_serving(serving=False)
        if self._transport.can_send_goaway:
            self.draining.hold_new_calls()
        else:
            self.draining.reject_calls()
        await self.draining.wait_until_quiet(QUIET_SECONDS, timeout=min(MAX_QUIET_WAIT_SECONDS, timeout / 2))
        closing = None
        if self._transport.can_send_goaway:
            closing = asyncio.create_task(self._server.stop(UNENDING_GRACE_SECONDS))
            await asyncio.sleep(0)  # It has sent GOAWAY: rejections arrive after it, so their callers reconnect.
        with suppress(TimeoutError):  # The supervisor kills an unresponsive worker later.
            await asyncio.wait_for(self._wait_all_closed(), MAX_QUIET_WAIT_SECONDS)
        self.draining.reject_calls()
        if not await self.draining.wait_for_calls(timeout=remaining(STREAMS_SHARE)):
            self.draining.end_streams()
            await self.draining.wait_for_calls(timeout=remaining())
        self.health.end()
        if closing:
            # It ends when each client has read all replies and its connection is closed.
            await asyncio.wait({closing}, timeout=min(LAST_REPLIES_SECONDS, remaining()))
        else:
            await asyncio.sleep(QUIET_SECONDS)  # Native's stop does not wait for threads that write the last replies.
        await self._server.stop(None)
        if closing:
            await closing
        # The server does not wait for the handlers that it cancels (grpc/grpc#37239); they count
        # burned ids.
        await self.draining.wait_for_calls(timeout=1)
