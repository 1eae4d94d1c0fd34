"""The X Protocol's port: documents, certificates and access control, from the settings."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import cast

from idalloc_server.auth.sessions import AccessControl
from idalloc_server.domain.allocation.burned import BurnCause
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.connections import ConnectionLimits
from idalloc_server.listen.open_files import most_port_connections
from idalloc_server.listen.tls import ReloadingTlsContext
from idalloc_server.listen.transport import check_reachable
from idalloc_server.node.ports import Port, ServedNode
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry import families
from idalloc_server.telemetry.metrics import Counts
from idalloc_xproto.collections import Collections
from idalloc_xproto.documents.cost import MAX_SIZE
from idalloc_xproto.documents.side_thread import SideThread
from idalloc_xproto.listener import Services, XListener
from idalloc_xproto.logins import Logins
from idalloc_xproto.settings import XProtocolSettings
from idalloc_xproto.stores.urls import check_store, open_documents

# What the log names in place of a sequence for burned document ids.
_BURNED_SEQUENCE = "document ids"
# The share of a drain for which statements run on; see ``RpcPort``, which ends its streams then.
STATEMENTS_SHARE = 0.8


class XProtocolPort(Port):
    """The port of the X Protocol, a ``PortFactory``.

    Args:
        settings: All settings.
        access_control: Authenticates and authorizes the sessions.
        shares_port: Whether other workers bind the same port.

    Raises:
        StartRefused: A setting or a file prevents the start.
    """

    def __init__(self, settings: Settings, access_control: AccessControl, *, shares_port: bool) -> None:
        self._settings = cast(XProtocolSettings, settings)
        self._access_control = access_control
        self._shares_port = shares_port
        self._listener: XListener | None = None
        self._following: asyncio.Task[None] | None = None
        self._tls: ReloadingTlsContext | None = None
        if settings.tls_cert:
            self._tls = ReloadingTlsContext(settings, requires_client_certificate=bool(settings.tls_client_ca))
        self._documents = open_documents(settings.store, settings.store_timeout)
        self._thread = SideThread("statements")
        self._collections = Collections(self._documents, MAX_SIZE, self._thread)

    @staticmethod
    def check_settings(settings: Settings, *, requires_authentication: bool) -> None:
        """See ``PortFactory``.

        Raises:
            StartRefused: The store keeps no documents, or callers would have to send their tokens
                in clear text.
        """
        check_reachable(settings, "xproto_listen", requires_authentication=requires_authentication)
        check_store(settings.store, settings.witness)
        if requires_authentication and not settings.tls_cert:
            raise StartRefused(
                "xproto_listen", "with access_file, clients send their token as the password: set tls_cert and tls_key"
            )

    @property
    def addresses(self) -> Mapping[str, str]:
        return {"xproto": self._listener.address} if self._listener else {}

    async def open(self) -> None:
        await self._documents.open()

    async def start(self, node: ServedNode) -> None:
        settings = self._settings
        access_control = self._access_control
        burned = node.issuers.allocator.burned
        services = Services(
            statements=self._collections,
            documents=self._documents,
            thread=self._thread,
            doc_ids=node.issuers.doc_ids,
            change_node=node.changes.change,
            logins=Logins(access_control),
            audit=access_control.audit,
            burn=lambda count: burned.add(_BURNED_SEQUENCE, "", BurnCause.DOCUMENT_NOT_STORED, count),
        )
        self._listener = XListener(
            settings.xproto_listen,
            services,
            tls=self._tls.context if self._tls else None,
            requires_tls=bool(settings.tls_client_ca) or access_control.requires_authentication,
            max_message_bytes=MAX_SIZE,
            limits=ConnectionLimits(most_port_connections(), age=settings.max_connection_age),
            reuse_port=self._shares_port,
        )
        await self._listener.start()
        if self._tls:
            self._following = asyncio.create_task(self._tls.follow())

    def count(self, counts: Counts) -> None:
        if self._listener is None:
            return
        counts.counters |= {
            families.XPROTO_CALLS: self._listener.calls,
            families.XPROTO_DOCUMENTS: Counter({"": self._collections.added}),
        }
        counts.gauges[families.XPROTO_CONNECTIONS] = {"": self._listener.connection_count}

    async def drain(self, timeout: float) -> None:
        """End each connection after its present statement, or near ``timeout`` seconds."""
        if self._listener:
            await self._listener.drain(timeout * STATEMENTS_SHARE)

    async def close(self) -> None:
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._listener:
            await self._listener.close()
        self._thread.close()
        await self._documents.close()
