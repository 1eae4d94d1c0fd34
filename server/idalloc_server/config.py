"""Settings: flag > environment > kept by UpdateNode > TOML file > default."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen_address import check_listen_address
from idalloc_server.node_settings import NodeSettingsFile
from idalloc_server.store.credentials import has_secret

ENV_PREFIX = "IDALLOC_"
# Variables with our prefix that are not settings of the server: the client's, the tests', and those that
# Kubernetes makes for a service of that name.
_NOT_OURS = re.compile(
    r"SERVER(_NAME)?|TIMEOUT|TLS|CA|CERT|KEY|TOKEN(_FILE|_INSECURE)?|CONFIG|TEST_\w+"
    r"|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)"
)
_DAY = 86_400.0
# What no address and no path of a file can have; half characters are what Python makes of bytes that are no UTF-8.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# Settings whose value is never repeated: there may be a password in it, or a key in place of the file that it is in.
_UNTOLD = frozenset({"store", "tls_cert", "tls_key", "tls_client_ca", "access"})
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> object:
    """Reads a duration such as 500ms, 30s, 2m."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration such as 500ms, 30s or 2m")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _DAY:
        raise ValueError("must be at most 24h")
    return seconds


_Duration = Annotated[float, BeforeValidator(_seconds), PlainSerializer(lambda seconds: f"{seconds:g}s")]
_Positive = Annotated[_Duration, Field(gt=0)]
_UInt16 = Annotated[int, Field(ge=1, le=65535)]


def _state_folder(environ: Mapping[str, str]) -> Path | None:
    try:
        return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "idalloc")
    except RuntimeError:  # a user without a home
        return None


def _default_store() -> str:
    folder = _state_folder(os.environ)
    # Without a home the store refuses to open, and says what to write.
    return f"sqlite://{quote(str(folder / 'idalloc.db'))}" if folder else ""


