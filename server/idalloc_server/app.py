"""The composition root: builds all parts of a server, starts them and stops them."""

import asyncio
import gc
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib.metadata import version

import structlog

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.access_file import AccessFile
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.config import Settings
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.clock import Clock, SystemClock
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.idempotency.allocator import IdempotentAllocator
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.http.port import HttpPort
from idalloc_server.listen import transport
from idalloc_server.listen.reservation import ReservedAddress, cannot_bind
from idalloc_server.listen.tls import Certificates
from idalloc_server.listen_address import unix_path
from idalloc_server.process_mode import ProcessMode
from idalloc_server.rpc.calls import CallLayer
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.health import HealthServicer
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.rpc.reflection import AuthenticatedReflection
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.store.urls import open_store
from idalloc_server.telemetry.logs import log_burned, lost_lines, watch_burned
from idalloc_server.telemetry.metrics import CallMetrics, Counts

# The share of drain_timeout after which running streams are ended.
STREAMS_SHARE = 0.8
# The pause between attempts to open an unavailable store at startup.
OPEN_RETRY_SECONDS = 1.0
# A stop closes the port when no call arrived for this long and none runs. grpc answers a call that arrives during the
# close with CANCELLED, which callers do not retry.
QUIET_SECONDS = 0.1
# The longest wait for that: calls may run long, and callers may send without a pause.
MAX_QUIET_WAIT_SECONDS = 1.0
# The longest wait for clients to read the last replies and to acknowledge that their connection closes.
LAST_REPLIES_SECONDS = 5.0
# The grace of the stop that sends GOAWAY; a stop without grace ends it. If both ended in one turn of the event loop,
# grpcio would use a server that it has destroyed, and crash.
UNENDING_GRACE_SECONDS = 86_400.0
# A Unix socket is accessible to the server's user and group.
SOCKET_UMASK = 0o117
# Without the error's text: callers without authentication read it.
STORE_FAILS = "the last calls of the store failed; see the log"
# The longest wait at a stop for the store to take unused ids back.
RELEASE_SECONDS = 5.0

_log = structlog.get_logger("idalloc")


async def serve(settings: Settings, mode: ProcessMode) -> None:
    """Serve until a stop signal, then drain and return unused ids to the store.

    Args:
        settings: All settings.
        mode: Whether this process is the whole server or one of its workers.

    Raises:
        StartRefused: A setting or the store prevents the start.
        StoreFailure: The store was not reached within ``store_timeout``, or rejected a statement.
    """
    if signal.SIGHUP not in mode.stop_signals:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, mode.reload_requested.set)
    clock = SystemClock()
    is_worker = mode.workers is not None
    listener = _Listener(settings, mode, clock)
    http = HttpPort(settings if not is_worker else None, listener.access_control, clock)
    store = open_store(settings.store, clock, settings.store_timeout)
    try:
        await http.start()
        await _open(store, settings.store_timeout)
        start_timestamps = StartTimestamps(
            store,
            clock,
            prefix=settings.node_prefix,
            holder=listener.name,
            max_clock_skew=settings.max_clock_skew,
            prefix_conflict=settings.prefix_conflict,
            store_timeout=settings.store_timeout,
            is_shared=is_worker,
        )
        node = _Node(settings, mode, clock, store, listener, start_timestamps, await start_timestamps.start())
        http.source = node
        if is_worker:
            listener.bind()
        welcome = f"idalloc {version('idalloc')} serves on {listener.address}, store {store.address}"
        await node.serve_until_stopped(f"{welcome}, prefix {settings.node_prefix}{http.welcome}")
    finally:
        await http.close()
        await listener.server.stop(None)
        await store.close()
        listener.release_address()


