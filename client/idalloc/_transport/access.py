"""How a client reaches a server: over TLS or not, and as whom."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from idalloc._core.defaults import DEFAULT_TARGET

if TYPE_CHECKING:
    import grpc

# What an environment variable may say of something that is or is not.
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class ChannelConfigError(ValueError):
    """What a client is to show, or to trust, cannot be used.

    Attributes:
        setting: Which one: an argument of ``read_channel_arguments``.
        problem: What is wrong with it. Never has a secret in it.
    """

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


class ChannelArguments(TypedDict):
    """What a client takes of all this."""

    token: str | None
    credentials: "grpc.ChannelCredentials | None"
    server_name: str | None
    insecure: bool


class ChannelConfig:
    """How a target is called. Its repr says nothing: there may be a token in it.

    Args:
        target: The target.
        token: As of ``idalloc.Client``, and all others.
        credentials: For TLS.
        server_name: The name in the server's certificate.
        insecure: Whether the token may go to another machine without TLS.

    Attributes:
        credentials: For TLS; None for a connection that is not encrypted.
        metadata: What goes with each call.
        options: Settings of the channel.

    Raises:
        ValueError: The target is a URL or has no port, the token is none, or would be sent in the clear.
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
            raise ChannelConfigError("server", "must be HOST:PORT, with nothing before it")
        if not _has_port(target):
            raise ChannelConfigError("server", f"must be HOST:PORT, as localhost:50051 or [::1]:50051, not {target!r}")
        self.credentials = credentials
        self.metadata: tuple[tuple[str, str], ...] | None = None
        self.options: list[tuple[str, str | int]] = []
        if server_name:
            if credentials is None:
                raise ChannelConfigError("server_name", "is for TLS: say also which credentials")
            self.options.append(("grpc.default_authority", server_name))
        elif "," in target:
            # gRPC would name the whole list as the server that it calls, which is no name: not all servers take that.
            self.options.append(("grpc.default_authority", target.partition(",")[0].partition(":")[2].lstrip("/")))
        if token is None:
            return
        # gRPC itself would print a token that it does not take.
        if not re.fullmatch("[!-~]+", token):
            raise ChannelConfigError("token", "must be ASCII characters, without spaces, line ends or the word Bearer")
        self.metadata = (("authorization", f"Bearer {token}"),)
        if credentials is not None or insecure:
            return
        if not is_local(target):
            raise ChannelConfigError(
                "insecure",
                f"the token would go unencrypted to {target}, and anyone on the way could read it: use TLS "
                "(ca, credentials), or say that this is meant (insecure)",
            )
        # gRPC would go by http_proxy also to this machine.
        self.options.append(("grpc.enable_http_proxy", 0))


def _has_port(target: str) -> bool:
    """Whether each address of a target has a port: gRPC would take 443. Other resolvers' targets are not looked at."""
    scheme, _, rest = target.partition(":")
    if scheme in ("ipv4", "ipv6"):
        addresses = rest.lstrip("/").split(",")
    elif scheme == "dns":
        addresses = [rest.rpartition("/")[2]]
    elif "/" in target or scheme in ("unix", "unix-abstract", "vsock"):
        return True
    else:
        addresses = [target]
    found = [re.fullmatch(r"(?:\[[^]]+\]|[^][:]+):([0-9]{1,5})", address) for address in addresses]
    return all(match is not None and 1 <= int(match[1]) <= 65_535 for match in found)


def is_local(target: str) -> bool:
    """Whether what is sent to a target stays on this machine, as far as its name tells."""
    scheme, _, rest = target.partition(":")
    if scheme in ("unix", "unix-abstract"):
        return True
    if scheme in ("ipv4", "ipv6"):
        return all(_is_loopback(address) for address in rest.lstrip("/").split(","))
    if scheme == "dns":  # with a name server of its own it has a / in it, and is no address
        return _is_loopback(rest.lstrip("/"))
    return _is_loopback(target)


