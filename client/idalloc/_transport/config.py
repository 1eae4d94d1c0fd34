"""Configuration of the channel to a server: target, TLS, token and certificate."""

import ipaddress
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING, Any, TypedDict

from idalloc._core.defaults import DEFAULT_TARGET
from idalloc._core.text import escaped

if TYPE_CHECKING:
    import grpc

_TOKEN = re.compile("[!-~]+")
# The values of a Boolean environment variable.
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class ChannelConfigError(ValueError):
    """A setting of the channel is invalid."""

    def __init__(self, setting: str, problem: str) -> None:
        problem = escaped(problem)
        super().__init__(f"{setting}: {problem}")
        self.setting = setting  # an argument of `ChannelSettings` or `ChannelConfig`
        self.problem = problem  # never contains a secret


class ChannelArguments(TypedDict):
    """The arguments of a client that configure its channel."""

    token: str | None
    credentials: "grpc.ChannelCredentials | None"
    server_name: str | None
    insecure: bool


class ChannelConfig:
    """How to call a target: credentials, metadata and channel options.

    The arguments are those of ``idalloc.Client``. Its repr does not show the token.

    Raises:
        ChannelConfigError: The target is a URL or has no port, the token is malformed, or it would
            be sent unencrypted.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        credentials: "grpc.ChannelCredentials | None" = None,
        server_name: str | None = None,
        insecure: bool = False,
    ) -> None:
        if re.match("(http|grpc)s?://", target):
            raise ChannelConfigError("server", "must be HOST:PORT, without a scheme such as http://")
        if not all(map(_has_port, split(target))):
            form = "HOST:PORT, such as localhost:50051 or [::1]:50051, or several with commas"
            raise ChannelConfigError("server", f"must be {form}, not {target!r}")
        self.credentials = credentials
        self.metadata: tuple[tuple[str, str], ...] | None = None  # of each call
        self.options: list[tuple[str, str | int]] = [
            # The client retries. gRPC repeats a call that was never sent without limit or pause,
            # even if each connection begins with GOAWAY: docs/operations/grpc-goaway.md.
            ("grpc.enable_retries", 0),
            # No proxy of the environment: http_proxy would also capture calls to this machine.
            ("grpc.enable_http_proxy", 0),
        ]
        if server_name:
            if credentials is None:
                raise ChannelConfigError("server_name", "requires TLS: set tls, ca or cert (or credentials), too")
            self.options.append(("grpc.default_authority", server_name))
        if token is not None:
            if not _TOKEN.fullmatch(token):  # gRPC itself would print a token that it rejects
                must = "must be ASCII characters without spaces, line breaks or the prefix Bearer"
                raise ChannelConfigError("token", must)
            self.metadata = (("authorization", f"Bearer {token}"),)
            if credentials is None and not insecure and not is_local(target):
                problem = f"the token would be sent unencrypted to {target}: use TLS (ca, credentials), or allow it"
                raise ChannelConfigError("insecure", f"{problem} (insecure)")

    def open(self, kind: Any, target: str, options: Iterable[tuple[str, str | int]] = ()) -> Any:
        """Open a channel of the module ``grpc`` or ``grpc.aio``; its own options come last."""
        options = [*options, *self.options]
        if self.credentials is None:
            return kind.insecure_channel(target, options)
        return kind.secure_channel(target, self.credentials, options)


def split(target: str) -> list[str]:
    """Return the targets of the servers of a list; any other target is one server."""
    scheme, _, rest = target.partition(":")
    if scheme in ("ipv4", "ipv6"):
        return [f"{scheme}:{each}" for each in rest.lstrip("/").split(",")]
    return [target] if "/" in target else [each.strip() for each in target.split(",")]


def name_of(target: str) -> tuple[str, int] | None:
    """Return the host name and the port of a target that may be several servers, else None."""
    match = re.fullmatch(r"(?:dns:/*)?(?!unix:|vsock:|localhost:|[\d.]+:)([^/:\[\]]+):(\d+)", target)
    return (match[1], int(match[2])) if match else None


def addresses(name: tuple[str, int], found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the targets of the servers that a name resolves to, by the answer of ``getaddrinfo``.

    They are those of one family, IPv4 first; none if there is only one, which gRPC finds by itself.
    """
    infos = list(found)
    for family, form in ((AF_INET, "ipv4:{}:{}"), (AF_INET6, "ipv6:[{}]:{}")):
        hosts = dict.fromkeys(each[4][0] for each in infos if each[0] == family)
        if len(hosts) > 1:
            return [form.format(host, name[1]) for host in hosts]
    return []


