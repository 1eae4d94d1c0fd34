"""Settings from all sources: flag > environment > persisted by UpdateNode > TOML file > default."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from idalloc_server.domain.errors import StartRefused
from idalloc_server.settings.installed import installed
from idalloc_server.settings.model import Settings, state_folder
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.store.credentials import has_secret

ENV_PREFIX = "IDALLOC_"
# Variables with this prefix that are not settings of the server: those of the client and the tests,
# and those that Kubernetes sets for a service named idalloc.
_NOT_SETTINGS = re.compile(
    r"SERVER(_NAME)?|TIMEOUT|TLS|CA|CERT|KEY|TOKEN(_FILE|_INSECURE)?|CONFIG|TEST_\w+"
    r"|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)"
)
# Settings whose value is in no error: it may have a password, or be a key instead of the key's
# file.
_SECRET = frozenset({"store", "witness", "tls_cert", "tls_key", "tls_client_ca", "access_file"})


class Loaded(NamedTuple):
    """Settings and their origins."""

    settings: Settings  # all settings
    origins: dict[str, str]  # the origin of each setting that is not its default
    node_settings: NodeSettingsFile  # the persisted settings of the node with this listen address
    deprecated: dict[str, str]  # the origin of each former setting that is set, and the next step


def load(flags: Mapping[str, Any], config: str | None, environ: Mapping[str, str]) -> Loaded:
    """Load the settings from all sources.

    Args:
        flags: The command line's value of each setting; None for a missing flag.
        config: The path of the TOML file; None for IDALLOC_CONFIG, if it is set.
        environ: The environment.

    Raises:
        StartRefused: A setting is unknown or invalid, a file cannot be read, or a flag has a
            password.
    """
    for name in ("store", "witness"):
        if has_secret(flags.get(name) or ""):
            raise StartRefused(
                f"--{name}",
                "a list of processes would show its password or token to every user of this machine: put the URL into "
                f"{ENV_PREFIX}{name.upper()} or the settings file, or name a file with ?password_file=/path or "
                "?jwt_file=/path",
            )
    path = config or environ.get(f"{ENV_PREFIX}CONFIG")
    file: _Source = (_read_toml(path) if path else {}, lambda name: f"{name} in {path}")
    variables = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and not _NOT_SETTINGS.fullmatch(name, len(ENV_PREFIX))
    }
    overrides: list[_Source] = [
        (variables, lambda name: f"{ENV_PREFIX}{name.upper()}"),
        ({n: v for n, v in flags.items() if v is not None}, lambda name: f"--{name.replace('_', '-')}"),
    ]
    # The listen address selects the persisted settings.
    settings, origins, deprecated = _merge([file, *overrides])
    overridden = {name: describe(name) for source, describe in overrides for name in source}
    node_settings = NodeSettingsFile(state_folder(environ), settings.listen, overridden)
    if persisted := node_settings.read():
        settings, origins, _ = _merge([file, (persisted, lambda name: f"{name} in {node_settings.path}"), *overrides])
    return Loaded(settings, origins, node_settings, deprecated)


# Values by setting, and a function that names the origin of a setting.
_Source = tuple[Mapping[str, Any], Callable[[str], str]]


def _merge(sources: list[_Source]) -> tuple[Settings, dict[str, str], dict[str, str]]:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    deprecated: dict[str, str] = {}
    model, missing = installed()
    for source, describe in sources:
        for name, value in source.items():
            origin = describe(name)
            if now := model.replaced.get(name):
                if now in source or now not in model.model_fields:
                    deprecated[origin] = f"remove it: {now} is set" if now in source else f"remove it: {now}"
                    continue  # it has no effect
                deprecated[origin] = f"use {describe(now)}"
                name = now
            values[name] = value
            origins[name] = origin
            if name not in model.model_fields:
                problem = "there is no such setting; `idalloc serve --help` lists all"
                if (port := name.partition("_")[0]) in missing:
                    problem = f"this installation has no port {port}: pip install --force-reinstall 'idalloc[server]'"
                raise StartRefused(origin, problem)
    try:
        return model(**values), origins, deprecated
    except ValidationError as error:
        first = error.errors()[0]
        message = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:
            name, _, message = message.partition(": ")
        else:
            name = str(first["loc"][0])
            if name not in _SECRET:
                message = f"{message}, not {first['input']!r}"
        raise StartRefused(origins.get(name, name), message[:1].lower() + message[1:]) from None


def _read_toml(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise StartRefused("config", f"cannot read {path}: {error.strerror}") from None
    # ValueError: invalid TOML or UTF-8, or a number with too many digits for Python.
    except (ValueError, RecursionError) as error:
        raise StartRefused("config", f"{path} is not TOML: {error}") from None
