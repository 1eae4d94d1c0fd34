"""From the setting ``store`` to the store."""

import base64
import re
import ssl
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StartRefused, shown_path
from idalloc_server.domain.store import Store
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.store import CrateStore
from idalloc_server.store.sqlite.store import SqliteStore

_DEFAULT_PORT = 4200
_SECRETS = ("jwt", "jwt_file", "password_file")
_PARAMETERS = ("schema", "tls", "ca", *_SECRETS)
_SCHEMA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


def open_store(url: str, clock: Clock, timeout: float = 40.0) -> Store:
    """Makes the store of a URL; ``Store.open`` then connects.

    * ``sqlite:///absolute/path/of/the.db``
    * ``crate://[user[:password]@]host[:4200][,host2…]/`` with these parameters, all optional:

      * ``schema``: the schema of the tables (``doc``)
      * ``tls``: ``true`` or ``false`` (``false``)
      * ``ca``: a file of the authorities to trust instead of the system's, in PEM; means ``tls=true``
      * ``jwt``: a token, instead of user and password
      * ``password_file``, ``jwt_file``: a file that it is in, alone, instead of in the URL; read here, once

    Reserved characters of a user, password, path or parameter are percent-encoded.

    Args:
        url: The setting ``store``.
        clock: For the stores that have no clock of their own.
        timeout: How long a statement may take over the network, in seconds.

    Raises:
        StartRefused: The URL is not understood. What it says holds no password and no token.
    """
    kind, separator, _ = url.partition("://")
    if separator and kind == "sqlite":
        return _sqlite(url, clock)
    if separator and kind == "crate":
        return _crate(url, timeout)
    raise _refused(
        f"{f'the kind {kind!r} is unknown' if separator else 'it has no kind'}: "
        "write sqlite:///absolute/path or crate://user:password@host:4200/?schema=doc"
    )


def has_secret(url: str) -> bool:
    """Tells whether a password or a token is in a URL, which may be malformed."""
    kind, _, rest = url.partition("://")
    before_hosts = rest.rpartition("@")[0]
    return kind != "sqlite" and (":" in before_hosts or "jwt=" in unquote(rest).lower())


def _refused(message: str) -> StartRefused:
    return StartRefused("store", message)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _refused("the URL cannot be read: percent-encode its reserved characters") from None


def _sqlite(url: str, clock: Clock) -> Store:
    parts = _split(url)
    path = Path(re.sub("^//+", "/", unquote(parts.path)))  # POSIX, and so Path, keeps two slashes in front
    if parts.netloc or not path.is_absolute() or not path.name or "\0" in path.name:
        raise _refused("a SQLite store is written with an absolute path: sqlite:///path/of/the.db")
    if path.parts[1] == ":memory:" or path.parts[1].startswith("~"):
        raise _refused("a SQLite store is a file with its whole path: counters in memory would be lost, ~ is not known")
    if parts.query or parts.fragment:
        raise _refused("a SQLite store takes no parameters; write ? as %3F and # as %23 in its path")
    return SqliteStore(path, clock)


def _crate(url: str, timeout: float) -> Store:
    # Nothing of the URL but names of parameters is repeated: with a character that should have been encoded, a
    # password may be anywhere in it.
    parts = _split(url)
    if parts.path not in ("", "/") or parts.fragment or "@" in parts.query:
        raise _refused(
            "after the hosts of a CrateDB store come only parameters: crate://user:password@host:4200/?schema=doc, "
            "with reserved characters percent-encoded"
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    names = [_host(host) for host in hosts.split(",")]
    user, has_password, password = (unquote(part) for part in credentials.partition(":"))
    parameters = _parameters(parts.query)

    schema = parameters.get("schema", "doc")
    if not _SCHEMA.fullmatch(schema):
        raise _refused("the parameter schema must be of letters, digits, _ and -")
    authorization = _authorization(user, password if has_password else None, parameters)
    tls = _tls(parameters)
    address = f"crate://{f'{user}@' if user else ''}{','.join(names)}/?schema={schema}{'&tls=true' if tls else ''}"
    http = CrateHttp(names, authorization=authorization, tls=tls, timeout=timeout)
    return CrateStore(http, schema, address)


def _authorization(user: str, password: str | None, parameters: dict[str, str]) -> str | None:
    ways = [name for name in _SECRETS if name in parameters]
    if len(ways) + (password is not None) > 1:
        shown_path = f"{', '.join(ways)}{' and a password' if password is not None else ''}"
        raise _refused(f"give one of a password, password_file, jwt and jwt_file, not {shown_path}")
    if not ways:
        return _basic(user, password or "") if user or password is not None else None
    way = ways[0]
    secret = _content(way, parameters[way]) if way.endswith("_file") else parameters[way]
    if way == "password_file":
        if not user:
            raise _refused("password_file needs a user: crate://user@host:4200/?password_file=/path")
        return _basic(user, secret)
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise _refused(f"the parameter {way} {'is' if way == 'jwt' else 'names a file with'} no token")
    return f"Bearer {secret}"


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _content(name: str, path: str) -> str:
    """Reads a secret; nothing of it is told where that fails."""
    try:
        content = Path(path).read_bytes().decode()
    except OSError as error:
        raise _refused(f"{name}: cannot read {shown_path(Path(path))}: {error.strerror}") from None
    except ValueError:
        raise _refused(f"{name}: cannot read {shown_path(Path(path))}: not a text in UTF-8, or not a path") from None
    secret = content.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise _refused(f"{name}: there is nothing in {shown_path(Path(path))}")
    return secret


def _host(text: str) -> str:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise _refused(
            "the hosts of a CrateDB store are written host:port,host2:port: crate://user:password@host:4200/, "
            "with the reserved characters of the password percent-encoded"
        )
    return f"{found['name']}:{port}"


def _parameters(query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise _refused(f"the parameter {name!r} is unknown: there are {', '.join(_PARAMETERS)}")
        if name in parameters or not value:
            raise _refused(f"the parameter {name} must be given once, with a value")
        parameters[name] = value
    return parameters


def _tls(parameters: dict[str, str]) -> ssl.SSLContext | None:
    ca = parameters.get("ca")
    tls = parameters.get("tls", "false" if ca is None else "true")
    if tls not in ("true", "false") or (ca is not None and tls == "false"):
        raise _refused("the parameter tls must be true or false, and true where there is a ca")
    if tls == "false":
        return None
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # also ssl.SSLError
        raise _refused(f"the parameter ca must be a file of certificates in PEM: {ca}: {error}") from error
