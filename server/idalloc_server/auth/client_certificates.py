"""Client certificates: their names and their expiry."""

import ssl
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, NamedTuple

from idalloc_server.auth.call_types import Context
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import Unauthenticated

# The most certificates that are kept in memory, at some kB each.
MAX_CERTIFICATES = 1_000

# gRPC's properties with the names (SANs) of each type, and the type's prefix in the access file.
_TYPES = {"peer_dns": "dns", "peer_uri": "uri", "peer_ip": "ip", "peer_email": "email"}
# gRPC's properties by ``ssl``'s types of names.
_PROPERTIES = {"DNS": "peer_dns", "URI": "peer_uri", "IP Address": "peer_ip", "email": "peer_email"}


def auth_context_of(connection: Any) -> dict[str, list[bytes]]:
    """Return the client certificate of an ``ssl`` connection in gRPC's form; empty without one."""
    content = connection.getpeercert(binary_form=True) if connection else None
    if not content:
        return {}
    properties = {"x509_pem_cert": [ssl.DER_cert_to_PEM_cert(content).encode()]}
    for kind, name in connection.getpeercert().get("subjectAltName", ()):
        if kind in _PROPERTIES:
            properties.setdefault(_PROPERTIES[kind], []).append(name.strip().encode())
    return properties


class ClientCertificate(NamedTuple):
    """What access control needs of a client certificate."""

    expires_at: float  # in seconds since 1970
    names: tuple[str, ...]  # with their types


class ClientCertificates:
    """Checks the client certificate of each call.

    TLS checks the expiry only in a full handshake. A client that keeps its connection, or resumes
    its session, which a gRPC server cannot forbid, could use an expired certificate without limit.
    Each certificate is parsed once. Beyond ``max_certificates`` the oldest one is dropped.
    """

    def __init__(self, clock: Clock, max_certificates: int = MAX_CERTIFICATES) -> None:
        # Only servers with client certificates need these 8 MB of memory.
        from cryptography import x509

        self._x509 = x509
        self._now = clock.wall
        self._max_certificates = max_certificates
        self._parsed: dict[bytes, ClientCertificate] = {}

    def check(self, context: Context) -> tuple[str, ...]:
        """Return the typed names in the certificate of a call's connection.

        Raises:
            Unauthenticated: The certificate has expired or cannot be read.
        """
        certificate = self.find(context)
        self.seconds_to(certificate.expires_at)
        return certificate.names

    def seconds_to(self, expires_at: float) -> float:
        """Return the seconds until a certificate expires.

        Raises:
            Unauthenticated: It has expired.
        """
        seconds = expires_at - self._now()
        if seconds < 0:
            expiry = datetime.fromtimestamp(expires_at, UTC)
            raise Unauthenticated(f"the client certificate expired at {expiry:%Y-%m-%dT%H:%M:%SZ}")
        return seconds

    def find(self, context: Context) -> ClientCertificate:
        """Return the certificate of a call's connection.

        Raises:
            Unauthenticated: The certificate cannot be read.
        """
        properties = context.auth_context()
        pem = next(iter(properties.get("x509_pem_cert", ())), b"")
        if not pem:  # Only HTTP: the other ports require one in the handshake.
            raise Unauthenticated("the client certificate cannot be read: the connection has none")
        certificate = self._parsed.get(pem)
        if certificate is not None:
            return certificate
        x509 = self._x509
        try:
            parsed = x509.load_pem_x509_certificate(pem)
            extensions = parsed.extensions
        except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            raise Unauthenticated(f"the client certificate cannot be read: {error}") from None
        # gRPC cuts a name at its first NUL, so a CA limited to evil.example could certify
        # billing.example.
        lists = (each.value for each in extensions if isinstance(each.value, x509.SubjectAlternativeName))
        if any("\0" in str(name.value) for names in lists for name in names):
            raise Unauthenticated("the client certificate has a name with a NUL character")
        names = []
        for key, name_type in _TYPES.items():
            for encoded in properties.get(key, ()):
                name = encoded.decode(errors="replace")
                # The access file's form of an address: an IPv6 address can be written in several.
                names.append(f"{name_type}:{ip_address(name) if name_type == 'ip' else name}")
        certificate = ClientCertificate(parsed.not_valid_after_utc.timestamp(), tuple(names))
        if len(self._parsed) >= self._max_certificates:
            del self._parsed[next(iter(self._parsed))]
        self._parsed[pem] = certificate
        return certificate
