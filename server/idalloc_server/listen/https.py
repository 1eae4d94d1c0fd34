"""TLS of the HTTP port and the X Protocol, with the files of the gRPC server, and when their certificates expire."""

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

from idalloc_server.domain.errors import StartRefused
from idalloc_server.files.watch import FileWatch
from idalloc_server.listen.tls import load_context


class HttpsFiles:
    """The TLS context of new connections, reloaded when the files change.

    Client certificates are optional on the HTTP port, so that probes need none; access control
    requires them elsewhere.

    Args:
        tls_cert, tls_key, tls_client_ca: See ``listen.tls.Certificates``.
        requires_client_certificate: Whether every client must present a certificate.

    Attributes:
        context: The context to serve with.
        expires: By setting, when the first certificate in its file expires, in seconds since 1970.

    Raises:
        StartRefused: A file cannot be read, or the files do not match.
    """

    def __init__(
        self, tls_cert: str, tls_key: str, tls_client_ca: str = "", *, requires_client_certificate: bool = False
    ) -> None:
        self._verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL
        self._paths = {"tls_cert": Path(tls_cert), "tls_key": Path(tls_key)}
        if tls_client_ca:
            self._paths["tls_client_ca"] = Path(tls_client_ca)
        self._watch = FileWatch(self._paths.values())
        self.expires: dict[str, float] = {}
        self.context = self._newest = self._watch.read(self._load)
        self.context.sni_callback = self._use_newest

    async def follow(self) -> None:
        """Reload the files after each change, until cancelled.

        Invalid files are ignored: the gRPC server logs them.
        """
        while True:
            await self._watch.wait()
            with suppress(StartRefused):
                await asyncio.to_thread(self._reload)

    def _reload(self) -> None:
        if self._watch.has_changed():
            self._newest = self._watch.read(self._load)

    def _load(self) -> ssl.SSLContext:
        context = load_context(self._paths)
        if "tls_client_ca" in self._paths:
            context.verify_mode = self._verify_mode
        expires = {name: _first_expiry(path) for name, path in self._paths.items() if name != "tls_key"}
        self.expires = {name: expiry for name, expiry in expires.items() if expiry is not None}
        return context

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Switch a new connection, whose handshake begins, to the newest files; called by OpenSSL."""
        connection.context = self._newest


def _first_expiry(path: Path) -> float | None:
    # Only servers with TLS need these 8 MB of memory.
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError):
        return None  # OpenSSL could read it, so the server works.
    return min(each.not_valid_after_utc.timestamp() for each in certificates)
