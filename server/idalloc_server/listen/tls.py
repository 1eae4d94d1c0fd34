"""The server's side of TLS: a certificate, its key and the clients' authorities, as the files say at the moment."""

import ssl
import threading
from pathlib import Path

import grpc
import structlog

from idalloc_server.domain.errors import FileUnreadable, StartRefused, unreadable

_log = structlog.get_logger("idalloc")

# What tells that a file was changed: inode, size, times of its content and of its state; None where it is missing. A
# link that is turned round changes the inode.
_Seen = list[tuple[int, int, int, int] | None]


class Certificates:
    """Reads the files of a server's TLS, again whenever one of them changed.

    They are looked at as each connection comes, in a thread of gRPC's own. Files that do not fit together, such as a
    new certificate beside a key that is yet to be replaced, change nothing: the ones before go on being used, and the
    log says why. Connections that stand keep what they were made with.

    Args:
        tls_cert: The file of the server's certificate, and of those that lead to its authority.
        tls_key: The file of its private key, without a passphrase.
        tls_client_ca: The file of the authorities whose certificates clients have to show; empty asks for none.
    """

    def __init__(self, tls_cert: str, tls_key: str, tls_client_ca: str = "") -> None:
        self._paths = {"tls_cert": Path(tls_cert), "tls_key": Path(tls_key)}
        if tls_client_ca:
            self._paths["tls_client_ca"] = Path(tls_client_ca)
        self._lock = threading.Lock()
        # What was read last; None where that failed.
        self._seen: _Seen | None = None
        # What was read and is yet to be used, from the next connection on.
        self._new: grpc.ServerCertificateConfiguration | None = None
        self._fault = ""

    def credentials(self) -> grpc.ServerCredentials:
        """Makes a server's credentials. TLS 1.2 is the oldest that gRPC speaks.

        Raises:
            StartRefused: A file cannot be read, or they do not fit together.
        """
        self._seen = self._look()
        return grpc.dynamic_ssl_server_credentials(
            self._read(),
            self._changed,  # type: ignore[arg-type]  # None stands for no change, which the stubs do not know
            require_client_authentication="tls_client_ca" in self._paths,
        )

    def reload(self) -> None:
        """Reads the files now, also where they have not changed."""
        with self._lock:
            self._fault = ""
            self._read_again(self._look())

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Reads the files if they changed; None leaves all as it is."""
        with self._lock:
            seen = self._look()
            if seen != self._seen:
                self._read_again(seen)
            new, self._new = self._new, None
            return new

    def _read_again(self, seen: _Seen) -> None:
        """Reads the files; a fault is logged once, however many connections see it."""
        try:
            self._new = self._read()
        except StartRefused as refused:
            # Files that cannot be read now are tried again at the next connection, others when they change.
            self._seen = None if isinstance(refused, FileUnreadable) else seen
            if str(refused) != self._fault:
                self._fault = str(refused)
                _log.error("certificates_not_reloaded", error=self._fault)
        else:
            self._seen = seen
            self._fault = ""
            _log.info("certificates_reloaded", certificate=str(self._paths["tls_cert"]))

    def _look(self) -> _Seen:
        seen: _Seen = []
        for path in self._paths.values():
            try:
                found = path.stat()
            except OSError:
                seen.append(None)
            else:
                seen.append((found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))
        return seen

    def _read(self) -> grpc.ServerCertificateConfiguration:
        content = {}
        for name, path in self._paths.items():
            try:
                content[name] = path.read_bytes()
            except OSError as error:
                raise unreadable(name, path, error) from None
        self._check()
        pair = content["tls_key"], content["tls_cert"]
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=content.get("tls_client_ca"))

    def _check(self) -> None:
        """Sees that the files can be used: gRPC itself would refuse connection after connection, and not say why."""
        certificate, key = self._paths["tls_cert"], self._paths["tls_key"]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # A passphrase would be asked for on the terminal.
            context.load_cert_chain(certificate, key, password=_no_passphrase)
        except (OSError, ValueError) as error:
            _check_readable("tls_cert", certificate, error)
            raise StartRefused(
                "tls_cert", f"{certificate} and {key} are no certificate and its key: {_why(error)}"
            ) from None
        if authorities := self._paths.get("tls_client_ca"):
            try:
                context.load_verify_locations(authorities)
            except (OSError, ValueError) as error:
                _check_readable("tls_client_ca", authorities, error)
                raise StartRefused(
                    "tls_client_ca", f"{authorities} has no certificates in PEM: {_why(error)}"
                ) from None


def _check_readable(name: str, path: Path, error: Exception) -> None:
    """Tells a file that cannot be read, of which OpenSSL gives the system's error, from one that is wrong."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        raise unreadable(name, path, error) from None


def _why(error: Exception) -> str:
    """What OpenSSL says, without where in its source it says so."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted; give it without a passphrase, in a file that only the server can read")
