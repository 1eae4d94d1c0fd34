"""Opens the stores that the settings ``store`` and ``witness`` name."""

import re
import ssl
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StartRefused
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.store.credentials import API_KEYS, SECRETS, authorization, tls_context
from idalloc_server.store.sqlite.store import SqliteStore
from idalloc_server.store.witness import check_files, check_hosts, refused_as_witness

if TYPE_CHECKING:
    from idalloc_server.store.cluster.http_transport import Transport
    from idalloc_server.store.cratedb.http import CrateHttp
    from idalloc_server.store.opensearch.http import OpenSearchHttp

_Http = TypeVar("_Http", bound="Transport")


class _Kind(NamedTuple):
    """The URLs of one kind of cluster."""

    product: str
    example: str
    port: int  # the usual one


_OPENSEARCH_KINDS = {
    name: _Kind("OpenSearch", f"{name}://user:password@host:9200/?prefix=idalloc", 9200)
    for name in ("opensearch", "elasticsearch")
}
_CLUSTERS = {"crate": _Kind("CrateDB", "crate://user:password@host:4200/?schema=doc", 4200), **_OPENSEARCH_KINDS}
_invalid = partial(StartRefused, "store")
_SCHEMA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_PREFIX = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9._-]+|\[(?P<ipv6>[0-9A-Fa-f:.]+)\])(?::(?P<port>[0-9]{1,5}))?")


def open_store(url: str, clock: Clock, timeout: float = 40.0) -> Store:
    """Return the store of a URL, not connected yet; ``Store.open`` connects.

    * ``sqlite:///absolute/path/of/the.db``
    * ``crate://[user[:password]@]host[:4200][,host2…]/`` with these parameters, all optional:

      * ``schema``: the schema of the tables (default ``doc``)
      * ``tls``: ``true`` or ``false`` (default ``false``)
      * ``ca``: a PEM file of CA certificates, in place of the system's; implies ``tls=true``
      * ``jwt``: a token, in place of user and password
      * ``password_file``, ``jwt_file``: a file that holds only the password or the token; read
        once, here

    * ``opensearch://[user[:password]@]host[:9200][,host2…]/``, or ``elasticsearch://`` (not
      tested), with these:

      * ``prefix``: the beginning of the names of the aliases (default ``idalloc``)
      * ``tls``, ``ca``, ``jwt``, ``password_file``, ``jwt_file``: as above
      * ``api_key``, ``api_key_file``: an API key in its encoded form, in place of user and password

    Reserved characters in a user, password, path or parameter are percent-encoded (RFC 3986).

    Args:
        url: The setting ``store``.
        clock: The clock of stores without their own clock.
        timeout: The timeout of a statement over the network, in seconds.

    Raises:
        StartRefused: The URL is invalid. No message contains a password or a token.
    """
    kind = _kind(url)
    if kind == "sqlite":
        return SqliteStore(sqlite_path(url), clock)
    # Imported late: a server on SQLite starts a fifth faster without an HTTP client.
    if kind == "crate":
        from idalloc_server.store.cratedb.store import CrateStore

        address, crate, schema = crate_http(url, timeout)
        return CrateStore(address, crate, schema)
    from idalloc_server.store.opensearch.store import OpenSearchStore

    address, http, prefix = _opensearch_http(url, kind, timeout)
    return OpenSearchStore(address, http, prefix, timeout)


