"""The process: `idalloc serve`, and `idalloc config show`."""

import asyncio
import inspect
import os
import sys
from json import dumps
from typing import Annotated, Any, NoReturn

import typer

# Before gRPC is imported: its core would log, in its own form, what is told here in one line, such as a port in use.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from idalloc_server import app
from idalloc_server.config import Settings, load
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused, StoreUnavailable
from idalloc_server.store.open import open_store
from idalloc_server.telemetry import logs

if sys.platform == "win32":
    run = asyncio.run
else:
    from uvloop import run

config = typer.Typer(no_args_is_help=True, help="Look at the server's settings.")

_ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="PATH", help="TOML file with settings; also IDALLOC_CONFIG.")
]

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _with_settings_as_flags(command: Any) -> Any:
    """Gives a command one option for each setting, so that settings are listed in one place alone."""
    *parameters, _ = inspect.signature(command).parameters.values()
    for name, default in Settings().model_dump().items():
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            help=f"{Settings.model_fields[name].description} Default: {default}",
            metavar="VALUE",
        )
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
            )
        )
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


@_with_settings_as_flags
def serve(*, config_file: _ConfigFile = None, **flags: str | None) -> None:
    """Serves ids until SIGTERM or Ctrl-C.

    Settings: flag > environment (IDALLOC_NODE_PREFIX, …) > TOML file > default.
    """
    try:
        settings, _ = load(flags, config_file, os.environ)
        logs.configure(settings.log_level)
        run(app.serve(settings))
    except StartRefused as error:
        _fail(str(error), 2)
    except StoreUnavailable as error:
        _fail(f"store: {error}", 1)


@config.command("show")
@_with_settings_as_flags
def show(*, config_file: _ConfigFile = None, json: _Json = False, **flags: str | None) -> None:
    """Prints the settings that `serve` would run with, and where from, as TOML without passwords."""
    try:
        settings, origins = load(flags, config_file, os.environ)
        store = open_store(settings.store, SystemClock()).address
    except StartRefused as error:
        _fail(str(error), 2)
    values = settings.model_dump() | {"store": store}
    if json:
        print(dumps(values, indent=2))
    else:
        for name, value in values.items():
            print(f"{name} = {dumps(value)}" + (f"  # {origins[name]}" if name in origins else ""))


@config.callback()
def _keep_show_a_verb() -> None:
    """Look at the server's settings."""


def _fail(message: str, code: int) -> NoReturn:
    print(f"idalloc: {message}", file=sys.stderr)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(serve)
