"""The server's commands: `idalloc serve`, `config show`, `store export` and `store import`.

A command that prints results has a parameter `context`: `context.obj` is the printer of the command `idalloc`, which
also adds the options `--output` and `--json`.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from json import dumps
from math import ceil
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

# Before gRPC is imported: its core would log errors, such as a port in use, that this module prints in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from idalloc_server import app
from idalloc_server.backup import counter_documents, export_file, exporter, importer
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import Refusal, StartRefused, StoreFailure, StoreRefused, StoreRetired
from idalloc_server.domain.sequences.text import escaped
from idalloc_server.domain.store.protocol import Store
from idalloc_server.node.mode import SingleProcess
from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import NodeSettingsFile
from idalloc_server.settings.sources import load
from idalloc_server.store.credentials import has_secret
from idalloc_server.store.urls import open_index, open_store
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.log_queue import STDERR
from idalloc_server.workers.supervisor import Supervisor

if sys.platform == "win32":
    run = asyncio.run
else:
    from uvloop import run

# The most characters of --moved-to: it must fit into every error.
MAX_MOVED_TO_LENGTH = 300

config = typer.Typer(no_args_is_help=True, add_completion=False, help="Show the server's settings.")
store = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Export all sequences of a store, and import them."
)

_ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="PATH", help="TOML file with settings; also IDALLOC_CONFIG.")
]


def _with_settings_as_flags(command: Any, only: Iterable[str] = tuple(Settings.model_fields)) -> Any:
    """Add an option for each setting to a command: ``Settings`` is the only list of them."""
    *parameters, _ = inspect.signature(command).parameters.values()
    defaults = Settings().model_dump()
    for name in only:
        default = defaults[name]
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            # Typer would parse [native] as markup.
            help=escape(f"{Settings.model_fields[name].description} Default: {default}"),
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
    """Serve ids until SIGTERM or Ctrl-C.

    Settings: flag > environment (IDALLOC_NODE_PREFIX, …) > persisted by `node set --persist` > TOML file > default.
    """
    try:
        settings, _, node_settings = load(flags, config_file, os.environ)
        logs.configure(settings.log_level)
        code = _run_server(settings, node_settings)
    except StartRefused as error:
        _refuse_start(str(error), 2)
    except StoreFailure as error:
        _refuse_start(f"store: {error}", 2 if isinstance(error, StoreRefused) else 1)
    if code:
        raise typer.Exit(code)


def _run_server(settings: Settings, node_settings: NodeSettingsFile) -> int:
    """Serve, and return the exit code; log an unexpected error as ``crashed``."""
    try:
        created = _missing_file(open_store(settings.store, SystemClock()))
        if settings.workers > 1:
            return run(Supervisor(settings, node_settings, created).run())
        run(app.serve(settings, SingleProcess(node_settings, settings.drain_timeout, created)))
    except (StartRefused, StoreFailure):
        raise
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _refuse_start(message: str, code: int) -> NoReturn:
    logs.report_not_started(escaped(message), code)
    raise typer.Exit(code)


@config.command("show")
@_with_settings_as_flags
def show(context: typer.Context, *, config_file: _ConfigFile = None, **flags: str | None) -> None:
    """Print the settings of `serve` and their origins, without passwords; in text form as TOML."""
    try:
        settings, origins, _ = load(flags, config_file, os.environ)
        address = open_store(settings.store, SystemClock()).address
    except StartRefused as error:
        _fail(str(error), 2)
    values = settings.model_dump() | {"store": address}
    rows = [(name, dumps(value), origins.get(name, "default")) for name, value in values.items()]
    toml = [f"{name} = {value}" + (f"  # {origins[name]}" if name in origins else "") for name, value, _ in rows]
    context.obj.rows(("setting", "value", "origin"), rows, lambda: values, text=toml)


_with_store_as_flags = partial(_with_settings_as_flags, only=("store", "store_timeout"))


@store.command()
@_with_store_as_flags
def export(
    *,
    retire: Annotated[
        bool,
        typer.Option(
            "--retire",
            help="Retire the store for a move to another one: delete all sequences, and wait until all leases expire. "
            "The retired store rejects new sequences, and servers do not start on it, until `store import --unretire`.",
        ),
    ] = False,
    moved_to: Annotated[
        str,
        typer.Option(
            "--moved-to",
            metavar="TEXT",
            help="With --retire: a text for rejected callers about the new store, without passwords or tokens. "
            f"Default: {exporter.DEFAULT_MOVED_TO}",
        ),
    ] = "",
    config_file: _ConfigFile = None,
    **flags: str | None,
) -> None:
    """Export all sequences of a store, and the start timestamps of document ids, as JSON lines.

    Servers may run: no counter in the export is behind an id issued before it.
    """
    if moved_to:
        _check_moved_to(moved_to, retire=retire)

    async def run_export(store: Store) -> None:
        if not await store.list("", "", 1, deleted=True, periods=True) and not await store.claimed_starts():
            _fail(f"there is nothing in {store.address} to export", 1)
        if retire:
            deleted = await exporter.retire(store, SystemClock(), moved_to)
            print(f"idalloc: deleted {deleted} sequences", file=sys.stderr)
        async for line in exporter.export_lines(store):
            print(line)
        sys.stdout.flush()

    _with_store(run_export, config_file, flags, must_exist=True)


_FromElasticsearch = Annotated[
    bool,
    typer.Option(
        "--from-elasticsearch",
        help="FILE has counter documents, as lines of _bulk or search hits, or is the URL of their index: "
        "opensearch://USER@HOST:9200/INDEX. Elasticsearch itself is not tested. Stop the old clients first, and block "
        "writes to the index.",
    ),
]
_ClientsStopped = Annotated[
    bool,
    typer.Option(
        "--clients-stopped",
        help="With --from-elasticsearch and a URL: import from an index that accepts writes, since none of its clients "
        "runs.",
    ),
]
_CounterField = Annotated[
    str,
    typer.Option(
        "--counter-field",
        metavar="NAME",
        help="With --from-elasticsearch: the field of the counter; by default the only one.",
    ),
]


@store.command("import")
@_with_store_as_flags
def import_(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The output of `idalloc store export`; - for standard input.")
    ],
    *,
    unretire: Annotated[
        bool,
        typer.Option(
            "--unretire",
            help="Reactivate a store that `store export --retire` retired. FILE must be the newest export of the "
            "store used since then.",
        ),
    ] = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="Skip invalid lines, and import the valid ones. Calls on a skipped name are rejected until it is "
            "created with a start, advanced, or imported.",
        ),
    ] = False,
    from_elasticsearch: _FromElasticsearch = False,
    clients_stopped: _ClientsStopped = False,
    counter_field: _CounterField = "",
    config_file: _ConfigFile = None,
    **flags: str | None,
) -> None:
    """Import exported sequences into a store. It never lowers a counter."""
    if from_elasticsearch:
        lines = _read_documents(file, clients_stopped=clients_stopped)
        export_data = counter_documents.read_lines(lines, counter_field)
    elif counter_field or clients_stopped:
        _fail(f"{'--counter-field' if counter_field else '--clients-stopped'} needs --from-elasticsearch", 2)
    else:
        export_data = export_file.read_export(_read_file(file).splitlines())
    _print_problems(export_data.problems + export_data.notes)
    if export_data.problems and not partial:
        _fail("nothing was imported; correct these lines, or skip them with --partial", 1)
    clock = SystemClock()
    importers = []

    async def run_import(store: Store) -> None:
        if unretire:
            await exporter.unretire(store, clock)
        importers.append(importer.Importer(store, clock))
        await importers[0].run(export_data)

    try:
        _with_store(run_import, config_file, flags)
    finally:
        for each in importers:
            _print_problems(each.problems)
            _print_summary(context, each, clock.wall())
    if export_data.problems or importers[0].problems:
        raise typer.Exit(1)


def _read_file(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        _fail(f"cannot read {file}: {error.strerror}", 2)


def _read_documents(source: str, *, clients_stopped: bool) -> list[bytes]:
    """Returns the lines of a file of counter documents, or those of the index that a URL names."""
    if "://" not in source:
        return _read_file(source).splitlines()
    if has_secret(source):
        _fail("the URL of the index has a secret, which every user of this machine sees: use password_file", 2)

    async def read() -> list[bytes]:
        from idalloc_server.store.opensearch.documents import read_documents

        http, index = open_index(source)
        try:
            hits = await read_documents(http, index, clients_stopped=clients_stopped)
            return list(counter_documents.hits_as_lines(hits))
        finally:
            await http.close()

    try:
        return run(read())
    except StartRefused as error:
        _fail(str(error).removeprefix("store: "), 2)
    except StoreFailure as error:
        _fail(str(error), 1)


def _with_store(
    work: Callable[[Store], Coroutine[Any, Any, None]],
    config_file: str | None,
    flags: dict[str, str | None],
    *,
    must_exist: bool = False,
) -> None:
    async def run_on_store(settings: Settings) -> None:
        store = open_store(settings.store, SystemClock(), settings.store_timeout)
        if must_exist:
            _check_exists(store)
        try:
            await store.open()
            await work(store)
        finally:
            await store.close()

    try:
        settings = load(flags, config_file, os.environ).settings
        logs.configure(settings.log_level)
        run(run_on_store(settings))
    except StartRefused as error:
        _fail(str(error), 2)
    except StoreFailure as error:
        _fail(f"store: {error}", 1)
    except StoreRetired as error:
        _fail(f"store: {error}; `idalloc store import --unretire FILE` undoes that", 1)
    except Refusal as error:
        _fail(f"{error.reason}: {error}", 1)


def _check_moved_to(text: str, *, retire: bool) -> None:
    if not retire:
        _fail("--moved-to: requires --retire", 2)
    if not text.strip() or not text.isprintable() or len(text) > MAX_MOVED_TO_LENGTH:
        _fail(f"--moved-to: must be one line of 1 to {MAX_MOVED_TO_LENGTH} characters", 2)
    if "://" in text and has_secret(text):
        _fail("--moved-to: must not have a password or a token, since rejected callers read it", 2)


def _check_exists(store: Store) -> None:
    """Check that the file of a SQLite store exists: opening the store would create it."""
    if file := _file(store):
        try:
            file.stat()
        except OSError as error:
            raise StartRefused("store", f"cannot read {file}: {error.strerror}") from None


def _missing_file(store: Store) -> str:
    """Return the file of a store if it is missing now and a start creates it, or an empty text."""
    file = _file(store)
    return str(file) if file and not os.path.lexists(file) else ""


def _file(store: Store) -> Path | None:
    kind, _, path = store.address.partition("://")
    return Path(path) if kind == "sqlite" else None


def _print_problems(problems: list[export_file.Problem]) -> None:
    for problem in problems:
        print(escaped(f"idalloc: line {problem.line}: {problem.message}"), file=sys.stderr)


def _print_summary(context: typer.Context, done: importer.Importer, now: float) -> None:
    lines = [
        f"created {done.created}, raised or changed {done.raised}, unchanged {done.unchanged}, "
        f"refused {len(done.problems)}; {done.claims} start timestamps"
    ]
    content: dict[str, Any] = {
        "created": done.created,
        "raisedOrChanged": done.raised,
        "unchanged": done.unchanged,
        "refused": len(done.problems),
        "startTimestamps": done.claims,
        "reserved": done.reserved,
    }
    if done.reserved:
        lines.append(
            f"reserved {done.reserved}: create these sequences with a start, or advance them, before their use"
        )
    if done.effective_at is not None:
        # Rounded up: it must not be too early.
        at = datetime.fromtimestamp(ceil(done.effective_at), UTC).isoformat()
        remaining = max(0, ceil(done.effective_at - now))
        lines.append(f"effective at {at}, in {remaining} s: until then nodes may issue ids of earlier leases")
        content["effectiveTime"] = at
    context.obj.lines(lines, lambda: content)


def _fail(message: str, code: int) -> NoReturn:
    logs.print_line(escaped(f"idalloc: {message}"), STDERR)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(serve)