def _has_port(target: str) -> bool:
    """Return whether the address of one server has a port, without which gRPC uses 443.

    Other resolvers' targets are not checked.
    """
    scheme, _, rest = target.partition(":")
    if scheme in ("dns", "ipv4", "ipv6"):
        target = rest.rpartition("/")[2]
    elif "/" in target or scheme in ("unix", "unix-abstract", "vsock"):
        return True
    match = re.fullmatch(r"(?:\[[^]]+\]|[^][:]+):([0-9]{1,5})", target)
    return match is not None and 1 <= int(match[1]) <= 65_535


def is_local(target: str) -> bool:
    """Return whether the servers are on this machine: Unix sockets or loopback addresses."""
    return all(map(_is_loopback, split(target)))


def _is_loopback(target: str) -> bool:
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    # A target that names a DNS server has a / in it, and is not an address.
    address = rest.lstrip("/") if scheme in ("dns", "ipv4", "ipv6") else target
    match = re.fullmatch(r"\[(?P<ipv6>[^]]+)\](:\w+)?|(?P<host>[^:]+)(:\w+)?", address)
    if match is None:
        return False
    host = match["ipv6"] or match["host"]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, kw_only=True)
class ChannelSettings:
    """The settings of a channel as a user gives them: certificates and tokens by their files."""

    # Whether to use TLS; ``ca`` and ``cert`` imply it.
    tls: bool = False
    # PEM file of the CA certificates to trust; None for the system's.
    ca: str | os.PathLike[str] | None = None
    # PEM file of the client's certificate chain, and of its private key.
    cert: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    # The name in the server's certificate, if it is not the target's.
    server_name: str | None = None
    # The bearer token, or the file that contains it.
    token: str | None = field(default=None, repr=False)
    token_file: str | os.PathLike[str] | None = None
    # Whether the token may be sent to another machine without TLS.
    insecure: bool = False

    def read(self) -> ChannelArguments:
        """Return the arguments of a client, and read the files of certificates and tokens.

        Raises:
            ChannelConfigError: The settings contradict each other, or a file cannot be read or is
                invalid.
        """
        if bool(self.cert) != bool(self.key):
            given, missing = ("cert", "key") if self.cert else ("key", "cert")
            raise ChannelConfigError(missing, f"must be given with {given}")
        if self.token and self.token_file:
            raise ChannelConfigError("token_file", "cannot be combined with token (IDALLOC_TOKEN); set one of them")
        has_tls = self.tls or self.ca or self.cert
        credentials = _load_credentials(self.ca, self.cert, self.key) if has_tls else None
        return ChannelArguments(
            token=read_token(self.token_file) if self.token_file else self.token or None,
            credentials=credentials,
            server_name=self.server_name or None,
            insecure=self.insecure,
        )

    def stamps(self) -> list[tuple[int, int, int] | None]:
        """Return what changes with the files: of the token's, and of those of TLS."""
        found: list[tuple[int, int, int] | None] = []
        for file in (self.token_file, self.ca, self.cert, self.key):
            try:
                status = os.stat(file or "")  # noqa: PTH116 - no Path is needed
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append(None)
        return found


