"""The settings of a server, with their defaults and rules."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from idalloc_server.settings.address import check_host_names, check_http_address, check_listen_address

_DAY = 86_400.0
# Characters that no address or path has. Python decodes bytes that are not UTF-8 to surrogates.
_INVALID_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> object:
    """Return the seconds of a duration such as 500ms, 30s or 2m."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a duration such as 500ms, 30s or 2m")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds > _DAY:
        raise ValueError("must be at most 24h")
    return seconds


_Duration = Annotated[float, BeforeValidator(_seconds), PlainSerializer(lambda seconds: f"{seconds:g}s")]
_Positive = Annotated[_Duration, Field(gt=0)]
HttpAddress = Annotated[str, AfterValidator(check_http_address)]  # HOST:PORT, or empty for none
_UInt16 = Annotated[int, Field(ge=1, le=65535)]


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the user's state; None if the user has no home folder."""
    try:
        return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "idalloc")
    except RuntimeError:  # The user has no home folder.
        return None


def _default_store() -> str:
    folder = state_folder(os.environ)
    # Without a home folder, opening the store fails with the next step.
    return f"sqlite://{quote(str(folder / 'idalloc.db'))}" if folder else ""


class Settings(BaseModel):
    """The settings of a server. Durations are in seconds; users write ``30s``.

    A port of another package adds its own in a subclass, see ``installed``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    # Former settings and what replaces them, a setting or a rule: warnings for one release.
    replaced: ClassVar[Mapping[str, str]] = {
        "access": "access_file",
        "max_connections_per_address": "an address has at most a quarter of a port's connections",
    }

    listen: Annotated[str, AfterValidator(check_listen_address)] = Field(
        "127.0.0.1:50051", description="Listen address, HOST:PORT or unix:/PATH; port 0 selects a free port."
    )
    http_listen: HttpAddress = Field(
        "", description="Address of the HTTP port for probes, metrics and the status page, HOST:PORT; empty for none."
    )
    http_hosts: Annotated[str, AfterValidator(check_host_names)] = Field(
        "",
        description="Names besides localhost and that of http_listen under which the HTTP port answers while nobody "
        "authenticates, separated by commas.",
    )
    probe_listen: HttpAddress = Field(
        "",
        description="Address of a port for the probes alone, /livez and /readyz, HOST:PORT; empty for none.",
    )
    transport: Literal["grpcio", "native"] = Field(
        "grpcio", description="The gRPC transport: grpcio, or native (idalloc[native]), which is experimental."
    )
    store: str = Field(
        default_factory=_default_store,
        description="Where counters are stored: sqlite:///PATH, "
        "crate://USER@HOST:4200,HOST2:4200/?schema=doc&password_file=PATH "
        "or opensearch://USER@HOST:9200,HOST2:9200/?prefix=idalloc&password_file=PATH.",
    )
    witness: str = Field(
        "",
        description="Where high-water marks are kept outside the store, so that servers that start later notice a "
        "restored store: a URL as in store, of another file (best on another disk) or cluster; empty for none.",
    )
    node_prefix: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Prefix of this node's document ids, 0 to 65535; give every node its own."
    )
    prefix_conflict: Literal["warn", "refuse"] = Field(
        "warn", description="What the node does if another live node holds its prefix: warn or refuse."
    )
    auto_increment_offset: _UInt16 = Field(1, description="MySQL's auto_increment_offset for document ids.")
    auto_increment_increment: _UInt16 = Field(1, description="MySQL's auto_increment_increment for document ids.")
    lease_ttl: _Positive = Field(180.0, description="How long ids stay in memory unless the lease is renewed.")
    outage_reserve: _Duration = Field(
        90.0,
        description="How long a store outage goes unnoticed: each node holds ids for this time, at the current rate.",
    )
    max_reserved_ids: Annotated[int, Field(ge=0, le=2**53)] = Field(
        100_000_000, description="Maximum number of ids of a sequence held in memory; a crash burns them."
    )
    store_timeout: _Positive = Field(
        40.0, description="Timeout of a store call; also how long a start waits for the store."
    )
    max_clock_skew: _Positive = Field(
        60.0,
        description="Maximum difference between the clocks of node and store at startup; also how far a sequence of "
        "timestamps may be ahead of the clock.",
    )
    workers: Annotated[int, Field(ge=1, le=256)] = Field(
        1, description="Number of processes that share the port, each with its own leases; more than 1 on Linux only."
    )
    drain_timeout: _Duration = Field(20.0, description="How long running calls may continue after SIGTERM.")
    max_ids_per_call: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        1_000_000, description="Maximum number of ids in a call, or in a chunk of a stream."
    )
    auto_create_sequences: bool = Field(True, description="Whether the server creates a sequence on its first use.")
    max_sequences: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        1_000_000, description="Maximum number of sequences that a process serves until it restarts; each takes memory."
    )
    request_id_window: _Positive = Field(
        3600.0, description="How long the server remembers a request id; a later retry gets new ids."
    )
    tls_cert: str = Field("", description="File of the server's certificate chain, in PEM; empty disables TLS.")
    tls_key: str = Field("", description="File of the certificate's private key, in PEM.")
    tls_client_ca: str = Field(
        "",
        description="File of CA certificates, in PEM; every client must present a certificate that one of them signed.",
    )
    access_file: str = Field(
        "", description="Access file in TOML: identities, roles, quotas; empty disables authentication."
    )
    insecure: bool = Field(
        False,
        description="Whether other machines may reach the server although it has no authentication or no TLS.",
    )
    trust_proxy: bool = Field(
        False,
        description="Whether a proxy on the Unix socket in listen names the callers' addresses, in x-forwarded-for.",
    )
    max_connection_age: _Duration = Field(
        0.0, description="Maximum age of a connection; then clients reconnect. 0s disables it."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info",
        description="The lowest level that is logged: debug has a line for each call, info a summary each second.",
    )
    debug_metrics: bool = Field(False, description="Whether the metrics include those for developers of idalloc.")

    @field_validator("*", mode="before")
    @classmethod
    def _check_text(cls, value: object) -> object:
        if isinstance(value, str) and _INVALID_TEXT.search(value):
            raise ValueError("must be UTF-8 without control characters")
        if isinstance(value, str) and "-----BEGIN " in value:
            raise ValueError("must be the path of a file, not its content")
        return value

    @model_validator(mode="after")
    def _check_tls(self) -> "Settings":
        if bool(self.tls_cert) != bool(self.tls_key):
            missing, given = ("tls_key", "tls_cert") if self.tls_cert else ("tls_cert", "tls_key")
            raise ValueError(f"{missing}: must be given with {given}")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca: requires tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _check_lease_ttl(self) -> "Settings":
        minimum = 1.5 * self.outage_reserve + self.store_timeout
        if self.lease_ttl < minimum:
            raise ValueError(f"lease_ttl: must be at least 1.5 times outage_reserve plus store_timeout, {minimum:g}s")
        return self
