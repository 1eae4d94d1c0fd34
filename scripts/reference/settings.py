"""settings.md: the server's settings, its access file, and the variables of the client."""

import tomllib
from collections.abc import Iterator, Mapping
from json import dumps
from typing import Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, PlainSerializer
from pydantic.fields import FieldInfo

from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc.cli import _environment
from idalloc_server.auth.access_file import NAME_TYPES, _IdentityEntry, _QuotaEntry, parse
from idalloc_server.settings.model import _DAY, Settings
from idalloc_server.settings.persisted import NAMES
from idalloc_server.settings.sources import ENV_PREFIX
from idalloc_xproto.settings import XProtocolSettings
from scripts.reference.cli import root_options
from scripts.reference.markdown import block, document, prose, table, unwrapped
from scripts.reference.setting_notes import NOTES

_HEAD = """\
# Settings

Find any setting of the server, its access file and the client: name, flag, variable, default and bounds.

## Where a setting comes from

The server takes each setting from the first of these places that has it:

1. a flag of `idalloc serve`, such as `--lease-ttl 5m`
2. an environment variable, such as `IDALLOC_LEASE_TTL=5m`
3. what `idalloc node set --persist` persisted, for three settings of document ids
4. a TOML file, named by `--config FILE` or `IDALLOC_CONFIG`
5. the default

With an unknown setting or an invalid value the server exits with 2. The error names the place and the bound. `idalloc
config show` prints each setting and its origin. Pass the server's `--listen`, since the settings of `--persist`
belong to that address.

A duration is written `500ms`, `30s`, `2m` or `1h`, and in TOML as a text. A setting needs a restart, unless its section
says otherwise. The server ignores the variables that Kubernetes sets for a service named `idalloc`.

## Example

A server for other machines, on CrateDB, as a TOML file:
"""
_EXAMPLE = """\
listen = "0.0.0.0:50051"
store = "crate://idalloc@db1:4200,db2:4200,db3:4200/?schema=doc&password_file=/etc/idalloc/crate.password"
node_prefix = 7
outage_reserve = "2m"
lease_ttl = "4m"
tls_cert = "/etc/idalloc/cert.pem"
tls_key = "/etc/idalloc/key.pem"
access_file = "/etc/idalloc/access.toml"
"""
_ACCESS_EXAMPLE = """\
[[identity]]
name = "billing"
token_sha256 = ["…"]
certificate = ["dns:billing.example.org", "uri:spiffe://example.org/billing"]
allocate = ["invoices*", "orders"]
read = ["*"]
ids_per_second = 100_000

[[quota]]
sequence = "orders*"
ids_per_second = 1_000_000
"""
_IDENTITY = {
    "name": "the name in errors and in the audit log; required",
    "token_sha256": "the SHA-256 of each token, in hexadecimal; `idalloc token new` prints it",
    "certificate": f"names in client certificates with their type: {', '.join(f'`{each}:`' for each in NAME_TYPES)}",
    "allocate": "patterns of names of sequences whose ids it may allocate; `*` matches any text",
    "read": "patterns of names of sequences that it may read",
    "admin": "patterns of names of sequences that it may change",
    "ids_per_second": "quota of ids",
    "calls_per_second": "quota of calls",
    "streams": "the most open streams",
}
_QUOTA = {
    "sequence": "a pattern of names; each matching sequence has its own quota, by the first matching entry",
    "ids_per_second": "quota of ids, for all callers together",
    "calls_per_second": "quota of calls, for all callers together",
}
_ACCESS = """\
## The access file

The setting [`access_file`](#access_file) names this file. An identity needs `token_sha256`, `certificate` or both.
Roles are independent: `admin` does not include `read`. [The API](api.md#all-rpcs) has the role that each RPC
requires.

A quota admits the whole call unless it is used up, so that a large range needs no large quota. Then it rejects
calls with [`QUOTA_EXCEEDED`](errors.md#quota_exceeded), and open streams wait. Every process counts separately. See
[access control](../guides/access-control.md).
"""
_CLIENT = """\
## Variables of the client

The command `idalloc`, `idalloc.Client.from_environment()` and `idalloc_default()` read these variables. An option
of the command overrides its variable. The command warns of a variable `IDALLOC_…` that neither client nor server
knows.
"""
# The argument of `idalloc.Client` for each variable.
_ARGUMENTS = {
    "SERVER": "target",
    "TIMEOUT": "timeout",
    "TLS": "credentials",
    "CA": "credentials",
    "CERT": "credentials",
    "KEY": "credentials",
    "SERVER_NAME": "server_name",
    "TOKEN": "token",
    "TOKEN_FILE": "token",
    "TOKEN_INSECURE": "insecure",
}
# Option, meaning and default of variables that are not those of an option of the command itself.
_OPTIONS = {
    "SERVER": ("`--server`", "The server's address, or a list of addresses as gRPC writes it.", f"`{DEFAULT_TARGET}`"),
    "TIMEOUT": (
        "`--timeout`",
        "The deadline of a call. Only the command reads it; `from_environment()` has an argument.",
        f"`{DEFAULT_TIMEOUT:g}s`",
    ),
    "TOKEN": ("none", "The token itself. It has no option, since a list of processes would show it.", "none"),
}
_OTHERS = {
    "IDALLOC_CONFIG": "the server's TOML file, as `--config`",
    "XDG_STATE_HOME": "the folder of the default store and of kept settings; default: `~/.local/state`",
    "CRATEPW": "the password of the user in `sequences advance --past-table`",
    "SSL_CERT_FILE": "the CA certificates that `--tls` trusts, instead of the system's",
    "GRPC_ENABLE_FORK_SUPPORT": "`1` lets a Python program fork after its client has connected",
    "TMPDIR": "the folder of temporary files of `idalloc verify` and `idalloc bench --verify`",
    "PYTHONDEVMODE": "`1` makes the command print the traceback of an unexpected error",
}


