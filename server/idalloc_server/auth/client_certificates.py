"""Client certificates: which names they have, and when they end."""

from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, NamedTuple

import grpc

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import Unauthenticated

# The most certificates that are remembered. Each costs some kB.
MAX_CERTIFICATES = 1_000

# Where gRPC has the names of each type (SANs), and how the access file calls that type.
_TYPES = {"peer_dns": "dns", "peer_uri": "uri", "peer_ip": "ip", "peer_email": "email"}


class ClientCertificate(NamedTuple):
    """What is needed of a certificate.

    Attributes:
        ends_at: Its last second, in seconds since 1970.
        names: Its names with their types, as the access file has them.
    """

    ends_at: float
    names: tuple[str, ...]


class ClientCertificates:
    """Checks the client certificate of each call.

    TLS checks a certificate's end only in a full handshake. A client that resumes a session, which gRPC's server cannot
    forbid, and one that keeps its connection could use an ended certificate for ever. A certificate is parsed once, and
    then known by its bytes.

    Args:
        clock: Says what time it is.
        most: How many certificates are remembered; beyond that the oldest entry is parsed again.
    """

    def __init__(self, clock: Clock, most: int = MAX_CERTIFICATES) -> None:
        # Servers without client certificates do without its 8 MB.
        from cryptography import x509

        self._x509 = x509
        self._now = clock.wall
        self._most = most
        self._known: dict[bytes, ClientCertificate] = {}

    def check(self, context: grpc.aio.ServicerContext[Any, Any]) -> tuple[str, ...]:
        """Returns the names in the certificate of a call's connection.

        Raises:
            Unauthenticated: The certificate has ended, or cannot be read.
        """
        shown = context.auth_context()
        pem = next(iter(shown.get("x509_pem_cert", ())), b"")
        certificate = self._known.get(pem) or self._read(pem, shown)
        if self._now() > certificate.ends_at:
            end = datetime.fromtimestamp(certificate.ends_at, UTC)
            raise Unauthenticated(f"the client certificate ended at {end:%Y-%m-%dT%H:%M:%SZ}")
        return certificate.names

    def _read(self, pem: bytes, shown: Any) -> ClientCertificate:
        x509 = self._x509
        try:
            parsed = x509.load_pem_x509_certificate(pem)
            extensions = parsed.extensions
        except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            raise Unauthenticated(f"the client certificate cannot be read: {error}") from None
        # gRPC ends a name at its first NUL, so that an authority for evil.example could speak for billing.example.
        lists = (each.value for each in extensions if isinstance(each.value, x509.SubjectAlternativeName))
        if any("\0" in str(name.value) for names in lists for name in names):
            raise Unauthenticated("the client certificate has a name with a NUL character")
        typed = (
            f"{kind}:{_canonical(kind, name.decode(errors='replace'))}"
            for key, kind in _TYPES.items()
            for name in shown.get(key, ())
        )
        certificate = ClientCertificate(parsed.not_valid_after_utc.timestamp(), tuple(typed))
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[pem] = certificate
        return certificate


def _canonical(kind: str, name: str) -> str:
    """Returns an address as the access file has it; systems write some IPv6 addresses in other ways."""
    return str(ip_address(name)) if kind == "ip" else name
