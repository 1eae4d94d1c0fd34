"""Builds the X Protocol's port from the settings: documents, certificates and access control."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.domain.allocation.burned import BurnCause, BurnedIds
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.connections import Limits
from idalloc_server.listen.tls import ReloadingTlsContext
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry import families
from idalloc_server.telemetry.metrics import Counts

if TYPE_CHECKING:
    from idalloc_xproto.documents.protocol import Documents
    from idalloc_xproto.listener import XListener
    from idalloc_xproto.variables import ChangeNode

# What the log names in place of a sequence for burned document ids.
_BURNED_SEQUENCE = "document ids"


def check_settings(settings: Settings, *, keeps_documents: bool, requires_authentication: bool) -> None:
    """Check the settings of the port.

    Args:
        settings: All settings.
        keeps_documents: Whether the store keeps documents.
        requires_authentication: Whether callers must authenticate.

    Raises:
        StartRefused: The store keeps no documents, or callers would have to send their tokens in
            clear text.
    """
    if settings.xproto_listen and not keeps_documents:
        raise StartRefused("xproto_listen", "documents need a store of sqlite:// or crate://: remove xproto_listen")
    if settings.xproto_listen and requires_authentication and not settings.tls_cert:
        raise StartRefused(
            "xproto_listen", "with access_file, clients send their token as the password: set tls_cert and tls_key"
        )


class XProtocolPort:
    """The port of the X Protocol.

    Without ``xproto_listen`` it serves nothing, and loads no modules for it.

    Args:
        settings: All settings.
        access_control: Authenticates and authorizes the sessions.
        documents: The open store of documents; None without ``xproto_listen``.
        doc_ids: Generates document ids.
        change_node: Changes the node's settings, and keeps them over restarts if asked to.
        burned: Counts ids that no stored document has.
        shares_port: Whether other workers bind the same port.

    Raises:
        StartRefused: A setting or a file prevents the start.
    """

    def __init__(
        self,
        settings: Settings,
        access_control: AccessControl,
        documents: "Documents | None",
        doc_ids: DocIdGenerator,
        change_node: "ChangeNode",
        burned: BurnedIds,
        *,
        shares_port: bool,
    ) -> None:
        self._listener: XListener | None = None
        self._following: asyncio.Task[None] | None = None
        self._tls: ReloadingTlsContext | None = None
        if documents is None:
            return
        from idalloc_xproto import collections, listener
        from idalloc_xproto.documents.side_thread import SideThread

        if settings.tls_cert:
            requires = bool(settings.tls_client_ca)
            self._tls = ReloadingTlsContext(
                settings.tls_cert, settings.tls_key, settings.tls_client_ca, requires_client_certificate=requires
            )
        self._thread = SideThread("statements")
        self._collections = collections.Collections(documents, settings.xproto_max_message_bytes, self._thread)
        services = listener.Services(
            statements=self._collections,
            documents=documents,
            thread=self._thread,
            doc_ids=doc_ids,
            change_node=change_node,
            logins=access_control.logins,
            audit=access_control.audit,
            burn=lambda count: burned.add(_BURNED_SEQUENCE, "", BurnCause.DOCUMENT_NOT_STORED, count),
        )
        self._listener = listener.XListener(
            settings.xproto_listen,
            services,
            tls=self._tls.context if self._tls else None,
            requires_tls=bool(settings.tls_client_ca) or access_control.requires_authentication,
            max_message_bytes=settings.xproto_max_message_bytes,
            limits=Limits(
                settings.xproto_max_connections,
                settings.max_connections_per_address,
                age=settings.max_connection_age,
            ),
            reuse_port=shares_port,
        )

    @property
    def address(self) -> str:
        """The address, with the port in use once started; empty if nothing is served."""
        return self._listener.address if self._listener else ""

    def count(self, counts: Counts) -> None:
        """Add the metrics of the port; it has none if nothing is served."""
        if self._listener is None:
            return
        counts.counters |= {
            families.XPROTO_CALLS: self._listener.calls,
            families.XPROTO_DOCUMENTS: Counter({"": self._collections.added}),
        }
        counts.gauges[families.XPROTO_CONNECTIONS] = {"": self._listener.connection_count}

    async def start(self) -> None:
        """Bind the address and accept connections.

        Raises:
            StartRefused: The address cannot be used.
        """
        if self._listener is None:
            return
        await self._listener.start()
        if self._tls:
            self._following = asyncio.create_task(self._tls.follow())

    async def drain(self, timeout: float) -> None:
        """End each connection after its present statement, or after ``timeout`` seconds."""
        if self._listener:
            await self._listener.drain(timeout)

    async def close(self) -> None:
        """Close the address and all connections."""
        if self._following:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._listener:
            await self._listener.close()
            self._thread.close()