def page() -> str:
    """Return the page."""
    if _ARGUMENTS.keys() != set(_environment.CLIENT):
        raise ValueError(f"describe these variables of the client here: {_ARGUMENTS.keys() ^ {*_environment.CLIENT}}")
    Settings(**tomllib.loads(_EXAMPLE))
    parse(_ACCESS_EXAMPLE.replace("…", "0" * 64).encode(), "the example")
    own = Settings.model_fields
    of_x_protocol = {name: each for name, each in XProtocolSettings.model_fields.items() if name not in own}
    return document(
        _HEAD,
        block("toml", _EXAMPLE),
        "## All settings of the server",
        _overview(own),
        *(_section(name, field) for name, field in own.items()),
        "## All settings of the X Protocol's port",
        _overview(of_x_protocol),
        *(_section(name, field) for name, field in of_x_protocol.items()),
        _ACCESS,
        block("toml", _ACCESS_EXAMPLE),
        "### `[[identity]]`",
        table(("key", "value", "meaning"), _keys(_IdentityEntry, _IDENTITY)),
        "### `[[quota]]`",
        table(("key", "value", "meaning"), _keys(_QuotaEntry, _QUOTA)),
        _CLIENT,
        *_client_sections(),
        "## Other variables",
        table(("variable", "meaning"), [(f"`{name}`", meaning) for name, meaning in _OTHERS.items()]),
    )


def _overview(fields: Mapping[str, FieldInfo]) -> str:
    rows = [
        (f"[`{name}`](#{name})", f"`{_toml(name, field)}`", prose(str(field.description)))
        for name, field in fields.items()
    ]
    return table(("setting", "default", "meaning"), rows)


def _section(name: str, field: FieldInfo) -> str:
    flag, variable = f"--{name.replace('_', '-')}", f"{ENV_PREFIX}{name.upper()}"
    return document(
        f"## `{name}`",
        prose(str(field.description)),
        table(
            ("flag", "variable", "value", "default, in TOML"),
            [(f"`{flag}`", f"`{variable}`", _value(field), f"`{name} = {_toml(name, field)}`")],
        ),
        unwrapped(NOTES.get(name, "")),
        _change(name),
    )


def _change(name: str) -> str:
    if name in NAMES:
        return "Without a restart: `idalloc node set` changes it at once, and with `--persist` also for later starts."
    if name == "access_file" or name.startswith("tls_"):
        return "A change of the file needs no restart; another path does."
    return ""


def _toml(name: str, field: FieldInfo) -> str:
    """Return the default in TOML."""
    if name == "store":  # depends on the user
        return '"sqlite://…/idalloc/idalloc.db"'
    return dumps(_duration(field.default) if _is_duration(field) else field.default)


def _value(field: FieldInfo) -> str:
    """Return the type and the bounds of a setting."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(field.annotation))
    if field.annotation is bool:
        return "`true` or `false`"
    if field.annotation is str:
        return "text"
    bounds = {type(each): each for each in field.metadata}
    if _is_duration(field):
        return f"duration, {'more than 0s' if Gt in bounds else '0s'} to {_duration(_DAY)}"
    return f"integer, {bounds[Ge].ge} to {shown_number(bounds[Le].le)}"


def _is_duration(field: FieldInfo) -> bool:
    return any(isinstance(each, PlainSerializer) for each in field.metadata)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:g}h" if seconds and seconds % 3600 == 0 else f"{seconds:g}s"


def shown_number(number: int) -> str:
    """Return a number as a person would write it: 65535, 1,000,000, 2^53-1."""
    for below in (0, -1, -2):
        exponent = (number - below).bit_length() - 1
        if exponent > 30 and number == 2**exponent + below:
            return f"2^{exponent}{below or ''}"
    return f"{number:,}" if number >= 100_000 else str(number)


def _keys(entry: type[BaseModel], meanings: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    if meanings.keys() != entry.model_fields.keys():
        raise ValueError(f"describe these keys of the access file here: {meanings.keys() ^ entry.model_fields.keys()}")
    for key, schema in entry.model_json_schema()["properties"].items():
        kind = schema.get("anyOf", [schema])[0]
        value = {"array": "list of texts", "string": "text"}.get(kind["type"])
        yield f"`{key}`", value or f"integer, {kind['minimum']} to {shown_number(kind['maximum'])}", meanings[key]


def _client_sections() -> Iterator[str]:
    options = {str(option.envvar): option for option in root_options() if option.envvar}
    for name, argument in _ARGUMENTS.items():
        variable = f"{_environment.PREFIX}{name}"
        if option := options.get(variable):
            flag, meaning, default = f"`{option.opts[0]}`", option.help or "", "none"
        else:
            flag, meaning, default = _OPTIONS[name]
        yield document(
            f"### `{variable}`",
            prose(meaning),
            table(("option", "argument of `idalloc.Client`", "default"), [(flag, f"`{argument}`", default)]),
        )