async def _open(store: Store, timeout: float) -> None:
    """Open the store; retry while it is unavailable, for ``timeout`` seconds at most."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        try:
            await store.open()
            return
        except StoreUnavailable as error:
            if loop.time() + OPEN_RETRY_SECONDS > deadline:
                raise
            _log.warning("store_unavailable", store=store.address, error=str(error))
        await asyncio.sleep(OPEN_RETRY_SECONDS)


def _allocation_config(settings: Settings) -> AllocationConfig:
    return AllocationConfig(
        settings.lease_ttl,
        settings.store_timeout,
        settings.auto_create_sequences,
        max_clock_skew=settings.max_clock_skew,
        outage_reserve=settings.outage_reserve,
        max_reserved_ids=settings.max_reserved_ids,
        max_sequences=settings.max_sequences,
    )


async def _log_every_second(*logs: Callable[[], None]) -> None:
    """Write logs every second, until cancelled."""
    while True:
        await asyncio.sleep(1)
        for log in logs:
            log()


class _Listener:
    """What faces the callers: the gRPC server on its address, its certificates, and access control."""

    def __init__(self, settings: Settings, mode: ProcessMode, clock: Clock) -> None:
        is_worker = mode.workers is not None
        self.access_file = AccessFile(settings.access) if settings.access else None
        self.access_control = AccessControl(
            clock,
            settings.max_ids_per_call,
            self.access_file.read(may_be_empty=mode.requires_authentication) if self.access_file else None,
            requires_authentication=mode.requires_authentication,
            metadata_of=transport.metadata_reader(settings.transport),
            certificates=ClientCertificates(clock) if settings.tls_client_ca else None,
        )
        transport.check(settings, authenticates=self.access_control.requires_authentication)
        self.certificates = None
        if settings.tls_cert:
            self.certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._credentials = self.certificates.credentials() if self.certificates else None
        self.server = transport.make_server(
            settings.transport, reuse_port=is_worker, max_connection_age=settings.max_connection_age
        )
        self.address = settings.listen
        self._reserved = None if is_worker else ReservedAddress(settings.listen)
        # Bind before the store is opened: a port in use costs no store call. A worker binds later, since
        # connections to its port would wait for it while other workers could answer. Its supervisor has reserved the
        # port.
        if not is_worker:
            self.bind()
        # Holds the prefix.
        self.name = f"{socket.gethostname()} {self.address}"

    def bind(self) -> None:
        """Bind the address, and put the port in use into it; the server answers once started."""
        listen, server = self.address, self.server
        before = os.umask(SOCKET_UMASK)
        try:
            if self._credentials:
                port = server.add_secure_port(listen, self._credentials)
            else:
                port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise cannot_bind(listen, error) from None
        finally:
            os.umask(before)
        if not unix_path(listen):
            self.address = f"{listen.rpartition(':')[0]}:{port}"

    def release_address(self) -> None:
        """Release the address for other processes; a worker's is released by its supervisor."""
        if self._reserved:
            self._reserved.close()


