"""The composition root: builds all parts of a server, starts them and stops them."""

import asyncio
import os
import signal
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass

import structlog

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.access_file import AccessFile
from idalloc_server.domain.clock import Clock, SystemClock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.files.descriptors import reserve
from idalloc_server.listen import transport
from idalloc_server.listen.callers import open_access_control
from idalloc_server.node import garbage
from idalloc_server.node.change import NodeChanges
from idalloc_server.node.issuers import Issuers
from idalloc_server.node.mode import ProcessMode
from idalloc_server.node.report import NodeReport
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.methods import METHOD_TYPES
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.rpc.port import RpcPort
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.rpc.services import RpcServices
from idalloc_server.settings.model import Settings
from idalloc_server.store.stores import Stores
from idalloc_server.store.urls import keeps_documents
from idalloc_server.telemetry.logs import log_every_second, watch_burned
from idalloc_server.telemetry.metrics import CallMetrics
from idalloc_server.telemetry.traces import Traces, open_traces
from idalloc_xproto import port as xproto_port
from idalloc_xproto.port import XProtocolPort

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
    if signal.SIGHUP not in mode.control.stop_signals:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, mode.control.reload_requested.set)
    clock = SystemClock()
    is_worker = mode.workers is not None
    access_file = AccessFile(settings.access_file) if settings.access_file else None
    access_control = open_access_control(
        settings, clock, access_file, requires_authentication=mode.requires_authentication
    )
    required = access_control.requires_authentication
    transport.check_settings(settings, requires_authentication=required)
    has_documents = keeps_documents(settings.store)
    xproto_port.check_settings(settings, keeps_documents=has_documents, requires_authentication=required)
    traces = open_traces(os.environ)
    port = RpcPort(settings, shares_port=is_worker)
    holder = f"{socket.gethostname()} {port.address}"
    http = None
    if (settings.http_listen or settings.probe_listen) and not is_worker:
        from idalloc_server.http.port import HttpPort  # only here: see HttpPort

        http = HttpPort(settings, access_control, clock, METHOD_TYPES)
    has_documents = bool(settings.xproto_listen)
    timeout = settings.store_timeout
    stores = Stores(settings.store, settings.witness, clock, timeout, traces, has_documents=has_documents)
    reserve.fill()
    try:
        if http:
            await http.start()
        await stores.open(mode.opening)
        issuers = await Issuers.claim(settings, clock, stores.counters, holder, mode.workers)
        opened = _Opened(settings, clock, stores, port, traces, access_file, access_control)
        node = _Node(opened, mode, issuers)
        if http:
            http.source = node.report
        if is_worker:
            port.bind()
        await node.start_xproto()
        await node.serve_until_stopped(http.urls if http else {})
    finally:
        if http:
            await http.close()
        await port.server.stop(None)
        await stores.close()
        port.release_address()
        reserve.close()
        if traces is not None:
            await traces.close()


@dataclass(frozen=True)
class _Opened:
    """What a start opens before the node: its stores, its port, and who may call."""

    settings: Settings
    clock: Clock
    stores: Stores
    port: RpcPort
    traces: Traces | None
    access_file: AccessFile | None
    access_control: AccessControl


