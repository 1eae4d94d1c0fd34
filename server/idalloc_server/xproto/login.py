"""Logins: MYSQL41, SHA256_MEMORY and PLAIN.

Without an access file every name and proof is accepted. With one only PLAIN over TLS succeeds: the
other mechanisms would need a digest in the access file that itself works as a password.
"""

import secrets
from collections.abc import Callable
from typing import NamedTuple

from idalloc_server.xproto.errors import XError
from idalloc_server.xproto.texts import text_of

SALT_BYTES = 20
# Failed logins of a connection, of which the last one ends it.
MAX_FAILURES = 3
# The longest name of a login in an error; as the longest name of a user in MySQL. A token has 51
# characters.
MAX_SHOWN = 32

_MECHANISMS = ("MYSQL41", "SHA256_MEMORY", "PLAIN")
_DOLLAR = ord("$")


def new_salt() -> bytes:
    """Return a salt as MySQL makes it: 19 bytes from 1 to 127 without a dollar sign, and a NUL."""
    allowed = [byte for byte in range(1, 128) if byte != _DOLLAR]
    return bytes(secrets.choice(allowed) for _ in range(SALT_BYTES - 1)) + b"\0"


def shown(name: str) -> str:
    """Return a name of a login as an error shows it: nothing of what is no name, such as a token in its place."""
    return name if len(name) <= MAX_SHOWN and name.isprintable() else ""


class Credentials(NamedTuple):
    """What a client logs in with."""

    schema: str  # the default schema; empty for none
    user: str  # the user's name
    token: str | None  # the password of PLAIN; None of a proof, from which it cannot be recovered
    has_password: bool  # whether the client sent a password or a proof


class Login:
    """The logins that one connection tries.

    Args:
        host: The client's host, for the error.
        make_salt: Returns a salt.
        requires_tls: Whether a login needs TLS.
    """

    def __init__(self, host: str, make_salt: Callable[[], bytes] = new_salt, *, requires_tls: bool = False) -> None:
        self._host = host
        self._make_salt = make_salt
        self._requires_tls = requires_tls
        self._failures = 0
        self._waits = False

    def start(self, mechanism: str, data: bytes, *, is_secure: bool) -> Credentials | bytes:
        """Start a login; return the credentials, or the salt for the client.

        Raises:
            XError: The mechanism is unknown or needs TLS, or a name is not UTF-8.
        """
        if mechanism == "PLAIN" and not is_secure and self._requires_tls:
            raise _insecure(fatal=True)
        if mechanism not in _MECHANISMS or (mechanism == "PLAIN" and not is_secure):
            raise XError(1251, f"Invalid authentication method {shown(mechanism)}", fatal=True)
        if mechanism == "PLAIN":
            self._waits = False
            return self._credentials(data, is_plain=True)
        self._waits = True
        return self._make_salt()

    def proceed(self, data: bytes, *, is_secure: bool) -> Credentials:
        """Return the credentials that a client sends after the salt.

        Raises:
            XError: No login has started, it needs TLS, or a name is not UTF-8.
        """
        if not self._waits:
            raise XError(5000, "Invalid message", fatal=True)
        self._waits = False
        if self._requires_tls and not is_secure:
            # Not before, and not fatal: as with MySQL, clients try another mechanism, and show the
            # last error.
            raise _insecure(fatal=self._is_last_failure())
        return self._credentials(data, is_plain=False)

    def refusal(self, credentials: Credentials) -> XError:
        """Count a failed login, and return its error."""
        using = "YES" if credentials.has_password else "NO"
        text = f"Access denied for user '{shown(credentials.user)}'@'{self._host}' (using password: {using})"
        return XError(1045, text, fatal=self._is_last_failure())

    def _credentials(self, data: bytes, *, is_plain: bool) -> Credentials:
        """Return the schema, the user and the secret, which are separated by NULs; a NUL in the secret is a part of it.

        Raises:
            XError: A name is not UTF-8.
        """
        schema, user, secret, *_ = (*data.split(b"\0", 2), b"", b"")
        token = secret.decode("utf-8", "surrogateescape") if is_plain else None
        try:
            name = user.decode()
        except UnicodeDecodeError:
            raise self.refusal(Credentials("", "", token, bool(secret))) from None
        return Credentials(text_of(schema), name, token, bool(secret))

    def _is_last_failure(self) -> bool:
        """Count a failed login, and return whether it ends the connection."""
        self._failures += 1
        return self._failures >= MAX_FAILURES


def _insecure(*, fatal: bool) -> XError:
    return XError(3159, "Connections using insecure transport are prohibited: use TLS", fatal=fatal)
