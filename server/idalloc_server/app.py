"""Wires everything, starts it and stops it. The only place that knows all parts."""

import asyncio
import gc
import os
import signal
import socket
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from importlib.metadata import version
from typing import NamedTuple

import grpc
import structlog
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME

from idalloc.v1 import (
    id_allocator_pb2,
    id_allocator_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    sequences_pb2,
    sequences_pb2_grpc,
)
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
from idalloc_server.domain.store import Store
from idalloc_server.domain.uuids import UuidGenerator
from idalloc_server.listen import transport
from idalloc_server.listen.address import refused
from idalloc_server.listen.tls import Certificates
from idalloc_server.listen_address import unix_path
from idalloc_server.process_mode import ProcessMode
from idalloc_server.rpc import reflection
from idalloc_server.rpc.calls import RpcLayer
from idalloc_server.rpc.decoding import decoding
from idalloc_server.rpc.health import HealthServicer
from idalloc_server.rpc.id_allocator import IdAllocatorServicer
from idalloc_server.rpc.node import NodeServicer
from idalloc_server.rpc.sequences import SequencesServicer
from idalloc_server.store.urls import open_store
from idalloc_server.telemetry.logs import log_burned, lost_lines, watch_burned
from idalloc_server.telemetry.metrics import CallMetrics, Counts

# The share of drain_timeout after which streams that still run are told to go elsewhere.
STREAMS_SHARE = 0.8
# How soon a store that was away at the start is tried again.
OPEN_AGAIN_SECONDS = 1.0
# A stop closes the port when no call came for so long, and none runs: grpc answers one that comes just then with
# CANCELLED, which its caller need not try again.
SILENT_SECONDS = 0.1
# How long it waits for that, where calls last or callers do not wait for earlier calls.
FALL_SILENT_SECONDS = 1.0
# How long clients may take to read the last replies, and to acknowledge that their connection ends.
LAST_REPLIES_SECONDS = 5.0
# A Unix socket is for the server's user and group.
SOCKET_UMASK = 0o117
# How long a stop waits for the store to take unused ids back.
RELEASE_SECONDS = 5.0

_ID_ALLOCATOR = id_allocator_pb2.DESCRIPTOR.services_by_name["IdAllocatorService"]
_NODE = node_pb2.DESCRIPTOR.services_by_name["NodeService"]
_SEQUENCES = sequences_pb2.DESCRIPTOR.services_by_name["SequenceService"]
_SERVICES = (_ID_ALLOCATOR.full_name, _SEQUENCES.full_name, _NODE.full_name)
_log = structlog.get_logger("idalloc")


async def serve(settings: Settings, role: ProcessMode) -> None:
    """Serves until a signal says stop, then drains and gives unused ids back.

    Args:
        settings: All settings.
        role: Whether this process is the server, or one of its workers.

    Raises:
        StartRefused: A setting does not allow a start, or the store does not.
        StoreFailure: The store could not be reached within ``store_timeout``, or refused a statement.
    """
    if signal.SIGHUP not in role.stop_signals:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, role.reloading.set)
    clock = SystemClock()
    access_file = AccessFile(settings.access) if settings.access else None
    access_control = AccessControl(
        clock,
        settings.max_ids_per_call,
        access_file.read(may_be_empty=role.asks) if access_file else None,
        requires_authentication=role.asks,
        metadata_of=transport.metadata_reader(settings.transport),
        certificates=ClientCertificates(clock) if settings.tls_client_ca else None,
    )
    transport.check(settings, asks=access_control.requires_authentication)
    certificates = None
    if settings.tls_cert:
        certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    credentials = certificates.credentials() if certificates else None
    server = transport.make_server(
        settings.transport, reuse_port=role.shares_port, max_connection_age=settings.max_connection_age
    )
    role.take(settings.listen)
    # Before the store is touched, so that a taken port costs it nothing. A worker's port is taken by its supervisor: it
    # would be given connections that wait until it serves, while others could answer them.
    address = settings.listen if role.shares_port else _bind(server, settings.listen, credentials)
    store = open_store(settings.store, clock, settings.store_timeout)
    try:
        await _open(store, settings.store_timeout)
        name = f"{socket.gethostname()} {address}"
        start_timestamps = StartTimestamps(
            store,
            clock,
            prefix=settings.node_prefix,
            holder=name,
            max_clock_skew=settings.max_clock_skew,
            prefix_conflict=settings.prefix_conflict,
            store_timeout=settings.store_timeout,
        )
        files = _Files(access_file, certificates)
        start = await start_timestamps.start()
        node = _Node(settings, role, clock, store, server, start_timestamps, start, name, access_control, files)
        if role.shares_port:
            _bind(server, address, credentials)
        welcome = f"idalloc {version('idalloc')} serves on {address}, store {store.address}"
        await node.run(f"{welcome}, prefix {settings.node_prefix}")
    finally:
        await server.stop(None)
        await store.close()