def _is_loopback(address: str) -> bool:
    match = re.fullmatch(r"\[(?P<ipv6>[^]]+)\](:\w+)?|(?P<host>[^:]+)(:\w+)?", address)
    if match is None:
        return False
    host = match["ipv6"] or match["host"]
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def read_channel_arguments(
    *,
    tls: bool = False,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    server_name: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    insecure: bool = False,
) -> ChannelArguments:
    """Reads what a client is to show, and to trust.

    Args:
        tls: Whether to speak TLS; each of the next three says so, too.
        ca: File of the authorities to trust, in PEM; None for the system's.
        cert: File of the client's certificate, in PEM, with what leads to its authority.
        key: File of its private key.
        server_name: The name in the server's certificate, where the target has another one.
        token: The token.
        token_file: The file that it is in, in its place.
        insecure: Whether the token may go to another machine without TLS.

    Raises:
        AccessRefused: A file cannot be read, or used.
    """
    if bool(cert) != bool(key):
        given, missing = ("cert", "key") if cert else ("key", "cert")
        raise ChannelConfigError(missing, f"must be given with {given}")
    if token and token_file:
        raise ChannelConfigError("token_file", "there is a token, too: say one of them")
    credentials = _credentials(ca, cert, key) if tls or ca or cert else None
    if token_file:
        token = read_token(token_file)
    return ChannelArguments(
        token=token or None, credentials=credentials, server_name=server_name or None, insecure=insecure
    )


def from_environment(environ: Mapping[str, str] = os.environ) -> tuple[str, ChannelArguments]:
    """Reads the target and all of that from the variables that the command goes by.

    Raises:
        ValueError: One of them is wrong, and is named.
    """
    target = environ.get("IDALLOC_SERVER") or DEFAULT_TARGET
    found = {name: environ.get(variable(name), "") for name in ("ca", "cert", "key", "token_file", "server_name")}
    try:
        arguments = read_channel_arguments(
            tls=_said(environ, "tls"),
            insecure=_said(environ, "insecure"),
            token=environ.get(variable("token")),
            **found,
        )
        ChannelConfig(target, **arguments)
    except ChannelConfigError as refused:
        raise ValueError(f"{variable(refused.setting)}: {refused.problem}") from None
    return target, arguments


def variable(setting: str) -> str:
    """The environment variable of a setting. The server has one of its own named IDALLOC_INSECURE."""
    return "IDALLOC_TOKEN_INSECURE" if setting == "insecure" else f"IDALLOC_{setting.upper()}"


def _said(environ: Mapping[str, str], setting: str) -> bool:
    text = environ.get(variable(setting)) or "false"
    if text.lower() not in _WORDS:
        raise ChannelConfigError(setting, "must be true or false")
    return _WORDS[text.lower()]


def read_token(file: str | os.PathLike[str]) -> str:
    """Reads a token from a file that has nothing else in it, but for space around.

    Raises:
        AccessRefused: It cannot be read, or is empty.
    """
    try:
        token = _read("token_file", file).decode().strip()
    except UnicodeDecodeError:
        raise ChannelConfigError("token_file", f"{file} has no token in it, but something that is no text") from None
    if not token:
        raise ChannelConfigError("token_file", f"{file} is empty")
    if not re.fullmatch("[!-~]+", token):
        raise ChannelConfigError("token_file", f"{file} must have one token in it, and nothing else")
    return token


def _credentials(
    ca: str | os.PathLike[str] | None, cert: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None
) -> "grpc.ChannelCredentials":
    """Makes credentials of files. They are looked at before: gRPC itself would not say what is wrong with them."""
    import ssl  # neither `idalloc --help` nor a connection without TLS has need of them

    import grpc

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca:
        authorities: bytes | None = _read("ca", ca)
        try:
            context.load_verify_locations(ca)
        except (OSError, ValueError):
            raise ChannelConfigError("ca", f"{ca} has no certificates in PEM") from None
    else:
        authorities = _system_authorities()
    if not cert or not key:
        return grpc.ssl_channel_credentials(authorities)
    chain, private = _read("cert", cert), _read("key", key)
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
    return grpc.ssl_channel_credentials(authorities, private, chain)


def _system_authorities() -> bytes | None:
    """Those that the system trusts; None for those that gRPC brings along, where the system's are not found."""
    if os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"):  # gRPC's own variable, which it reads then
        return None
    import ssl

    file = ssl.get_default_verify_paths().cafile  # also what SSL_CERT_FILE names
    try:
        return Path(file).read_bytes() if file else None
    except OSError:
        return None


def _read(setting: str, file: str | os.PathLike[str]) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        name = os.fspath(file)
        if name.startswith("idalloc_") or "-----BEGIN " in name:  # a token or key in place of its file: not to be told
            name = "that: give the path of a file that it is in"
        raise ChannelConfigError(setting, f"cannot read {name}: {error.strerror}") from None


def _no_password() -> Any:
    # Else it would be asked for on the terminal.
    raise ValueError("is encrypted; it must be without a passphrase")
