"""The gRPC port of a process: its server on its address, and its certificates."""

import os

from idalloc_server.listen import transport
from idalloc_server.listen.reservation import ReservedAddress, cannot_bind
from idalloc_server.listen.tls import Certificates
from idalloc_server.settings.address import unix_path
from idalloc_server.settings.model import Settings

# A Unix socket is accessible to the server's user and group.
SOCKET_UMASK = 0o117


class RpcPort:
    """The gRPC port of a process, bound at once unless it is shared.

    Args:
        settings: All settings.
        shares_port: Whether this process is one of several workers, which bind the same port.

    Attributes:
        certificates: The TLS files; None without TLS.
        server: The gRPC server.
        address: Its address, with the port in use once bound.

    Raises:
        StartRefused: A file or the address cannot be used.
    """

    def __init__(self, settings: Settings, *, shares_port: bool) -> None:
        self.certificates = None
        if settings.tls_cert:
            self.certificates = Certificates(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
        self._credentials = self.certificates.credentials() if self.certificates else None
        self.server = transport.make_server(
            settings.transport, reuse_port=shares_port, max_connection_age=settings.max_connection_age
        )
        self.address = settings.listen
        self._reserved = None if shares_port else ReservedAddress(settings.listen)
        # Bind before the store is opened: a port in use costs no store call. A worker binds later, since
        # connections to its port would wait for it while other workers could answer. Its supervisor has reserved the
        # port.
        if not shares_port:
            self.bind()

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