def _bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None) -> str:
    """Takes the address; it answers only once the server is started."""
    before = os.umask(SOCKET_UMASK)
    try:
        taken = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
    except RuntimeError as error:
        raise refused(listen, error) from None
    finally:
        os.umask(before)
    return listen if unix_path(listen) else f"{listen.rpartition(':')[0]}:{taken}"


async def _open(store: Store, patience: float) -> None:
    """Opens the store; one that is away may come within ``patience`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            await store.open()
            return
        except StoreUnavailable as error:
            if loop.time() + OPEN_AGAIN_SECONDS > deadline:
                raise
            _log.warning("store_unavailable", store=store.address, error=str(error))
        await asyncio.sleep(OPEN_AGAIN_SECONDS)


class _Files(NamedTuple):
    """The files that a server reads again while it runs."""

    access: AccessFile | None
    certificates: Certificates | None


class _Node:
    """A server on a store that is open, with a start timestamp of its own."""

    def __init__(
        self,
        settings: Settings,
        role: ProcessMode,
        clock: Clock,
        store: Store,
        server: grpc.aio.Server,
        start_timestamps: StartTimestamps,
        start: StartTimestamp,
        name: str,
        access_control: AccessControl,
        files: _Files,
    ) -> None:
        self._role = role
        self._server = server
        self._can_turn_away = transport.can_turn_away(settings.transport)
        self._start_timestamps = start_timestamps
        self._access_control = access_control
        self._files = files
        allocation_config = AllocationConfig(
            settings.lease_ttl,
            settings.store_timeout,
            settings.auto_create_sequences,
            max_clock_skew=settings.max_clock_skew,
            outage_reserve=settings.outage_reserve,
            max_reserved_ids=settings.max_reserved_ids,
            max_sequences=settings.max_sequences,
        )
        self._allocator = Allocator(store, clock, allocation_config)
        self._doc_ids = DocIdGenerator(
            start_timestamps,
            start,
            offset=settings.auto_increment_offset,
            increment=settings.auto_increment_increment,
        )
        self._metrics = CallMetrics()
        self._calls = RpcLayer(
            self._metrics,
            access_control,
            self._allocator.store_health,
            log_each=settings.log_level == "debug",
            push_back=transport.can_push_back(settings.transport),
        )
        self._health = HealthServicer(_SERVICES, access_control.certificates)

        self._request_ids = IdempotentAllocator(
            self._allocator,
            store,
            clock,
            node=name,
            window=settings.request_id_window,
            store_timeout=settings.store_timeout,
        )
        added = decoding(server, _SERVICES)
        id_allocator = IdAllocatorServicer(
            self._allocator,
            self._doc_ids,
            clock,
            settings.max_ids_per_call,
            self._request_ids,
            UuidGenerator(clock),
            start.node,
        )
        self._calls.wrap(id_allocator, _ID_ALLOCATOR)
        id_allocator_pb2_grpc.add_IdAllocatorServiceServicer_to_server(id_allocator, added)
        self._registry = SequenceService(
            store, clock, self._allocator, store_timeout=settings.store_timeout, max_clock_skew=settings.max_clock_skew
        )
        sequences = SequencesServicer(self._registry)
        self._calls.wrap(sequences, _SEQUENCES)
        sequences_pb2_grpc.add_SequenceServiceServicer_to_server(sequences, added)
        node = NodeServicer(self._allocator, self._doc_ids, store.address, role.node_settings, role.workers)
        self._calls.wrap(node, _NODE)
        node_pb2_grpc.add_NodeServiceServicer_to_server(node, added)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, added)
        self._reflection = reflection.enable(added, [*_SERVICES, SERVICE_NAME], access_control, self._calls)

    async def run(self, welcome: str) -> None:
        """Serves until a signal says stop, then drains. Before this such signals end the process at once."""
        for number in self._role.stop_signals:
            asyncio.get_running_loop().add_signal_handler(number, self._role.stopping.set)
        try:
            async with asyncio.TaskGroup() as tasks:
                jobs = (self._start_timestamps.run(), self._allocator.run(), self._request_ids.run())
                watches = [
                    self._role.watch(self._counts),
                    watch_burned(self._allocator.burned.pop_new),
                    self._access_control.log_totals(),
                    self._calls.failed.run(),
                    self._allocator.store_health.run(lambda error: self._health.set_store_serving(serving=not error)),
                    self._reload(),
                ]
                if self._files.access:
                    watches.append(self._files.access.follow(self._use))
                background = [tasks.create_task(job) for job in (*jobs, *watches)]
                await self._server.start()
                await self._role.join(self._doc_ids, self._access_control, welcome)
                self._health.set_serving(serving=True)
                self._health.set_store_serving(serving=True)  # it was opened, and a start timestamp was claimed
                # What is here now stays: collections need not look at it again for every few calls.
                gc.collect()
                gc.freeze()
                self._role.joined()
                await self._role.stopping.wait()
                await self._drain()
                for task in background:
                    task.cancel()
        finally:
            await self._release()

    async def _reload(self) -> None:
        """Has the files read again each time that it is asked for, for ever."""
        while True:
            await self._role.reloading.wait()
            self._role.reloading.clear()
            _log.info("reloading")
            if self._files.access:
                self._files.access.reload()
            if self._files.certificates:
                await asyncio.to_thread(self._files.certificates.reload)

    def _use(self, access: AccessPolicy) -> None:
        self._access_control.use(access)
        if self._access_control.requires_authentication:
            self._role.ask()

    def _counts(self) -> Counts:
        burned = Counter({str(cause): count for cause, count in self._allocator.burned.by_cause.items()})
        return Counts(self._metrics, burned, self._allocator.lease_count, lost_lines())

    async def _drain(self) -> None:
        """Refuses new calls, sends connections elsewhere, and lets running calls end; streams that last are ended."""
        timeout = self._role.drain_timeout
        loop = asyncio.get_running_loop()
        began = loop.time()

        def left(share: float = 1.0) -> float:
            return max(0.0, began + timeout * share - loop.time())

        _log.info("draining", calls=self._metrics.in_flight, drain_timeout=timeout)
        self._health.set_serving(serving=False)
        if self._can_turn_away:
            self._calls.hold()
        else:
            self._calls.drain()
        await self._calls.wait_until_quiet(SILENT_SECONDS, timeout=min(FALL_SILENT_SECONDS, timeout / 2))
        leaving = None
        if self._can_turn_away:
            leaving = asyncio.create_task(self._server.stop(left()))
            await asyncio.sleep(0)  # It has sent GOAWAY: refusals arrive after it, and their callers connect anew.
        with suppress(TimeoutError):  # one that hangs is killed later
            await asyncio.wait_for(self._role.closed(), FALL_SILENT_SECONDS)
        self._calls.drain()
        if not await self._calls.wait_for_calls(timeout=left(STREAMS_SHARE)):
            self._calls.end_streams()
            await self._calls.wait_for_calls(timeout=left())
        self._health.end()
        self._reflection.end()
        if leaving:
            # It ends when each client has read all that was written to it, and its connection is closed.
            await asyncio.wait({leaving}, timeout=min(LAST_REPLIES_SECONDS, left()))
        else:
            await asyncio.sleep(SILENT_SECONDS)  # Native's threads write the last replies; its stop does not wait.
        await self._server.stop(None)
        if leaving:
            await leaving
        # The server does not wait for the handlers that it cancels (grpc/grpc#37239); they count what they burn.
        await self._calls.wait_for_calls(timeout=1)

    async def _release(self) -> None:
        """Gives back to the store what it may have back."""
        in_time = await self._has_released(self._close())
        self._access_control.audit.log_totals()
        self._calls.failed.log()
        for burn in self._allocator.burned.pop_new():
            log_burned(*burn)
        if await self._role.leave() and in_time:
            # Workers hold the prefix under one name: it is given up when none of them needs it any more.
            await self._has_released(self._start_timestamps.release())
        self._role.left(self._counts())

    async def _close(self) -> None:
        # At once, so that none uses up the time of the others. None needs another one to be open: what the first two
        # still ask of the allocator is to forget a lane, or for the generation, which takes no ids.
        try:
            await asyncio.gather(
                self._registry.close(), self._request_ids.close(), self._allocator.close(), self._doc_ids.close()
            )
        finally:  # nothing is left, unless the time was too short
            self._request_ids.abandon()
            self._allocator.abandon()

    async def _has_released(self, work: Coroutine[None, None, None]) -> bool:
        """Does what the store may be too slow for, and returns whether it was not."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await work
        except TimeoutError:
            _log.warning("not_released", error=f"the store took over {RELEASE_SECONDS:g} s")
            return False
        return True
