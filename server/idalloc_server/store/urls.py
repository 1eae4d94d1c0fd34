"""Opens the store that the setting ``store`` names."""

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.documents.protocol import Documents
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.store.protocol import Store
from idalloc_server.store.credentials import SECRETS, authorization, tls_context
from idalloc_server.store.sqlite.documents import SqliteDocuments, documents_path
from idalloc_server.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from idalloc_server.store.cratedb.http import CrateHttp

_DEFAULT_PORT = 4200
_PARAMETERS = ("schema", "tls", "ca", *SECRETS)
_SCHEMA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")


def open_store(url: str, clock: Clock, timeout: float = 40.0) -> Store:
    """Returns the store of a URL, not connected yet; ``Store.open`` connects.

    * ``sqlite:///absolute/path/of/the.db``
    * ``crate://[user[:password]@]host[:4200][,host2…]/`` with these parameters, all optional:

      * ``schema``: the schema of the tables (default ``doc``)
      * ``tls``: ``true`` or ``false`` (default ``false``)
      * ``ca``: a PEM file of CA certificates, in place of the system's; implies ``tls=true``
      * ``jwt``: a token, in place of user and password
      * ``password_file``, ``jwt_file``: a file that holds only the password or the token; read once, here

    Reserved characters in a user, password, path or parameter are percent-encoded (RFC 3986).

    Args:
        url: The setting ``store``.
        clock: The clock of stores without their own clock.
        timeout: The timeout of a statement over the network, in seconds.

    Raises:
        StartRefused: The URL is invalid. No message contains a password or a token.
    """
    kind, separator, _ = url.partition("://")
    if separator and kind == "sqlite":
        return SqliteStore(_sqlite_path(url), clock)
    if separator and kind == "crate":
        return _crate(url, timeout)
    raise _invalid(
        f"{f'unknown kind of store {kind!r}' if separator else 'the URL has no kind'}: "
        "write sqlite:///absolute/path or crate://user:password@host:4200/?schema=doc"
    )


def _invalid(message: str) -> StartRefused:
    return StartRefused("store", message)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise _invalid("the URL is malformed: percent-encode its reserved characters") from None


def _sqlite_path(url: str) -> Path:
    parts = _split(url)
    path = Path(re.sub("^//+", "/", unquote(parts.path)))  # POSIX, and so Path, keeps two leading slashes
    if parts.netloc or not path.is_absolute() or not path.name or "\0" in path.name:
        raise _invalid("a SQLite URL needs an absolute path: sqlite:///path/of/the.db")
    if path.parts[1] == ":memory:" or path.parts[1].startswith("~"):
        raise _invalid(
            "a SQLite URL needs the absolute path of a file: memory would lose the counters, and ~ is not expanded"
        )
    if parts.query or parts.fragment:
        raise _invalid("a SQLite URL takes no parameters; write ? as %3F and # as %23 in its path")
    return path


def open_documents(url: str, timeout: float = 40.0) -> Documents:
    """Returns the documents beside the counters of a store, not connected yet; ``Documents.open`` connects.

    Args:
        url: The setting ``store``; see ``open_store``.
        timeout: The timeout of a statement over the network, in seconds.

    Raises:
        StartRefused: The URL is invalid.
    """
    kind, separator, _ = url.partition("://")
    if separator and kind == "sqlite":
        return SqliteDocuments(documents_path(_sqlite_path(url)))
    if separator and kind == "crate":
        from idalloc_server.store.cratedb.documents import CrateDocuments

        http, schema, _ = _crate_http(url, timeout)
        return CrateDocuments(http, schema)
    raise _invalid(f"a store of kind {kind!r} keeps no documents")


def _crate(url: str, timeout: float) -> Store:
    # Imported late: a server on SQLite starts a fifth faster without an HTTP client.
    from idalloc_server.store.cratedb.store import CrateStore

    return CrateStore(*_crate_http(url, timeout))


def _crate_http(url: str, timeout: float) -> "tuple[CrateHttp, str, str]":
    """Returns the transport of a URL, its schema, and its address for people."""
    # Messages repeat only names of parameters: if a character is not percent-encoded, any other part may be a password.
    parts = _split(url)
    if parts.path not in ("", "/") or parts.fragment or "@" in parts.query:
        raise _invalid(
            "a CrateDB URL has only parameters after its hosts: crate://user:password@host:4200/?schema=doc, "
            "with reserved characters percent-encoded"
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    names = [_host(host) for host in hosts.split(",")]
    user, has_password, password = (unquote(part) for part in credentials.partition(":"))
    parameters = _parse_parameters(parts.query)

    schema = parameters.get("schema", "doc")
    if not _SCHEMA.fullmatch(schema):
        raise _invalid("the parameter schema must consist of letters, digits, _ and -")
    header = authorization(user, password if has_password else None, parameters)
    tls = tls_context(parameters)
    address = f"crate://{f'{user}@' if user else ''}{','.join(names)}/?schema={schema}{'&tls=true' if tls else ''}"
    from idalloc_server.store.cratedb.http import CrateHttp

    return CrateHttp(names, authorization=header, tls=tls, timeout=timeout), schema, address


def _host(text: str) -> str:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= 65535:
        raise _invalid(
            "the hosts of a CrateDB URL are written host:port,host2:port: crate://user:password@host:4200/, "
            "with the reserved characters of the password percent-encoded"
        )
    return f"{found['name']}:{port}"


def _parse_parameters(query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise _invalid(f"unknown parameter {name!r}; the parameters are {', '.join(_PARAMETERS)}")
        if name in parameters or not value:
            raise _invalid(f"the parameter {name} must be given once, with a value")
        parameters[name] = value
    return parameters