def open_witness(url: str, store_url: str, timeout: float = 40.0) -> Witness:
    """Return the witness of a URL, not connected yet; ``Witness.open`` connects.

    Args:
        url: The setting ``witness``; see ``open_store``.
        store_url: The setting ``store``, which must have been accepted by ``open_store``.
        timeout: The timeout of a statement over the network, in seconds.

    Raises:
        StartRefused: The URL is invalid, or names a file or a host of the store. No message
            contains a password or a token.
    """
    with refused_as_witness():
        kind = _kind(url)
        if kind == "sqlite":
            from idalloc_server.store.sqlite.witness import SqliteWitness

            path = sqlite_path(url)
            if not store_url.startswith("sqlite://"):
                return SqliteWitness(path)
            store = sqlite_path(store_url)
            check_files(path, {store: "the file of the store"})
            return SqliteWitness(path, store)
        if not store_url.startswith("sqlite://"):
            hosts, store_hosts = (
                _host_names(_split(each).netloc.rpartition("@")[2], _CLUSTERS[_kind(each)]) for each in (url, store_url)
            )
            check_hosts(hosts, store_hosts)
        if kind == "crate":
            from idalloc_server.store.cratedb.witness import CrateWitness

            address, crate, schema = crate_http(url, timeout)
            return CrateWitness(address, crate, schema)
        from idalloc_server.store.opensearch.witness import OpenSearchWitness

        address, http, prefix = _opensearch_http(url, kind, timeout)
        return OpenSearchWitness(address, http, prefix, timeout)


def check_apart(witness: str, file: Path, what: str) -> None:
    """Check that a file of a port beside the store is not the file of the witness.

    Args:
        witness: The setting ``witness``; empty without one.
        file: The port's file.
        what: What the file is, for the error.

    Raises:
        StartRefused: It is the witness's.
    """
    if witness.startswith("sqlite://"):
        check_files(sqlite_path(witness), {file: what})


def _kind(url: str) -> str:
    kind, separator, _ = url.partition("://")
    if separator and (kind == "sqlite" or kind in _CLUSTERS):
        return kind
    raise _invalid(
        f"{f'unknown kind of store {kind!r}' if separator else 'the URL has no kind'}: "
        "write sqlite:///absolute/path, crate://user:password@host:4200/?schema=doc or "
        "opensearch://user:password@host:9200/?prefix=idalloc"
    )


def _split(url: str) -> SplitResult:
    # Without the hosts: RFC 3986 has one, and ``urlsplit`` refuses a list with brackets in it.
    kind, _, rest = url.strip().partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    user = authority[: authority.rfind("@") + 1]
    try:
        parts = urlsplit(f"{kind}://{user}{rest.removeprefix(authority)}")
    except ValueError:
        raise _invalid("the URL is malformed: percent-encode its reserved characters") from None
    return parts._replace(netloc=authority)


def sqlite_path(url: str) -> Path:
    """Return the file of a SQLite URL.

    Raises:
        StartRefused: The URL is invalid.
    """
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


def open_index(url: str, timeout: float = 40.0) -> "tuple[OpenSearchHttp, str]":
    """Return the transport to a cluster and the name of an index, of ``opensearch://user@host:9200/index``.

    The parameters are those of ``open_store``, without ``prefix``; ``elasticsearch://`` is the
    same, not tested.

    Raises:
        StartRefused: The URL is invalid. No message contains a password or a token.
    """
    from idalloc_server.store.opensearch.http import OpenSearchHttp

    parts = _split(url)
    index = parts.path.strip("/")
    if parts.scheme not in _OPENSEARCH_KINDS:
        raise _invalid(
            "the URL of an index begins with opensearch:// or elasticsearch:// (not tested); append ?tls=true for HTTPS"
        )
    kind = _OPENSEARCH_KINDS[parts.scheme]._replace(example=f"{parts.scheme}://user:password@host:9200/index")
    if not _PREFIX.fullmatch(index):
        raise _invalid(f"the URL of an index ends with the name of the index: {kind.example}")
    cluster = _split_cluster(parts._replace(path="/").geturl(), kind, ("tls", "ca", *SECRETS, *API_KEYS))
    return cluster.connect(OpenSearchHttp, timeout), index


