"""The HTTP port of a server: its routes, its certificates and its access control."""

import asyncio
import platform
from collections.abc import Mapping
from importlib.metadata import version

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.clock import Clock
from idalloc_server.http.own_names import OwnNames
from idalloc_server.http.probes import livez, readyz
from idalloc_server.http.readers import require_reader
from idalloc_server.http.server import Handler, HttpServer
from idalloc_server.http.status_page.page import FILES, Source, StatusPage
from idalloc_server.listen.connections import MAX_HTTP_CONNECTIONS, MAX_PROBE_CONNECTIONS, ConnectionLimits
from idalloc_server.listen.tls import ReloadingTlsContext
from idalloc_server.node.ports import Port, ServedNode
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry.exposition import Exposition
from idalloc_server.telemetry.families import BUILD_INFO, CERTIFICATE_EXPIRES
from idalloc_server.telemetry.metrics import Counts

STARTS = "the server starts"


class HttpPort(Port):
    """The HTTP port, and the port of probes.

    A process without them does not import this module: aiohttp takes a third of the time of a
    start.

    Args:
        settings: All settings, with ``http_listen`` or ``probe_listen``.
        access_control: Authenticates and authorizes the callers, except those of probes.
        clock: The clock by which certificates expire.
        method_types: The type of each RPC by its full name, such as ``unary``.
    """

    def __init__(
        self, settings: Settings, access_control: AccessControl, clock: Clock, method_types: Mapping[str, str]
    ) -> None:
        self.source: Source | None = None  # what the port shows; None while the server starts
        self._exposition = Exposition(self._counts, method_types, lambda: self.source.pids() if self.source else {})
        self._exposition.debug = settings.debug_metrics
        self._transport = settings.transport
        self._clock = clock
        self._files: ReloadingTlsContext | None = None
        self._tasks: list[asyncio.Task[None]] = []
        if settings.tls_cert:
            self._files = ReloadingTlsContext(settings)
        node = {"version": version("idalloc"), "workers": settings.workers, "transport": settings.transport}
        self._page = StatusPage(clock, node, self._ready_source, self._checks)
        probes: list[tuple[str, Handler]] = [("/livez", livez), ("/readyz", readyz(self._checks))]
        self._servers: dict[str, HttpServer] = {}
        if settings.http_listen:
            limits = ConnectionLimits(MAX_HTTP_CONNECTIONS)
            routes = [*probes, *self._guarded_routes(settings, access_control)]
            tls = self._files.context if self._files else None
            self._servers["http"] = HttpServer("http_listen", settings.http_listen, limits, routes, tls=tls)
        if settings.probe_listen:
            # The kubelet is one address.
            limits = ConnectionLimits(MAX_PROBE_CONNECTIONS, MAX_PROBE_CONNECTIONS, uses_spare=True)
            self._servers["probes"] = HttpServer("probe_listen", settings.probe_listen, limits, probes)

    def _guarded_routes(self, settings: Settings, access_control: AccessControl) -> list[tuple[str, Handler]]:
        """Return the routes for readers.

        Without authentication they answer only under the server's own names.
        """
        data = {"/metrics": self._metrics, "/api/status": self._page.status, "/api/sequences": self._page.sequences}
        routes = [(path, require_reader(access_control, handler)) for path, handler in data.items()]
        routes += [(path, self._page.file) for path in FILES]
        if settings.tls_client_ca:
            return routes
        names = OwnNames(settings.http_listen, filter(None, settings.http_hosts.split(",")))
        return [(path, names.require(handler, access_control)) for path, handler in routes]

    @property
    def addresses(self) -> Mapping[str, str]:
        return {name: server.url for name, server in self._servers.items()}

    async def open(self) -> None:
        """Bind the addresses, and answer requests: probes ask while the server starts."""
        for server in self._servers.values():
            await server.start()
        self._tasks.append(asyncio.create_task(self._sample_calls()))
        if self._files:
            self._tasks.append(asyncio.create_task(self._files.follow()))

    async def start(self, node: ServedNode) -> None:
        self.source = node.report

    async def drain(self, timeout: float) -> None:
        """Serve on: probes ask whether the server drains."""

    def count(self, counts: Counts) -> None:
        """Add nothing: the port has no metrics."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for server in self._servers.values():
            await server.close()

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=self._exposition.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _ready_source(self) -> Source:
        if self.source is None:
            raise web.HTTPServiceUnavailable(reason=STARTS)
        return self.source

    async def _sample_calls(self) -> None:
        """Sample the calls for the page every second, until cancelled."""
        while True:
            if self.source:
                self._page.rates.add(self.source.counts().calls, self._clock.boot())
            await asyncio.sleep(1)

    def _counts(self) -> Counts:
        counts = self.source.counts() if self.source else Counts()
        build = f"{version('idalloc')} {self._transport} {platform.python_version()}"
        counts.gauges[BUILD_INFO] = {build: 1}
        if self._files:
            counts.gauges[CERTIFICATE_EXPIRES] = dict(self._files.expires)
        return counts

    def _checks(self) -> Mapping[str, str]:
        if self.source is None:
            return {"start": STARTS}
        expires = self._files.expires if self._files else {}
        expired = [name for name, at in expires.items() if at <= self._clock.wall()]
        problem = f"expired: {', '.join(expired)}" if expired else ""
        return {**self.source.checks(), "certificates": problem}
