"""The composition root: builds all parts of a server, starts them and stops them."""

import asyncio
import gc
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress

import structlog

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.domain.administration.index import SequenceIndex
from idalloc_server.domain.administration.service import SequenceService
from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.allocation.config import AllocationConfig
from idalloc_server.domain.clock import Clock, SystemClock
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.document_ids.start_timestamps import StartTimestamp, StartTimestamps
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.domain.idempotency.allocator import IdempotentAllocator
from idalloc_server.domain.store.protocol import WRITES, Store
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.listen import transport
from idalloc_server.listener import Listener
from idalloc_server.node_report import NodeReport
from idalloc_server.process_mode import ProcessMode
from idalloc_server.rpc.calls import CallLayer
from idalloc_server.rpc.draining import Draining
from idalloc_server.rpc.health import HealthServicer
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.methods import METHOD_TYPES
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.rpc.reflection import AuthenticatedReflection
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.settings.model import Settings
from idalloc_server.store.counted import counted
from idalloc_server.store.urls import open_store
from idalloc_server.telemetry.logs import log_burned, watch_burned
from idalloc_server.telemetry.metrics import CallMetrics
from idalloc_server.xproto_port import XProtocolPort

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
    listener = Listener(settings, mode, clock)
    http = None
    if settings.http_listen and not is_worker:
        from idalloc_server.http.port import HttpPort  # only here: see HttpPort

        http = HttpPort(settings, listener.access_control, clock, METHOD_TYPES)
    store_calls: Counter[str] = Counter()
    store = counted(open_store(settings.store, clock, settings.store_timeout), store_calls)
    if listener.traces is not None:
        store = listener.traces.trace_writes(store, store.address, WRITES)
    try:
        if http:
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
        node = _Node(
            settings, mode, clock, store, listener, start_timestamps, await start_timestamps.start(), store_calls
        )
        if http:
            http.source = node.report
        if is_worker:
            listener.bind()
        await node.serve_until_stopped(store.address, settings.node_prefix, http.url if http else "")
    finally:
        if http:
            await http.close()
        await listener.server.stop(None)
        await store.close()
        listener.release_address()
        if listener.traces is not None:
            await listener.traces.close()


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


class _Node:
    """A server process on an open store, with its own start timestamp."""

    def __init__(
        self,
        settings: Settings,
        mode: ProcessMode,
        clock: Clock,
        store: Store,
        listener: Listener,
        start_timestamps: StartTimestamps,
        start: StartTimestamp,
        store_calls: Counter[str],
    ) -> None:
        self._mode = mode
        self._serves_http = bool(settings.http_listen)
        self._clock = clock
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
        self._xproto = XProtocolPort(settings, mode, listener.access_control, self._doc_ids, self._allocator.burned)
        self._index = SequenceIndex(self._sequence_service, clock)
        self._metrics = CallMetrics()
        self._draining = Draining(self._metrics)
        self._calls = CallLayer(
            self._metrics,
            self._draining,
            listener.access_control,
            self._allocator.store_health,
            log_each=settings.log_level == "debug",
            traces=listener.traces,
            push_back=transport.can_push_back(settings.transport),
        )
        self.report = NodeReport(
            self._metrics,
            self._allocator,
            self._doc_ids,
            self._sequence_service,
            start_timestamps,
            listener.access_control.audit,
            store_calls,
            self._index,
            {"address": listener.address, "store": store.address},
            settings.workers,
            lambda: self._draining.has_begun,
            self._xproto.count,
        )
        self._add_services(settings, store, start)

    def _add_services(self, settings: Settings, store: Store, start: StartTimestamp) -> None:
        listener, mode = self._listener, self._mode
        servicers = (
            IdAllocatorServicer(
                self._allocator,
                self._doc_ids,
                self._clock,
                settings.max_ids_per_call,
                self._request_ids,
                UuidGenerator(self._clock),
                start.node,
                self._calls.record_failure,
            ),
            SequencesServicer(self._sequence_service),
            NodeServicer(self._allocator, self._doc_ids, store.address, mode.node_settings, mode.workers),
        )
        for servicer in servicers:
            self._calls.add_service(listener.server, servicer)
        names = [each.descriptor.full_name for each in servicers]
        self._health = HealthServicer(names, listener.access_control.certificates, listener.access_control.peer_of)
        self._health.add_to(listener.server)
        names.append(HealthServicer.descriptor.full_name)
        self._reflection = AuthenticatedReflection(names, listener.access_control, self._calls)
        self._reflection.add_to(listener.server)

    async def serve_until_stopped(self, store: str, prefix: int, http: str) -> None:
        """Serve until a stop signal, then drain. Before this call a stop signal ends the process at once."""
        for number in self._mode.stop_signals:
            asyncio.get_running_loop().add_signal_handler(number, self._mode.stop_requested.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                jobs = (
                    self._start_timestamps.keep_prefix(self._allocator.store_health.record_success),
                    self._allocator.close_idle_sequences(),
                    self._request_ids.prune_answers(),
                )
                monitors = [
                    self.report.sample(),
                    self.report.survey(),
                    self._mode.report(self.report),
                    watch_burned(self._allocator.burned.pop_new),
                    _log_every_second(self._listener.access_control.audit.log_totals, self._calls.failed.log),
                    self._allocator.store_health.evaluate_every_second(
                        lambda error: self._health.set_store_serving(serving=not error)
                    ),
                    self._reload(),
                ]
                if self._serves_http:
                    monitors.append(self._index.follow())
                if self._listener.access_file:
                    monitors.append(self._listener.access_file.follow(self._apply_access))
                background = [tasks.create_task(job) for job in (*jobs, *monitors)]
                await self._xproto.start()
                await self._listener.server.start()
                await self._mode.wait_all_ready(self._doc_ids, self._listener.access_control)
                self._health.set_serving(serving=True)
                self._health.set_store_serving(serving=True)  # The start used it.
                # Exempt the long-lived objects from further collections.
                gc.collect()
                gc.freeze()
                self._mode.report_serving(self._listener.address, store, prefix, http=http, xproto=self._xproto.address)
                await self._mode.stop_requested.wait()
                self._mode.report_stopping()
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            await self._xproto.close()
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
        # Beside the calls: each connection ends when its statement has ended.
        documents = asyncio.create_task(self._xproto.drain(remaining(STREAMS_SHARE)))
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
        await documents
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
        self._mode.report_final_counts(self.report.final_counts())

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
