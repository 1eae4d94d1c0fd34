"""Logins: MYSQL41, SHA256_MEMORY and PLAIN.

Without an access file the server accepts every name and proof. With one only PLAIN over TLS
succeeds: the other mechanisms would need a digest in the access file that itself works as a
password.
"""

import secrets
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from idalloc_xproto.mysql_errors import XError, text_of

SALT_BYTES = 20
# The most failed logins of a connection; the last one ends it.
MAX_FAILURES = 3
# The longest name of a login that an error shows: MySQL's limit of a user's name. A token, which
# may be sent in its place, has 51 characters.
MAX_SHOWN = 32

_MECHANISMS = ("MYSQL41", "SHA256_MEMORY", "PLAIN")
_DOLLAR = ord("$")


def new_salt() -> bytes:
    """Return a salt as MySQL makes it: 19 bytes from 1 to 127 without a dollar sign, and a NUL."""
    allowed = [byte for byte in range(1, 128) if byte != _DOLLAR]
    return bytes(secrets.choice(allowed) for _ in range(SALT_BYTES - 1)) + b"\0"


def shown(name: str) -> str:
    """Return a login's name as an error shows it: empty if it may be something else, as a token."""
    return name if len(name) <= MAX_SHOWN and name.isprintable() else ""


class Credentials(NamedTuple):
    """What a client logs in with."""

    schema: str  # the default schema; empty for none
    user: str
    token: str | None  # the password of PLAIN; None for a proof, which does not reveal it
    has_password: bool  # whether the client sent a password or a proof


@dataclass(eq=False)
class Login:
    """The logins that one connection tries."""

    host: str  # the client's, for the error
    make_salt: Callable[[], bytes] = new_salt
    _: KW_ONLY
    requires_tls: bool = False

    def __post_init__(self) -> None:
        self._failures = 0
        self._waits = False  # for the client's proof

    def start(self, mechanism: str, data: bytes, *, is_secure: bool) -> Credentials | bytes:
        """Start a login; return the credentials, or the salt for the client.

        Raises:
            XError: The mechanism is unknown or needs TLS, or a name is not UTF-8.
        """
        if mechanism == "PLAIN" and not is_secure and self.requires_tls:
            raise _insecure(fatal=True)
        if mechanism not in _MECHANISMS or (mechanism == "PLAIN" and not is_secure):
            raise XError(1251, f"Invalid authentication method {shown(mechanism)}", fatal=True)
        if mechanism == "PLAIN":
            self._waits = False
            return self._credentials(data, is_plain=True)
        self._waits = True
        return self.make_salt()

    def proceed(self, data: bytes, *, is_secure: bool) -> Credentials:
        """Return the credentials that a client sends after the salt.

        Raises:
            XError: No login has started, it needs TLS, or a name is not UTF-8.
        """
        if not self._waits:
            raise XError(5000, "Invalid message", fatal=True)
        self._waits = False
        if self.requires_tls and not is_secure:
            # Not before, and not fatal, as in MySQL: clients try another mechanism, and show the
            # last error.
            raise _insecure(fatal=self._is_last_failure())
        return self._credentials(data, is_plain=False)

    def refusal(self, credentials: Credentials) -> XError:
        """Count a failed login, and return its error."""
        using = "YES" if credentials.has_password else "NO"
        text = f"Access denied for user '{shown(credentials.user)}'@'{self.host}' (using password: {using})"
        return XError(1045, text, fatal=self._is_last_failure())

    def _credentials(self, data: bytes, *, is_plain: bool) -> Credentials:
        """Return the schema, user and secret, which NULs separate; the secret may have NULs, too.

        Raises:
            XError: A name is not UTF-8.
        """
        schema, user, secret = [*data.split(b"\0", 2), b"", b""][:3]
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