class _Node:
    """A server process on an open store, with its own start timestamp."""

    def __init__(self, opened: _Opened, mode: ProcessMode, issuers: Issuers) -> None:
        settings, stores, access_control = opened.settings, opened.stores, opened.access_control
        allocator, doc_ids = issuers.allocator, issuers.doc_ids
        self._opened = opened
        self._mode = mode
        self._issuers = issuers
        changes = NodeChanges(doc_ids, mode.node_settings, mode.workers)
        self._xproto = XProtocolPort(
            settings,
            access_control,
            stores.documents,
            doc_ids,
            changes.change,
            allocator.burned,
            shares_port=mode.workers is not None,
        )
        metrics = CallMetrics()
        self._rpc = RpcServices(settings, opened.port, access_control, metrics, allocator.store_health, opened.traces)
        self.report = NodeReport(
            calls=metrics,
            issuers=issuers,
            audit=access_control.audit,
            store_calls=stores.calls,
            addresses={"address": opened.port.address, "store": stores.counters.address},
            workers=settings.workers,
            is_draining=lambda: self._rpc.draining.has_begun,
            add_port_metrics=self._xproto.count,
            witnessed=stores.witnessed,
        )
        self._rpc.add(
            IdAllocatorServicer(
                allocator,
                doc_ids,
                opened.clock,
                settings.max_ids_per_call,
                issuers.request_ids,
                issuers.uuids,
                issuers.start.node,
                self._rpc.calls.record_failure,
            ),
            SequencesServicer(issuers.sequences),
            NodeServicer(allocator, doc_ids, stores.counters.address, changes, stores.witness_address),
        )

    async def start_xproto(self) -> None:
        """Start the X Protocol's port. If that is refused, nothing else of the node runs yet.

        Raises:
            StartRefused: Its address cannot be used.
        """
        try:
            await self._xproto.start()
        except StartRefused:
            await self._xproto.close()
            if self._mode.workers is None:
                await self._issuers.release_prefix()
            raise

    async def serve_until_stopped(self, ports: Mapping[str, str]) -> None:
        """Serve until a stop signal, then drain.

        Before this call a stop signal ends the process at once.

        Args:
            ports: The URLs of the HTTP port and of that of probes, see ``HttpPort``.
        """
        opened, mode = self._opened, self._mode
        for number in mode.control.stop_signals:
            asyncio.get_running_loop().add_signal_handler(number, mode.control.stop_requested.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(job) for job in self._background()]
                await opened.port.server.start()
                await mode.wait_all_ready(self._issuers.doc_ids, opened.access_control, opened.stores.counters.opened)
                self._rpc.set_serving()
                garbage.freeze()
                mode.report_serving(
                    opened.port.address,
                    opened.stores.counters.address,
                    opened.settings.node_prefix,
                    {**ports, "xproto": self._xproto.address},
                )
                await mode.control.stop_requested.wait()
                mode.report_stopping()
                await self._rpc.drain(mode.control.drain_timeout, self._xproto.drain, mode.wait_all_closed)
                for task in background:
                    task.cancel()
        finally:
            await self._xproto.close()
            await self._release()

    def _background(self) -> list[Coroutine[None, None, None]]:
        opened, allocator = self._opened, self._issuers.allocator
        jobs = [
            *self._issuers.background(),
            self.report.sample(),
            self.report.survey(),
            self._mode.report(self.report),
            watch_burned(allocator.burned.pop_new),
            garbage.freeze_new_sequences(lambda: allocator.sequence_count),
            log_every_second(opened.access_control.audit.log_totals, self._rpc.calls.failed.log),
            allocator.store_health.evaluate_every_second(
                lambda error: self._rpc.health.set_store_serving(serving=not error)
            ),
            self._reload(),
            reserve.refill(),
        ]
        if opened.settings.http_listen:
            jobs.append(self._issuers.index.follow())
        if opened.access_file:
            jobs.append(opened.access_file.follow(self._apply_access))
        return jobs

    async def _reload(self) -> None:
        """Reload the files on each request, until cancelled."""
        opened, control = self._opened, self._mode.control
        while True:
            await control.reload_requested.wait()
            control.reload_requested.clear()
            _log.info("reloading")
            if opened.access_file:
                opened.access_file.reload()
            if opened.port.certificates:
                await asyncio.to_thread(opened.port.certificates.reload)

    def _apply_access(self, access: AccessPolicy) -> None:
        self._opened.access_control.apply_policy(access)
        if self._opened.access_control.requires_authentication:
            self._mode.require_authentication()

    async def _release(self) -> None:
        """Return unused ids to the store, and release the prefix with the last worker."""
        in_time = await self._issuers.close()
        self._opened.access_control.audit.log_totals()
        self._rpc.calls.failed.log()
        if await self._mode.wait_all_drained() and in_time:
            await self._issuers.release_prefix()  # All workers hold it under one name.
        self._mode.report_final_counts(self.report.final_counts())
