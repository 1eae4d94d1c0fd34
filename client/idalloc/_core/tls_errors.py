"""Why no connection came about, where gRPC tells it in OpenSSL's words."""

import re
from typing import NamedTuple


class Trouble(NamedTuple):
    """What kept a connection from coming about.

    Attributes:
        kind: One word for it.
        told: What to say of the server.
    """

    kind: str
    told: str


_TROUBLES = (
    (r"CERTIFICATE_VERIFY_FAILED: certificate has expired", Trouble("expired", "its certificate has expired")),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        Trouble("untrusted", "its certificate is of no authority that this client trusts"),
    ),
    (
        r"Hostname Verification Check failed|is not in peer certificate",
        Trouble("name", "its certificate is for other names than the one that it was called by"),
    ),
    (r"WRONG_VERSION_NUMBER|HTTP_REQUEST", Trouble("plaintext", "it speaks no TLS")),
    (r"ALERT|CERTIFICATE_REQUIRED", Trouble("refused", "it refused this client's certificate")),
    (r"Failed to create security handshaker", Trouble("unusable", "the credentials of this client cannot be used")),
    # What a server that speaks TLS alone does with a client that does not; and with one that shows no certificate, or
    # not the right one, in TLS 1.3.
    (
        r"^failed to connect to all addresses.*(Socket closed|Connection reset by peer)",
        Trouble("closed", "it ended the connection at once; it may speak TLS only, or want another client certificate"),
    ),
)


def trouble(message: str) -> Trouble | None:
    """Finds out what a message of gRPC's tells of TLS, if anything."""
    return next((known for pattern, known in _TROUBLES if re.search(pattern, message, re.DOTALL)), None)
