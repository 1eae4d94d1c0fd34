"""Certificates for one test, as objects and as files."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import grpc
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


class Issued(NamedTuple):
    """A certificate and its key, in PEM."""

    cert: bytes
    key: bytes

    def trust(self, server: trustme.CA) -> grpc.ChannelCredentials:
        """Return credentials that present it, to servers of this CA."""
        return grpc.ssl_channel_credentials(server.cert_pem.bytes(), self.key, self.cert)


def issue(authority: trustme.CA, *names: x509.GeneralName, seconds: float = 3600) -> Issued:
    """Issue a certificate with these names (SANs) of any type; trustme chooses types itself.

    Args:
        authority: The CA that signs it.
        names: The names.
        seconds: How long it is valid.
    """
    private, issuer = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.load_pem_x509_certificate(authority.cert_pem.bytes()),
    )
    signer = load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(issuer.subject, x509.Name([]), private.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(seconds=seconds))
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(signer, SHA256())
    )
    key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Issued(made.public_bytes(Encoding.PEM), key)


class Certificates:
    """A CA, and certificates and files signed by it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"  # with the CA's certificate
        self.authority.cert_pem.write_to_path(str(self.ca))

    @property
    def trust(self) -> grpc.ChannelCredentials:
        """The credentials of a client that trusts the CA."""
        return grpc.ssl_channel_credentials(self.authority.cert_pem.bytes())

    def server(
        self, *names: str, of_clients: trustme.CA | None = None, expired: bool = False
    ) -> grpc.ServerCredentials:
        """Return a server's credentials; with ``of_clients`` clients must present certificates."""
        ended = datetime(2020, 1, 1, tzinfo=UTC) if expired else None
        leaf = self.authority.issue_cert(*(names or ("127.0.0.1",)), not_after=ended)
        pair = leaf.private_key_pem.bytes(), b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        roots = of_clients.cert_pem.bytes() if of_clients else None
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=of_clients is not None)

    def client(self, name: str, authority: trustme.CA | None = None) -> "Shown":
        """Return a client's certificate."""
        leaf = (authority or self.authority).issue_cert(name)
        cert, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for blob in leaf.cert_chain_pems:
            blob.write_to_path(str(cert))
        leaf.private_key_pem.write_to_path(str(key))
        trust = self.authority.cert_pem.bytes()
        return Shown(cert, key, grpc.ssl_channel_credentials(trust, key.read_bytes(), cert.read_bytes()))


class Shown(NamedTuple):
    """A client's certificate and key, as files and as credentials."""

    cert: Path
    key: Path
    credentials: grpc.ChannelCredentials
