"""Access control of a process, from the settings: access file, client certificates and peers."""

from functools import partial

from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.access_file import AccessFile
from idalloc_server.auth.call_types import connection_peer
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.domain.clock import Clock
from idalloc_server.listen.peers import proxied_peer
from idalloc_server.listen.transport import TRANSPORTS
from idalloc_server.settings.model import Settings


def open_access_control(
    settings: Settings, clock: Clock, access_file: AccessFile | None, *, requires_authentication: bool
) -> AccessControl:
    """Return the access control of a process.

    Args:
        settings: All settings.
        clock: Measures quotas and the expiry of certificates.
        access_file: None without one.
        requires_authentication: Whether callers must authenticate even if the access file has no
            identities.

    Raises:
        StartRefused: The access file is invalid.
    """
    metadata_of = TRANSPORTS[settings.transport].metadata_of
    return AccessControl(
        clock,
        settings.max_ids_per_call,
        access_file.read(may_be_empty=requires_authentication) if access_file else None,
        requires_authentication=requires_authentication,
        metadata_of=metadata_of,
        certificates=ClientCertificates(clock) if settings.tls_client_ca else None,
        peer_of=partial(proxied_peer, metadata_of) if settings.trust_proxy else connection_peer,
    )
