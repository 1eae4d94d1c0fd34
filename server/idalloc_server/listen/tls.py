"""TLS of the server: certificate, key and CA of client certificates, reloaded after a change."""

import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import structlog

from idalloc_server.domain.errors import StartRefused, unreadable
from idalloc_server.files.watch import FileWatch
from idalloc_server.settings.model import Settings

# The settings of files.
FILES = ("tls_cert", "tls_key", "tls_client_ca")

_log = structlog.get_logger("idalloc")


class Certificates:
    """Loads the TLS files for gRPC, and reloads them after a change. Safe for threads.

    Each new connection checks the files, in a thread of gRPC. If files do not match, such as a new
    certificate and the old key, the error is logged and the previous ones stay active. Open
    connections keep their certificate.

    Args:
        settings: All settings, with ``tls_cert``. Without ``tls_client_ca`` no client certificate
            is required.
    """

    def __init__(self, settings: Settings) -> None:
        self._paths = {name: Path(file) for name in FILES if (file := getattr(settings, name))}
        self._lock = threading.RLock()
        self._watch = FileWatch(self._paths.values(), self._load)
        # The configuration for the next connection, if it changed.
        self._new: grpc.ServerCertificateConfiguration | None = None
        self._error = ""  # in the files as they are now

    def credentials(self) -> grpc.ServerCredentials:
        """Return the server's credentials. gRPC requires TLS 1.2 or newer.

        Raises:
            StartRefused: A file cannot be read, or the files do not match.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._watch.read(),
            self._take_change,  # type: ignore[arg-type]  # The stubs lack None for no change.
            require_client_authentication="tls_client_ca" in self._paths,
        )

    def reload(self, *, forced: bool = True) -> None:
        """Read the files if forced or changed. Log an error if forced, or if it is a new one."""
        with self._lock:
            found = self._watch.check(forced=forced)
            if isinstance(found, StartRefused):
                if forced or str(found) != self._error:
                    _log.error("certificates_not_reloaded", error=str(found))
                self._error = str(found)
            elif found is not None:
                self._new = found
                self._error = ""
                _log.info("certificates_reloaded", certificate=str(self._paths["tls_cert"]))

    def _take_change(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration if the files changed, or None."""
        with self._lock:
            self.reload(forced=False)
            new = self._new
            self._new = None
            return new

    def _load(self) -> grpc.ServerCertificateConfiguration:
        content = {}
        for name, path in self._paths.items():
            try:
                content[name] = path.read_bytes()
            except OSError as error:
                raise unreadable(name, path, error) from None
        _load_context(self._paths)
        pair = content["tls_key"], content["tls_cert"]
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=content.get("tls_client_ca"))


class ReloadingTlsContext:
    """The TLS context for new connections of HTTP and the X Protocol, reloaded after a change.

    Client certificates are optional on the HTTP port, so that probes need none; access control
    requires them elsewhere.

    Args:
        settings: See ``Certificates``.
        requires_client_certificate: Whether every client must present a certificate.

    Raises:
        StartRefused: A file cannot be read, or the files do not match.
    """

    def __init__(self, settings: Settings, *, requires_client_certificate: bool = False) -> None:
        self._verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL
        self._paths = {name: Path(file) for name in FILES if (file := getattr(settings, name))}
        self._watch = FileWatch(self._paths.values(), self._load)
        # By setting, when the first certificate in its file expires, in seconds since 1970.
        self.expires: dict[str, float] = {}
        self.context = self._newest = self._watch.read()  # to serve with
        self.context.sni_callback = self._use_newest

    async def follow(self) -> None:
        """Reload the files after each change, until cancelled; ``Certificates`` logs errors."""
        async for found, _ in self._watch.poll():
            if isinstance(found, ssl.SSLContext):
                self._newest = found

    def _load(self) -> ssl.SSLContext:
        # Only servers with TLS need these 8 MB of memory.
        from cryptography import x509

        context = _load_context(self._paths)
        if "tls_client_ca" in self._paths:
            context.verify_mode = self._verify_mode
        expires = {}
        for name, path in self._paths.items():
            if name != "tls_key":
                with suppress(OSError, ValueError):  # OpenSSL could read it, so the server works
                    certificates = x509.load_pem_x509_certificates(path.read_bytes())
                    expires[name] = min(each.not_valid_after_utc.timestamp() for each in certificates)
        self.expires = expires
        return context

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Switch a connection whose handshake begins to the newest files; OpenSSL calls it."""
        connection.context = self._newest


def _load_context(paths: Mapping[str, Path]) -> ssl.SSLContext:
    """Return the server's TLS context, from the path of each setting.

    gRPC would reject every connection without a reason if they did not match.

    Raises:
        StartRefused: A file cannot be read, or the files do not match.
    """
    certificate = paths["tls_cert"]
    key = paths["tls_key"]
    authorities = paths.get("tls_client_ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # OpenSSL would ask for a passphrase on the terminal.
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise _unusable(
            "tls_cert", certificate, f"{certificate} and {key} are not a certificate and its key", error
        ) from None
    if authorities:
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as error:
            raise _unusable("tls_client_ca", authorities, f"{authorities} has no certificates in PEM", error) from None
    return context


def _unusable(setting: str, path: Path, problem: str, error: Exception) -> StartRefused:
    """Return the error of a file, with OpenSSL's reason and without its source location.

    For an unreadable file OpenSSL gives the error of the system.
    """
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return unreadable(setting, path, error)
    reason = getattr(error, "reason", None)
    return StartRefused(setting, f"{problem}: {reason.lower().replace('_', ' ') if reason else error}")


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted; give it without a passphrase, in a file that only the server can read")