class Settings(BaseModel):
    """All settings of a server. Durations are seconds here, and written ``30s`` outside."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    listen: Annotated[str, AfterValidator(check_listen_address)] = Field(
        "127.0.0.1:50051", description="Address to serve on, HOST:PORT or unix:/PATH; port 0 takes a free one."
    )
    transport: Literal["grpcio", "native"] = Field(
        "grpcio", description="What speaks HTTP/2: grpcio, or native (idalloc[native]), which serves more calls."
    )
    store: str = Field(
        default_factory=_default_store,
        description="Where counters live: sqlite:///PATH or crate://USER@HOST:4200,HOST2:4200/?schema=doc&password_file=PATH.",
    )
    node_prefix: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Prefix of this node's document ids, 0 to 65535; give every node its own."
    )
    prefix_conflict: Literal["warn", "refuse"] = Field(
        "warn", description="What to do when another live node holds the prefix: warn or refuse."
    )
    auto_increment_offset: _UInt16 = Field(1, description="MySQL's auto_increment_offset for document ids.")
    auto_increment_increment: _UInt16 = Field(1, description="MySQL's auto_increment_increment for document ids.")
    lease_ttl: _Positive = Field(180.0, description="How long ids stay in memory unless the lease is renewed.")
    outage_reserve: _Duration = Field(
        90.0,
        description="How long the store may be away unnoticed: ids for so long, at the present rate, are in memory.",
    )
    max_reserved_ids: Annotated[int, Field(ge=0, le=2**53)] = Field(
        100_000_000, description="The most ids of a sequence to hold ahead; a crash burns them."
    )
    store_timeout: _Positive = Field(40.0, description="When a store call is given up.")
    max_clock_skew: _Positive = Field(60.0, description="How far the clock may be from the store's at start.")
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Processes that share the port, each with leases of its own; several on Linux only."
    )
    drain_timeout: _Duration = Field(20.0, description="How long running calls may go on after SIGTERM.")
    max_ids_per_call: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        1_000_000, description="The most ids of one range, or of one chunk of a stream."
    )
    auto_create_sequences: bool = Field(True, description="Whether a sequence is created on first use.")
    max_sequences: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        1_000_000, description="The most sequences that a process serves until it is restarted; each takes memory."
    )
    request_id_window: _Positive = Field(
        3600.0, description="How long a request id is remembered; a repetition after that takes new ids."
    )
    tls_cert: str = Field("", description="File of the server's certificate and its chain, in PEM; empty for no TLS.")
    tls_key: str = Field("", description="File of the certificate's private key, in PEM.")
    tls_client_ca: str = Field(
        "", description="File of authorities in PEM: every client has to show a certificate of theirs."
    )
    access: str = Field("", description="File that says who may do what, in TOML; empty asks nobody who they are.")
    insecure: bool = Field(
        False, description="Whether others may reach this server though it asks for no identity, or speaks no TLS."
    )
    max_connection_age: _Duration = Field(
        0.0, description="When a connection is ended, so that clients come anew; 0s for never."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug logs a line a call, info one a second in sum."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_text(cls, value: object) -> object:
        if isinstance(value, str) and _NO_TEXT.search(value):
            raise ValueError("must be UTF-8 without control characters")
        if isinstance(value, str) and "-----BEGIN " in value:
            raise ValueError("must be the path of a file, not what is in it")
        return value

    @model_validator(mode="after")
    def _certificate_is_whole(self) -> "Settings":
        if bool(self.tls_cert) != bool(self.tls_key):
            missing, given = ("tls_key", "tls_cert") if self.tls_cert else ("tls_cert", "tls_key")
            raise ValueError(f"{missing}: must be given with {given}")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca: needs tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _lease_outlives_outage(self) -> "Settings":
        least = 1.5 * self.outage_reserve + self.store_timeout
        if self.lease_ttl < least:
            raise ValueError(f"lease_ttl: must be at least 1.5 times outage_reserve plus store_timeout, {least:g}s")
        return self


class Loaded(NamedTuple):
    """Settings, and where they come from.

    Attributes:
        settings: All of them.
        origins: For each one that is not its default, where it came from.
        persisted: What the node of this listen address keeps.
    """

    settings: Settings
    origins: dict[str, str]
    persisted: NodeSettingsFile


def load(flags: Mapping[str, Any], config: str | None, environ: Mapping[str, str]) -> Loaded:
    """Puts the settings together.

    Args:
        flags: Values from the command line, by setting; None where a flag was not given.
        config: Path of the TOML file; None means the environment's IDALLOC_CONFIG, if any.
        environ: The environment.

    Raises:
        StartRefused: A setting is unknown or malformed, a file cannot be read, or a password is in a flag.
    """
    if has_secret(flags.get("store") or ""):
        raise StartRefused(
            "--store",
            "a list of processes would show its password or token to everyone on this machine: put the URL into "
            f"{ENV_PREFIX}STORE or the settings file, or name a file with it: ?password_file=/path or ?jwt_file=/path",
        )
    path = config or environ.get(f"{ENV_PREFIX}CONFIG")
    file: _Source = (_read_toml(path) if path else {}, lambda name: f"{name} in {path}")
    stronger: list[_Source] = [
        (_from_environment(environ), lambda name: f"{ENV_PREFIX}{name.upper()}"),
        ({n: v for n, v in flags.items() if v is not None}, lambda name: f"--{name.replace('_', '-')}"),
    ]
    # What is kept depends on the address, which has to be known first.
    settings, origins = _merge([file, *stronger])
    persisted = NodeSettingsFile(_state_folder(environ), settings.listen)
    persisted.fix({name: origins[name] for source, _ in stronger for name in source})
    if kept := persisted.read():
        settings, origins = _merge([file, (kept, lambda name: f"{name} in {persisted.path}"), *stronger])
    return Loaded(settings, origins, persisted)


# Values by setting, and how to say where one of them is from.
_Source = tuple[Mapping[str, Any], Callable[[str], str]]


def _merge(sources: list[_Source]) -> tuple[Settings, dict[str, str]]:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, describe in sources:
        for name, value in source.items():
            values[name], origins[name] = value, describe(name)
            if name not in Settings.model_fields:
                raise StartRefused(origins[name], "there is no such setting; `idalloc serve --help` lists all")
    try:
        return Settings(**values), origins
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            name, _, message = message.partition(": ")
        else:
            name = str(first["loc"][0])
            if name not in _UNTOLD:
                message = f"{message}, not {first['input']!r}"
        raise StartRefused(origins.get(name, name), message[:1].lower() + message[1:]) from None


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise StartRefused("config", f"cannot read {path}: {error.strerror}") from None
    # ValueError is of TOML, of UTF-8, and of numbers with more digits than Python reads.
    except (ValueError, RecursionError) as error:
        raise StartRefused("config", f"{path} is not TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and not _NOT_OURS.fullmatch(name, len(ENV_PREFIX))
    }
