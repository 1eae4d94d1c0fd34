"""Why no connection came about, where gRPC tells it in OpenSSL's words."""

import re
from typing import NamedTuple


class TlsError(NamedTuple):
    """What kept a connection from coming about.

    Attributes:
        kind: One word for it.
        told: What to say of the server.
    """

    kind: str
    told: str


_TROUBLES = (
    (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", TlsError("expired", "its certificate has expired")),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        TlsError("untrusted", "its certificate is of no authority that this client trusts"),
    ),
    (
        r"Hostname Verification Check failed|is not in peer certificate",
        TlsError("name", "its certificate is for other names than the one that it was called by"),
    ),
    (r"WRONG_VERSION_NUMBER|HTTP_REQUEST", TlsError("plaintext", "it speaks no TLS")),
    (r"ALERT|CERTIFICATE_REQUIRED", TlsError("refused", "it refused this client's certificate")),
    (r"Failed to create security handshaker", TlsError("unusable", "the credentials of this client cannot be used")),
    # What a server that speaks TLS alone does with a client that does not; and with one that shows no certificate, or
    # not the right one, in TLS 1.3.
    (
        r"^failed to connect to all addresses.*(Socket closed|Connection reset by peer)",
        TlsError(
            "closed", "it ended the connection at once; it may speak TLS only, or want another client certificate"
        ),
    ),
)


def tls_error_of(message: str) -> TlsError | None:
    """Finds out what a message of gRPC's tells of TLS, if anything."""
    return next((known for pattern, known in _TROUBLES if re.search(pattern, message, re.DOTALL)), None)
