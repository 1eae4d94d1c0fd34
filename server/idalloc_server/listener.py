"""What faces the callers of a process: the gRPC server on its address, its certificates, and access control."""

import os
import socket

from idalloc_server import xproto_port
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.access_file import AccessFile
from idalloc_server.auth.call_types import connection_peer
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.domain.clock import Clock
from idalloc_server.listen import transport
from idalloc_server.listen.peers import proxied_peer
from idalloc_server.listen.reservation import ReservedAddress, cannot_bind
from idalloc_server.listen.tls import Certificates
from idalloc_server.process_mode import ProcessMode
from idalloc_server.settings.address import unix_path
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry.traces import open_traces

# A Unix socket is accessible to the server's user and group.
SOCKET_UMASK = 0o117


class Listener:
    """The gRPC server of a process, bound at once unless it is a worker.

    Args:
        settings: All settings.
        mode: Whether this process is the whole server or one of its workers.
        clock: The clock.

    Attributes:
        access_file: The access file; None without one.
        access_control: Checks the calls.
        certificates: The TLS files; None without TLS.
        server: The gRPC server.
        address: Its address, with the port in use once bound.
        name: Holds the prefix.
        traces: Traces the calls; None if traces are off.

    Raises:
        StartRefused: A setting prevents the start.
    """

    def __init__(self, settings: Settings, mode: ProcessMode, clock: Clock) -> None:
        is_worker = mode.workers is not None
        self.access_file = AccessFile(settings.access) if settings.access else None
        metadata_of = transport.metadata_reader(settings.transport)
        self.access_control = AccessControl(
            clock,
            settings.max_ids_per_call,
            self.access_file.read(may_be_empty=mode.requires_authentication) if self.access_file else None,
            requires_authentication=mode.requires_authentication,
            metadata_of=metadata_of,
            certificates=ClientCertificates(clock) if settings.tls_client_ca else None,
            peer_of=proxied_peer(metadata_of) if settings.trust_proxy else connection_peer,
        )
        transport.check(settings, authenticates=self.access_control.requires_authentication)
        xproto_port.check(settings, authenticates=self.access_control.requires_authentication)
        self.certificates = None
        if settings.tls_cert:
            self.certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._credentials = self.certificates.credentials() if self.certificates else None
        self.server = transport.make_server(
            settings.transport, reuse_port=is_worker, max_connection_age=settings.max_connection_age
        )
        self.address = settings.listen
        self.traces = open_traces(os.environ)
        self._reserved = None if is_worker else ReservedAddress(settings.listen)
        # Bind before the store is opened: a port in use costs no store call. A worker binds later, since
        # connections to its port would wait for it while other workers could answer. Its supervisor has reserved the
        # port.
        if not is_worker:
            self.bind()
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