def from_environment(environ: Mapping[str, str] = os.environ) -> tuple[str, ChannelSettings, ChannelArguments]:
    """Return a client's target, settings and arguments from the variables ``IDALLOC_*``.

    Raises:
        ChannelConfigError: A variable is invalid; it is the ``setting``.
    """
    target = environ.get("IDALLOC_SERVER") or DEFAULT_TARGET
    found = {
        name: environ.get(environment_variable(name), "") for name in ("ca", "cert", "key", "token_file", "server_name")
    }
    try:
        settings = ChannelSettings(
            tls=_boolean(environ, "tls"),
            insecure=_boolean(environ, "insecure"),
            token=environ.get(environment_variable("token")),
            **found,
        )
        arguments = settings.read()
        ChannelConfig(target, **arguments)
    except ChannelConfigError as error:
        raise ChannelConfigError(environment_variable(error.setting), error.problem) from None
    return target, settings, arguments


def environment_variable(setting: str) -> str:
    """Return the name of a setting's environment variable.

    IDALLOC_INSECURE is a setting of the server.
    """
    return "IDALLOC_TOKEN_INSECURE" if setting == "insecure" else f"IDALLOC_{setting.upper()}"


def _boolean(environ: Mapping[str, str], setting: str) -> bool:
    text = environ.get(environment_variable(setting)) or "false"
    if text.lower() not in _BOOLEANS:
        raise ChannelConfigError(setting, "must be true or false")
    return _BOOLEANS[text.lower()]


def read_token(file: str | os.PathLike[str]) -> str:
    """Return the token in a file, without surrounding white space.

    Raises:
        ChannelConfigError: The file cannot be read, or does not contain exactly one token.
    """
    try:
        token = _read("token_file", file).decode().strip()
    except UnicodeDecodeError:
        raise ChannelConfigError("token_file", f"{file} is not text") from None
    if not token:
        raise ChannelConfigError("token_file", f"{file} is empty")
    if not _TOKEN.fullmatch(token):
        raise ChannelConfigError("token_file", f"{file} must contain one token and nothing else")
    return token


def _load_credentials(
    ca: str | os.PathLike[str] | None, cert: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None
) -> "grpc.ChannelCredentials":
    """Return TLS credentials from files, and check them: gRPC does not report what is wrong."""
    import ssl  # imported late: `idalloc --help` and plaintext connections do not need it

    import grpc

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        roots: bytes | None = _read("ca", ca)
        try:
            context.load_verify_locations(ca)
        except (OSError, ValueError):
            raise ChannelConfigError("ca", f"{ca} has no certificates in PEM") from None
    else:
        roots = _system_roots()
    if not cert or not key:
        return grpc.ssl_channel_credentials(roots)
    chain = _read("cert", cert)
    private = _read("key", key)
    if b"-----BEGIN CERTIFICATE-----" not in chain:
        raise ChannelConfigError("cert", f"{cert} has no certificate in PEM")
    if b"PRIVATE KEY-----" not in private:
        raise ChannelConfigError("key", f"{key} has no private key in PEM")
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        if why == "KEY_VALUES_MISMATCH":
            why = f"is not the key of the certificate in {cert}"
        raise ChannelConfigError("key", f"{key}: {why}") from None
    return grpc.ssl_channel_credentials(roots, private, chain)


def _system_roots() -> bytes | None:
    """Return the system's CA certificates; None, for those bundled with gRPC, if it has none."""
    if os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):  # gRPC reads this file by itself
        return None
    import ssl

    file = ssl.get_default_verify_paths().cafile  # respects SSL_CERT_FILE
    try:
        return Path(file).read_bytes() if file else None
    except OSError:
        return None


def _read(setting: str, file: str | os.PathLike[str]) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        name = os.fspath(file)
        if name.startswith("idalloc_") or "-----BEGIN " in name:  # a secret in place of its file
            name = "this path, which looks like the secret itself (give the path of a file that contains it)"
        raise ChannelConfigError(setting, f"cannot read {name}: {error.strerror}") from None


def _no_password() -> Any:
    # Otherwise OpenSSL would prompt for it on the terminal.
    raise ValueError("is encrypted; it must be without a passphrase")
