"""Causes of TLS failures, found in gRPC's error messages, which quote OpenSSL."""

import re
from typing import NamedTuple


class TlsFailure(NamedTuple):
    """The cause of a TLS failure."""

    kind: str  # the cause as one word; ``ServerUnreachable`` lists them
    description: str  # the cause as a clause


_CAUSES = (
    (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", "expired", "the server's certificate has expired"),
    (
        r"CERTIFICATE_VERIFY_FAILED: (unable to|self.signed|certificate signature failure)",
        "untrusted",
        "the server's certificate is signed by an untrusted CA",
    ),
    (
        r"Hostname Verification Check failed|is not in peer certificate",
        "name",
        "the server's certificate is not valid for the expected name",
    ),
    (r"WRONG_VERSION_NUMBER|HTTP_REQUEST", "plaintext", "the server does not use TLS"),
    # A server with TLS does this to a client without TLS, and one that requires client certificates
    # to a client with a wrong one.
    (
        r"failed to connect to all addresses; last error: .*(Socket closed|Connection reset)",
        "closed",
        "the server closed the connection before it answered, as one that requires TLS or a client certificate does",
    ),
)


def find_tls_failure(message: str) -> TlsFailure | None:
    """Return the TLS failure that a gRPC error message reports, or None if it reports none."""
    for pattern, kind, description in _CAUSES:
        if re.search(pattern, message, re.DOTALL):
            return TlsFailure(kind, description)
    return None
