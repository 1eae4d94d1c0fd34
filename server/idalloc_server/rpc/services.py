"""The services on the gRPC port of a process: which are served, and how they end at a stop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

import structlog

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.store.health import StoreHealth
from idalloc_server.listen import transport
from idalloc_server.rpc.calls import CallLayer, Servicer, TransportTraits
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.health import HealthServicer
from idalloc_server.rpc.port import LEFT_ERRORS, RpcPort
from idalloc_server.rpc.reflection import AuthenticatedReflection
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry.metrics import CallMetrics
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


class RpcServices:
    """This server's own services, health and reflection, with one layer around every call.

    Args:
        port: The port that they are served on.
        access_control: Authenticates, authorizes and limits the calls.
        metrics: Counts the calls.
        store_health: The store's health, which failed calls change.
        traces: Traces the calls; None if traces are off.
    """

    health: HealthServicer

    def __init__(
        self,
        settings: Settings,
        port: RpcPort,
        access_control: AccessControl,
        metrics: CallMetrics,
        store_health: StoreHealth,
        traces: Traces | None,
    ) -> None:
        self._port = port
        self._access_control = access_control
        self._metrics = metrics
        self._can_send_goaway = transport.can_send_goaway(settings.transport)
        self.draining = Draining(metrics)
        self.calls = CallLayer(
            metrics,
            self.draining,
            access_control,
            store_health,
            transport=TransportTraits(transport.can_push_back(settings.transport), LEFT_ERRORS),
            log_each=settings.log_level == "debug",
            traces=traces,
        )

    def add(self, *servicers: Servicer) -> None:
        """Serve the services of servicers, health and reflection."""
        access_control = self._access_control
        names = [each.descriptor.full_name for each in servicers]
        self.health = HealthServicer(names, access_control.certificates, access_control.peer_of)
        names.append(HealthServicer.descriptor.full_name)
        self._reflection = AuthenticatedReflection(names, access_control, self.calls, self.draining)
        self._port.add(*map(self.calls.service, servicers), self.health.service(), *self._reflection.services())

    def set_serving(self) -> None:
        """Set the health of the services and of the store, which the start used."""
        self.health.set_serving(serving=True)
        self.health.set_store_serving(serving=True)

    async def drain(
        self,
        timeout: float,
        drain_other_port: Callable[[float], Coroutine[None, None, None]],
        wait_all_closed: Callable[[], Awaitable[None]],
    ) -> None:
        """Reject new calls, close connections, and wait for running calls.

        End streams near ``timeout``.

        Args:
            timeout: How long running calls may continue, in seconds.
            drain_other_port: Drains another port at the same time, within its argument in seconds.
            wait_all_closed: See ``ProcessMode``.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()

        def remaining(share: float = 1.0) -> float:
            return max(0.0, start + timeout * share - loop.time())

        _log.info("draining", calls=self._metrics.in_flight, drain_timeout=timeout)
        self.health.set_serving(serving=False)
        if self._can_send_goaway:
            self.draining.hold_new_calls()
        else:
            self.draining.reject_calls()
        # Beside the calls: each connection ends when its statement has ended.
        beside = asyncio.create_task(drain_other_port(remaining(STREAMS_SHARE)))
        await self.draining.wait_until_quiet(QUIET_SECONDS, timeout=min(MAX_QUIET_WAIT_SECONDS, timeout / 2))
        closing = None
        if self._can_send_goaway:
            closing = asyncio.create_task(self._port.server.stop(UNENDING_GRACE_SECONDS))
            await asyncio.sleep(0)  # It has sent GOAWAY: rejections arrive after it, so their callers reconnect.
        with suppress(TimeoutError):  # The supervisor kills an unresponsive worker later.
            await asyncio.wait_for(wait_all_closed(), MAX_QUIET_WAIT_SECONDS)
        self.draining.reject_calls()
        if not await self.draining.wait_for_calls(timeout=remaining(STREAMS_SHARE)):
            self.draining.end_streams()
            await self.draining.wait_for_calls(timeout=remaining())
        await beside
        self.health.end()
        if closing:
            # It ends when each client has read all replies and its connection is closed.
            await asyncio.wait({closing}, timeout=min(LAST_REPLIES_SECONDS, remaining()))
        else:
            await asyncio.sleep(QUIET_SECONDS)  # Native's stop does not wait for threads that write the last replies.
        await self._port.server.stop(None)
        if closing:
            await closing
        # The server does not wait for the handlers that it cancels (grpc/grpc#37239); they count
        # burned ids.
        await self.draining.wait_for_calls(timeout=1)