class _Cluster(NamedTuple):
    """The parts of the URL of a cluster."""

    hosts: list[str]  # ``host:port`` of each host
    authority: str  # the user and the hosts, for people
    authorization: str | None  # the value of the Authorization header, if any
    tls: ssl.SSLContext | None  # None for plain HTTP
    parameters: dict[str, str]

    def address(self, kind: str, parameter: str, value: str) -> str:
        """Return the address without secrets."""
        return f"{kind}://{self.authority}/?{parameter}={value}{'&tls=true' if self.tls else ''}"

    def connect(self, http: type[_Http], timeout: float) -> _Http:
        """Return the transport to the cluster."""
        return http(self.hosts, authorization=self.authorization, tls=self.tls, timeout=timeout)


def crate_http(url: str, timeout: float) -> "tuple[str, CrateHttp, str]":
    """Return the address of a URL of CrateDB for people, its transport, and its schema.

    Raises:
        StartRefused: The URL is invalid.
    """
    from idalloc_server.store.cratedb.http import CrateHttp

    cluster = _split_cluster(url, _CLUSTERS["crate"], ("schema", "tls", "ca", *SECRETS))
    schema = cluster.parameters.get("schema", "doc")
    if not _SCHEMA.fullmatch(schema):
        raise _invalid("the parameter schema must consist of letters, digits, _ and -")
    return cluster.address("crate", "schema", schema), cluster.connect(CrateHttp, timeout), schema


def _opensearch_http(url: str, kind: str, timeout: float) -> "tuple[str, OpenSearchHttp, str]":
    """Return the address of a URL for people, its transport, and its prefix."""
    from idalloc_server.store.opensearch.http import OpenSearchHttp

    cluster = _split_cluster(url, _CLUSTERS[kind], ("prefix", "tls", "ca", *SECRETS, *API_KEYS))
    prefix = cluster.parameters.get("prefix", "idalloc")
    if not _PREFIX.fullmatch(prefix):
        raise _invalid("the parameter prefix must consist of a-z, 0-9, _, - and ., and begin with a letter or digit")
    return cluster.address(kind, "prefix", prefix), cluster.connect(OpenSearchHttp, timeout), prefix


def _split_cluster(url: str, kind: _Kind, accepted: Sequence[str]) -> _Cluster:
    # Messages repeat only names of parameters: if a character is not percent-encoded, any other
    # part may be a password.
    parts = _split(url)
    if parts.path not in ("", "/") or parts.fragment or "@" in parts.query:
        raise _invalid(
            f"the URL of {kind.product} has only parameters after its hosts: {kind.example}, "
            "with reserved characters percent-encoded"
        )
    credentials, _, hosts = parts.netloc.rpartition("@")
    names = _host_names(hosts, kind)
    user, has_password, password = (unquote(part) for part in credentials.partition(":"))
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in accepted:
            raise _invalid(f"unknown parameter {name!r}; the parameters are {', '.join(accepted)}")
        if name in parameters or not value:
            raise _invalid(f"the parameter {name} must be given once, with a value")
        parameters[name] = value
    return _Cluster(
        hosts=names,
        authority=f"{f'{user}@' if user else ''}{','.join(names)}",
        authorization=authorization(user, password if has_password else None, parameters, kind.example),
        tls=tls_context(parameters),
        parameters=parameters,
    )


def _host_names(hosts: str, kind: _Kind) -> list[str]:
    """Return ``host:port`` of each host of a cluster."""
    names = []
    try:
        for host in hosts.split(","):
            if (found := _HOST.fullmatch(host)) is None:
                raise ValueError
            IPv6Address(found["ipv6"] or "::")
            port = int(found["port"] or kind.port)
            if not 1 <= port <= 65535:
                raise ValueError
            names.append(f"{found['name']}:{port}")
    except ValueError:
        raise _invalid(
            f"the hosts of a URL of {kind.product} are written host:port,host2:port: "
            f"{kind.example.partition('?')[0]}, with the reserved characters of the password percent-encoded"
        ) from None
    return names
