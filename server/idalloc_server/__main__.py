"""The server's commands `idalloc serve` and `config show`.

A command that prints results has a parameter `context`: `context.obj` is the printer of the command
`idalloc`, which also adds the options `--output` and `--json`.
"""

import os
import sys
from json import dumps

import structlog
import typer

# Before gRPC is imported: its core would log errors, such as a port in use, that this module prints
# in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from idalloc_server import app
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import StartRefused, StoreFailure, StoreRefused
from idalloc_server.domain.sequences.text import escaped
from idalloc_server.listen import open_files
from idalloc_server.node.mode import ProcessMode
from idalloc_server.settings import commands
from idalloc_server.settings.commands import ConfigFile, fail, store_file, with_settings_as_flags
from idalloc_server.settings.sources import load
from idalloc_server.store.urls import open_store, open_witness
from idalloc_server.telemetry import logs
from idalloc_server.workers.supervisor import Supervisor

_log = structlog.get_logger("idalloc")
config = typer.Typer(no_args_is_help=True, add_completion=False, help="Show the server's settings.")


@with_settings_as_flags
def serve(*, config_file: ConfigFile = None, **flags: str | None) -> None:
    """Serve ids until SIGTERM or Ctrl-C.

    Settings: flag > environment (IDALLOC_NODE_PREFIX, …) > persisted by `node set --persist` > TOML
    file > default.
    """
    code = 0
    try:
        settings, _, node_settings, deprecated = load(flags, config_file, os.environ)
        logs.configure(settings.log_level)
        for setting, next_step in deprecated.items():
            _log.warning("deprecated_setting", setting=setting, next_step=next_step)
        open_files.raise_limit(settings)
        file = store_file(open_store(settings.store, SystemClock()))
        created = str(file) if file and not os.path.lexists(file) else ""  # the file that this start creates
        if settings.workers > 1:
            code = commands.run(Supervisor(settings, node_settings, created).run())
        else:
            commands.run(app.serve(settings, ProcessMode(node_settings, settings.drain_timeout, created)))
    except (StartRefused, StoreFailure) as error:
        is_store = isinstance(error, StoreFailure)
        code = 1 if is_store and not isinstance(error, StoreRefused) else 2
        logs.report_not_started(escaped(f"store: {error}" if is_store else str(error)), code)
    except Exception:
        sys.excepthook(*sys.exc_info())  # it logs ``crashed``
        code = 1
    if code:
        raise typer.Exit(code)


@config.command("show")
@with_settings_as_flags
def show(context: typer.Context, *, config_file: ConfigFile = None, **flags: str | None) -> None:
    """Print the settings of `serve` and their origins, without passwords; in text form as TOML."""
    try:
        settings, origins, _, deprecated = load(flags, config_file, os.environ)
        for setting, next_step in deprecated.items():
            print(escaped(f"idalloc: {setting} is deprecated; {next_step}"), file=sys.stderr)
        addresses = {"store": open_store(settings.store, SystemClock()).address}
        if settings.witness:
            addresses["witness"] = open_witness(settings.witness, settings.store).address
    except StartRefused as error:
        fail(str(error), 2)
    values = settings.model_dump() | addresses
    rows = [(name, dumps(value), origins.get(name, "default")) for name, value in values.items()]
    toml = [f"{name} = {value}" + (f"  # {origins[name]}" if name in origins else "") for name, value, _ in rows]
    context.obj.rows(("setting", "value", "origin"), rows, lambda: values, text=toml)


if __name__ == "__main__":
    typer.run(serve)