class _Node:
    """A server process on an open store, with its own start timestamp."""

    def __init__(
        self,
        settings: Settings,
        mode: ProcessMode,
        clock: Clock,
        store: Store,
        listener: _Listener,
        start_timestamps: StartTimestamps,
        start: StartTimestamp,
    ) -> None:
        self._mode = mode
        self._listener = listener
        self._can_send_goaway = transport.can_send_goaway(settings.transport)
        self._start_timestamps = start_timestamps
        self._allocator = Allocator(store, clock, _allocation_config(settings))
        offset, increment = settings.auto_increment_offset, settings.auto_increment_increment
        self._doc_ids = DocIdGenerator(start_timestamps, start, offset=offset, increment=increment)
        self._request_ids = IdempotentAllocator(
            self._allocator,
            store,
            clock,
            node=listener.name,
            window=settings.request_id_window,
            store_timeout=settings.store_timeout,
        )
        self._sequence_service = SequenceService(
            store, clock, self._allocator, store_timeout=settings.store_timeout, max_clock_skew=settings.max_clock_skew
        )
        self._metrics = CallMetrics()
        self._draining = Draining(self._metrics)
        self._calls = CallLayer(
            self._metrics,
            self._draining,
            listener.access_control,
            self._allocator.store_health,
            log_each=settings.log_level == "debug",
            push_back=transport.can_push_back(settings.transport),
        )
        servicers = (
            IdAllocatorServicer(
                self._allocator,
                self._doc_ids,
                clock,
                settings.max_ids_per_call,
                self._request_ids,
                UuidGenerator(clock),
                start.node,
            ),
            SequencesServicer(self._sequence_service),
            NodeServicer(self._allocator, self._doc_ids, store.address, mode.node_settings, mode.workers),
        )
        for servicer in servicers:
            self._calls.add_service(listener.server, servicer)
        names = [each.descriptor.full_name for each in servicers]
        self._health = HealthServicer(names, listener.access_control.certificates)
        self._health.add_to(listener.server)
        names.append(HealthServicer.descriptor.full_name)
        self._reflection = AuthenticatedReflection(names, listener.access_control, self._calls)
        self._reflection.add_to(listener.server)

    async def serve_until_stopped(self, welcome: str) -> None:
        """Serve until a stop signal, then drain. Before this call a stop signal ends the process at once."""
        for number in self._mode.stop_signals:
            asyncio.get_running_loop().add_signal_handler(number, self._mode.stop_requested.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                jobs = (
                    self._start_timestamps.keep_prefix(),
                    self._allocator.close_idle_sequences(),
                    self._request_ids.prune_answers(),
                )
                monitors = [
                    self._mode.report_counts(self._counts, self.checks),
                    watch_burned(self._allocator.burned.pop_new),
                    _log_every_second(self._listener.access_control.audit.log_totals, self._calls.failed.log),
                    self._allocator.store_health.evaluate_every_second(
                        lambda error: self._health.set_store_serving(serving=not error)
                    ),
                    self._reload(),
                ]
                if self._listener.access_file:
                    monitors.append(self._listener.access_file.follow(self._apply_access))
                background = [tasks.create_task(job) for job in (*jobs, *monitors)]
                await self._listener.server.start()
                await self._mode.wait_all_ready(self._doc_ids, self._listener.access_control)
                self._health.set_serving(serving=True)
                self._health.set_store_serving(serving=True)  # The start used it.
                # Exempt the long-lived objects from further collections.
                gc.collect()
                gc.freeze()
                self._mode.report_serving(welcome)
                await self._mode.stop_requested.wait()
                self._mode.report_stopping()
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            await self._release()

    async def _reload(self) -> None:
        """Reload the files on each request, until cancelled."""
        while True:
            await self._mode.reload_requested.wait()
            self._mode.reload_requested.clear()
            _log.info("reloading")
            if self._listener.access_file:
                self._listener.access_file.reload()
            if self._listener.certificates:
                await asyncio.to_thread(self._listener.certificates.reload)

    def _apply_access(self, access: AccessPolicy) -> None:
        self._listener.access_control.apply_policy(access)
        if self._listener.access_control.requires_authentication:
            self._mode.require_authentication()

    def checks(self) -> dict[str, str]:
        """Return the results of the checks of readiness, by name; empty for a check that passes."""
        return {
            "shutdown": "the server drains" if self._draining.has_begun else "",
            "store": STORE_FAILS if self._allocator.store_health.error else "",
        }

    def _counts(self) -> Counts:
        burned = Counter({str(cause): count for cause, count in self._allocator.burned.by_cause.items()})
        return Counts(self._metrics, burned, self._allocator.lease_count, lost_lines())

    async def _drain(self) -> None:
        """Reject new calls, close connections, and wait for running calls; end streams near ``drain_timeout``."""
        timeout = self._mode.drain_timeout
        loop = asyncio.get_running_loop()
        start = loop.time()

        def remaining(share: float = 1.0) -> float:
            return max(0.0, start + timeout * share - loop.time())

        _log.info("draining", calls=self._metrics.in_flight, drain_timeout=timeout)
        self._health.set_serving(serving=False)
        if self._can_send_goaway:
            self._draining.hold_new_calls()
        else:
            self._draining.reject_calls()
        await self._draining.wait_until_quiet(QUIET_SECONDS, timeout=min(MAX_QUIET_WAIT_SECONDS, timeout / 2))
        closing = None
        if self._can_send_goaway:
            closing = asyncio.create_task(self._listener.server.stop(UNENDING_GRACE_SECONDS))
            await asyncio.sleep(0)  # It has sent GOAWAY: rejections arrive after it, so their callers reconnect.
        with suppress(TimeoutError):  # The supervisor kills an unresponsive worker later.
            await asyncio.wait_for(self._mode.wait_all_closed(), MAX_QUIET_WAIT_SECONDS)
        self._draining.reject_calls()
        if not await self._draining.wait_for_calls(timeout=remaining(STREAMS_SHARE)):
            self._draining.end_streams()
            await self._draining.wait_for_calls(timeout=remaining())
        self._health.end()
        self._reflection.end()
        if closing:
            # It ends when each client has read all replies and its connection is closed.
            await asyncio.wait({closing}, timeout=min(LAST_REPLIES_SECONDS, remaining()))
        else:
            await asyncio.sleep(QUIET_SECONDS)  # Native's stop does not wait for threads that write the last replies.
        await self._listener.server.stop(None)
        if closing:
            await closing
        # The server does not wait for the handlers that it cancels (grpc/grpc#37239); they count burned ids.
        await self._draining.wait_for_calls(timeout=1)

    async def _release(self) -> None:
        """Return unused ids to the store, and release the prefix with the last worker."""
        in_time = await self._release_in_time(self._close())
        self._listener.access_control.audit.log_totals()
        self._calls.failed.log()
        for burn in self._allocator.burned.pop_new():
            log_burned(*burn)
        if await self._mode.wait_all_drained() and in_time:
            # All workers hold the prefix under one name.
            await self._release_in_time(self._start_timestamps.release())
        self._mode.report_final_counts(self._counts())

    async def _close(self) -> None:
        # Concurrently: none delays the others. The first two need no ids from the allocator any more.
        try:
            await asyncio.gather(
                self._sequence_service.finish_changes(),
                self._request_ids.finish_recording(),
                self._allocator.return_leases(),
                self._doc_ids.cancel_claims(),
            )
        finally:  # after a timeout, burn what is left
            self._request_ids.abandon()
            self._allocator.abandon()

    async def _release_in_time(self, work: Coroutine[None, None, None]) -> bool:
        """Await store calls of a stop; return whether they ended within ``RELEASE_SECONDS``."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await work
        except TimeoutError:
            _log.warning("release_timed_out", timeout=RELEASE_SECONDS)
            return False
        return True
