"""TLS of the server: certificate, key and CA of client certificates, reloaded after a change."""

import asyncio
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import structlog

from idalloc_server.domain.errors import StartRefused, unreadable
from idalloc_server.files.watch import FileWatch

_log = structlog.get_logger("idalloc")


class Certificates:
    """Loads the TLS files for gRPC, and reloads them after a change. Safe for threads.

    Each new connection checks the files, in a thread of gRPC. If files do not match, such as a new
    certificate and the old key, the error is logged and the previous ones stay active. Open
    connections keep their certificate.

    Args:
        tls_cert: The file of the server's certificate chain, in PEM.
        tls_key: The file of its private key, without a passphrase.
        tls_client_ca: The file of the CAs that must sign client certificates; empty requires none.
    """

    def __init__(self, tls_cert: str, tls_key: str, tls_client_ca: str = "") -> None:
        self._paths = _by_setting(tls_cert, tls_key, tls_client_ca)
        self._lock = threading.Lock()
        self._watch = FileWatch(self._paths.values())
        # The configuration for the next connection, if it changed.
        self._new: grpc.ServerCertificateConfiguration | None = None
        self._logged_error = ""

    def credentials(self) -> grpc.ServerCredentials:
        """Return the server's credentials. gRPC requires TLS 1.2 or newer.

        Raises:
            StartRefused: A file cannot be read, or the files do not match.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._watch.read(self._read),
            self._take_change,  # type: ignore[arg-type]  # The stubs lack None for no change.
            require_client_authentication="tls_client_ca" in self._paths,
        )

    def reload(self) -> None:
        """Reload the files now, changed or not."""
        with self._lock:
            self._logged_error = ""
            self._reload_files()

    def _take_change(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration if the files changed, or None."""
        with self._lock:
            if self._watch.has_changed():
                self._reload_files()
            new, self._new = self._new, None
            return new

    def _reload_files(self) -> None:
        """Reload the files; log each error once."""
        try:
            self._new = self._watch.read(self._read)
        except StartRefused as error:
            if str(error) != self._logged_error:
                self._logged_error = str(error)
                _log.error("certificates_not_reloaded", error=self._logged_error)
        else:
            self._logged_error = ""
            _log.info("certificates_reloaded", certificate=str(self._paths["tls_cert"]))

    def _read(self) -> grpc.ServerCertificateConfiguration:
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
        tls_cert, tls_key, tls_client_ca: See ``Certificates``.
        requires_client_certificate: Whether every client must present a certificate.

    Raises:
        StartRefused: A file cannot be read, or the files do not match.
    """

    def __init__(
        self, tls_cert: str, tls_key: str, tls_client_ca: str = "", *, requires_client_certificate: bool = False
    ) -> None:
        self._verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL
        self._paths = _by_setting(tls_cert, tls_key, tls_client_ca)
        self._watch = FileWatch(self._paths.values())
        # By setting, when the first certificate in its file expires, in seconds since 1970.
        self.expires: dict[str, float] = {}
        self.context = self._newest = self._watch.read(self._load)  # to serve with
        self.context.sni_callback = self._use_newest

    async def follow(self) -> None:
        """Reload the files after each change, until cancelled; ``Certificates`` logs errors."""
        while True:
            await self._watch.wait()
            with suppress(StartRefused):
                await asyncio.to_thread(self._reload)

    def _reload(self) -> None:
        if self._watch.has_changed():
            self._newest = self._watch.read(self._load)

    def _load(self) -> ssl.SSLContext:
        context = _load_context(self._paths)
        if "tls_client_ca" in self._paths:
            context.verify_mode = self._verify_mode
        expires = {name: _first_expiry(path) for name, path in self._paths.items() if name != "tls_key"}
        self.expires = {name: expiry for name, expiry in expires.items() if expiry is not None}
        return context

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Switch a connection whose handshake begins to the newest files; OpenSSL calls it."""
        connection.context = self._newest


def _by_setting(tls_cert: str, tls_key: str, tls_client_ca: str) -> dict[str, Path]:
    paths = {"tls_cert": Path(tls_cert), "tls_key": Path(tls_key)}
    return paths | ({"tls_client_ca": Path(tls_client_ca)} if tls_client_ca else {})


def _load_context(paths: Mapping[str, Path]) -> ssl.SSLContext:
    """Return the server's TLS context, from the path of each setting.

    gRPC would reject every connection without a reason if they did not match.

    Raises:
        StartRefused: A file cannot be read, or the files do not match.
    """
    certificate, key = paths["tls_cert"], paths["tls_key"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # OpenSSL would ask for a passphrase on the terminal.
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        _check_readable("tls_cert", certificate, error)
        raise StartRefused(
            "tls_cert", f"{certificate} and {key} are not a certificate and its key: {_reason(error)}"
        ) from None
    if authorities := paths.get("tls_client_ca"):
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as error:
            _check_readable("tls_client_ca", authorities, error)
            raise StartRefused("tls_client_ca", f"{authorities} has no certificates in PEM: {_reason(error)}") from None
    return context


def _first_expiry(path: Path) -> float | None:
    # Only servers with TLS need these 8 MB of memory.
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None  # OpenSSL could read it, so the server works.
    return min(each.not_valid_after_utc.timestamp() for each in certificates)


def _check_readable(name: str, path: Path, error: Exception) -> None:
    """Raise the error of an unreadable file, for which OpenSSL gives the error of the system."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        raise unreadable(name, path, error) from None


def _reason(error: Exception) -> str:
    """Return OpenSSL's reason without its source location."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else str(error)


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted; give it without a passphrase, in a file that only the server can read")
