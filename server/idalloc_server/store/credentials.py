"""The secrets of a store URL: passwords, tokens, the files that hold them; and TLS."""

import base64
import ssl
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from idalloc_server.domain.errors import StartRefused, shown_path


class _Scheme(NamedTuple):
    """How a parameter of the URL authenticates."""

    name: str  # the scheme of the Authorization header
    is_file: bool  # whether the parameter names a file that holds the secret


_SCHEMES = {
    "jwt": _Scheme("Bearer", is_file=False),
    "jwt_file": _Scheme("Bearer", is_file=True),
    "password_file": _Scheme("Basic", is_file=True),
    "api_key": _Scheme("ApiKey", is_file=False),
    "api_key_file": _Scheme("ApiKey", is_file=True),
}
# Of OpenSearch and Elasticsearch (not tested); CrateDB has none.
API_KEYS = ("api_key", "api_key_file")
SECRETS = tuple(name for name in _SCHEMES if name not in API_KEYS)
# OpenSSL's codes: no trusted CA signed the certificate, or one of its chain.
_UNTRUSTED_CA = (18, 19, 20, 21)


def has_secret(url: str) -> bool:
    """Whether a URL, which may be malformed, contains a password or a token."""
    kind, _, rest = url.partition("://")
    before_hosts = rest.rpartition("@")[0]
    return kind != "sqlite" and (
        ":" in before_hosts or any(f"{name}=" in unquote(rest).lower() for name in ("jwt", "api_key"))
    )


def authorization(user: str, password: str | None, parameters: dict[str, str], example: str) -> str | None:
    """Return the value of the Authorization header (RFC 7617, RFC 6750); None without credentials.

    Args:
        user: The user; empty if the URL has none.
        password: The password in the URL, or None.
        parameters: The parameters of the URL; a file of a secret is read once, here.
        example: A URL with a user, for errors.

    Raises:
        StartRefused: There are two secrets, or the secret cannot be read or used. The message does
            not contain it.
    """
    given = [name for name in _SCHEMES if name in parameters]
    if len(given) + (password is not None) > 1:
        found = f"{', '.join(given)}{' and a password' if password is not None else ''}"
        keys = ", api_key and api_key_file" if any(name in API_KEYS for name in given) else ""
        accepted = f"password_file, jwt, jwt_file{keys}" if keys else "password_file, jwt and jwt_file"
        raise StartRefused("store", f"give one of a password, {accepted}, not {found}")
    if not given:
        return _basic(user, password or "") if user or password is not None else None
    name = given[0]
    scheme = _SCHEMES[name]
    secret = _read_secret(name, parameters[name]) if scheme.is_file else parameters[name]
    if scheme.name != "Basic":
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            problem = (
                f"the file of {name} has no token in it" if scheme.is_file else f"the parameter {name} is not a token"
            )
            raise StartRefused("store", f"{problem}: a token is printable ASCII without spaces")
        return f"{scheme.name} {secret}"
    if not user:
        with_user = example.replace(":password@", "@").partition("?")[0]
        raise StartRefused("store", f"password_file needs a user: {with_user}?password_file=/path")
    return _basic(user, secret)


def tls_context(parameters: dict[str, str]) -> ssl.SSLContext | None:
    """Return the client's TLS context, or None for plain HTTP.

    Raises:
        StartRefused: The parameters contradict each other, or the file of CA certificates cannot be
            used.
    """
    ca = parameters.get("ca")
    tls = parameters.get("tls", "false" if ca is None else "true")
    if tls not in ("true", "false") or (ca is not None and tls == "false"):
        raise StartRefused("store", "the parameter tls must be true or false, and true if ca is set")
    if tls == "false":
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # also ssl.SSLError
        raise StartRefused("store", f"the parameter ca must be a file of certificates in PEM: {ca}: {error}") from error


def certificate_problem(error: Exception) -> str:
    """Return why a server's certificate was refused, with the next step; empty for other errors."""
    reason = getattr(error, "certificate_error", None)
    if not isinstance(reason, ssl.SSLCertVerificationError):
        return ""
    step = "; set ca in the URL to the file of the CA that signed it" if reason.verify_code in _UNTRUSTED_CA else ""
    return f"its certificate is refused: {reason.verify_message}{step}"


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _read_secret(name: str, path: str) -> str:
    shown = shown_path(Path(path))
    try:
        content = Path(path).read_bytes().decode()
    except OSError as error:
        raise StartRefused("store", f"{name}: cannot read {shown}: {error.strerror}") from None
    except ValueError:
        raise StartRefused("store", f"{name}: cannot read {shown}: not UTF-8 text, or not a path") from None
    secret = content.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise StartRefused("store", f"{name}: {shown} is empty")
    return secret
