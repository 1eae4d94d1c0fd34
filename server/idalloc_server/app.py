"""The composition root: builds all parts of a server, starts them and stops them."""

import asyncio
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass

import structlog

from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.access_file import AccessFile
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.files.descriptors import spare
from idalloc_server.listen import transport
from idalloc_server.listen.callers import open_access_control
from idalloc_server.node import garbage
from idalloc_server.node.change import NodeChanges
from idalloc_server.node.issuers import Issuers
from idalloc_server.node.mode import ProcessMode
from idalloc_server.node.ports import Port, ServedNode, other_ports
from idalloc_server.node.report import NodeReport
from idalloc_server.rpc.methods import METHOD_TYPES
from idalloc_server.rpc.port import RpcPort
from idalloc_server.settings.model import Settings
from idalloc_server.store.stores import Stores
from idalloc_server.telemetry import service_manager
from idalloc_server.telemetry.logs import log_every_second, watch_burned
from idalloc_server.telemetry.traces import open_traces

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
    access_file = AccessFile(settings.access_file) if settings.access_file else None
    access_control = open_access_control(
        settings, clock, access_file, requires_authentication=mode.requires_authentication
    )
    required = access_control.requires_authentication
    transport.check_settings(settings, requires_authentication=required)
    factories = other_ports(settings).values()
    for factory in factories:
        factory.check_settings(settings, requires_authentication=required)
    traces = open_traces(os.environ)
    rpc = RpcPort(settings, access_control, clock, mode, traces=traces)
    further = [factory(settings, access_control, shares_port=mode.workers is not None) for factory in factories]
    own: list[Port] = [rpc]
    if mode.workers is None and (settings.http_listen or settings.probe_listen):
        from idalloc_server.http.port import HttpPort  # only here: see HttpPort

        own.insert(0, HttpPort(settings, access_control, clock, METHOD_TYPES))
    ports = [*further, *own]  # gRPC's is the last one: while another cannot start, it serves nothing
    stores = Stores(settings.store, settings.witness, clock, timeout=settings.store_timeout, traces=traces)
    spare.fill()
    try:
        for port in own:
            await port.open()
        await stores.open(mode.opening, [each.open for each in further])
        holder = f"{socket.gethostname()} {rpc.addresses['address']}"
        issuers = await Issuers.claim(settings, clock, stores.counters, holder=holder, workers=mode.workers)
        node = _Node(
            settings=settings,
            mode=mode,
            stores=stores,
            issuers=issuers,
            rpc=rpc,
            further=further,
            ports=ports,
            access_file=access_file,
            access_control=access_control,
        )
        await node.serve_until_stopped()
    finally:
        for port in ports:
            await port.close()
        await stores.close()
        spare.close()
        if traces is not None:
            await traces.close()


@dataclass(kw_only=True)
class _Node:
    """A server process on an open store, with its own start timestamp."""

    settings: Settings
    mode: ProcessMode
    stores: Stores
    issuers: Issuers
    rpc: RpcPort
    further: Sequence[Port]  # of other packages
    ports: Sequence[Port]  # all of them, in the order of their start
    access_file: AccessFile | None
    access_control: AccessControl

    def __post_init__(self) -> None:
        self.report = NodeReport(
            calls=self.rpc.metrics,
            issuers=self.issuers,
            audit=self.access_control.audit,
            store_calls=self.stores.calls,
            addresses={**self.rpc.addresses, "store": self.stores.counters.address},
            workers=self.settings.workers,
            is_draining=lambda: self.rpc.draining.has_begun,
            count_ports=[each.count for each in self.ports],
            witnessed=self.stores.witnessed,
        )

    async def _start_ports(self) -> None:
        """Start the ports. If one is refused, nothing else of the node runs yet."""
        changes = NodeChanges(self.issuers.doc_ids, self.mode.node_settings, self.mode.workers)
        node = ServedNode(self.issuers, changes, self.report)
        try:
            for port in self.ports:
                await port.start(node)
        except StartRefused:
            if self.mode.workers is None:
                await self.issuers.release_prefix()
            raise

    async def serve_until_stopped(self) -> None:
        """Serve until a stop signal, then drain.

        Before this call a stop signal ends the process at once.

        Raises:
            StartRefused: An address cannot be used.
        """
        mode = self.mode
        for number in mode.control.stop_signals:
            asyncio.get_running_loop().add_signal_handler(number, mode.control.stop_requested.set)
        await self._start_ports()  # now: calls that they accept must be drained
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [tasks.create_task(job) for job in self._background()]
                await mode.wait_all_ready(self.issuers.doc_ids, self.access_control, self.stores.counters.opened)
                self.rpc.set_serving()
                garbage.freeze()
                addresses = {name: address for port in self.ports for name, address in port.addresses.items()}
                mode.report_serving(
                    addresses.pop("address"),
                    self.stores.counters.address,
                    self.settings.node_prefix,
                    addresses,
                )
                await mode.control.stop_requested.wait()
                if mode.workers is None:  # else the supervisor notifies
                    service_manager.notify("STOPPING=1")
                async with asyncio.TaskGroup() as draining:
                    for port in self.ports:
                        draining.create_task(port.drain(mode.control.drain_timeout))
                for task in background:
                    task.cancel()
        finally:
            for port in self.further:
                await port.close()
            await self._release()

    def _background(self) -> list[Coroutine[None, None, None]]:
        allocator = self.issuers.allocator
        jobs = [
            self.issuers.start_timestamps.keep_prefix(allocator.store_health.record_heartbeat),
            allocator.close_idle_sequences(),
            self.issuers.request_ids.prune_answers(),
            self.report.sample(),
            self.report.survey(),
            self.mode.report(self.report),
            watch_burned(allocator.burned.pop_new),
            garbage.freeze_new_sequences(lambda: allocator.sequence_count),
            log_every_second(self.access_control.audit.log_totals, self.rpc.calls.failed.log),
            allocator.store_health.evaluate_every_second(
                lambda error: self.rpc.health.set_store_serving(serving=not error)
            ),
            self._reload(),
            spare.refill(),
        ]
        if self.settings.http_listen:
            jobs.append(self.issuers.index.follow())
        if self.access_file:
            jobs.append(self.access_file.follow(self._apply_access))
        return jobs

    async def _reload(self) -> None:
        """Reload the files on each request, until cancelled."""
        control = self.mode.control
        while True:
            await control.reload_requested.wait()
            control.reload_requested.clear()
            _log.info("reloading")
            if self.access_file:
                self.access_file.watch.requested.set()
            if self.rpc.certificates:
                await asyncio.to_thread(self.rpc.certificates.reload)

    def _apply_access(self, access: AccessPolicy) -> None:
        self.access_control.apply_policy(access)
        if self.access_control.requires_authentication:
            self.mode.require_authentication()

    async def _release(self) -> None:
        """Return unused ids to the store, and release the prefix with the last worker."""
        in_time = await self.issuers.close()
        self.access_control.audit.log_totals()
        self.rpc.calls.failed.log()
        if await self.mode.wait_all_drained() and in_time:
            await self.issuers.release_prefix()  # All workers hold it under one name.
        self.mode.report_end(self.report)
