"""The server's verbs: `idalloc serve`, `config show`, `export` and `import`."""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from json import dumps
from math import ceil
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

# Before gRPC is imported: its core would log, in its own form, what is told here in one line, such as a port in use.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from idalloc_server import app
from idalloc_server.backup import export_file, exporter, importer
from idalloc_server.config import Settings, load
from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import Refusal, StartRefused, StoreFailure, StoreRefused, StoreRetired
from idalloc_server.domain.store import Store
from idalloc_server.domain.text import escaped
from idalloc_server.process_mode import SingleProcess
from idalloc_server.store.credentials import has_secret
from idalloc_server.store.urls import open_store
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.log_queue import STDERR
from idalloc_server.workers.supervisor import Supervisor

if sys.platform == "win32":
    run = asyncio.run
else:
    from uvloop import run

# The most characters of --moved-to, so that every error has room for it.
MOST_MOVED_TO = 300

config = typer.Typer(no_args_is_help=True, add_completion=False, help="Look at the server's settings.")

_ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="PATH", help="TOML file with settings; also IDALLOC_CONFIG.")
]

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _with_settings_as_flags(command: Any, only: Iterable[str] = tuple(Settings.model_fields)) -> Any:
    """Gives a command one option for each setting, so that settings are listed in one place alone."""
    *parameters, _ = inspect.signature(command).parameters.values()
    defaults = Settings().model_dump()
    for name in only:
        default = defaults[name]
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            # Typer's help takes [native] for markup.
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
    """Serves ids until SIGTERM or Ctrl-C.

    Settings: flag > environment (IDALLOC_NODE_PREFIX, …) > kept by `node set --persist` > TOML file > default.
    """
    try:
        settings, _, persisted = load(flags, config_file, os.environ)
        logs.configure(settings.log_level)
        created = _created(open_store(settings.store, SystemClock()))
        if settings.workers == 1:
            run(app.serve(settings, SingleProcess(persisted, settings.drain_timeout, created)))
        elif code := run(Supervisor(settings, persisted, created).run()):
            raise typer.Exit(code)
    except StartRefused as error:
        _fail(str(error), 2)
    except StoreFailure as error:
        _fail(f"store: {error}", 2 if isinstance(error, StoreRefused) else 1)


@config.command("show")
@_with_settings_as_flags
def show(*, config_file: _ConfigFile = None, json: _Json = False, **flags: str | None) -> None:
    """Prints the settings that `serve` would run with, and where from, as TOML without passwords."""
    try:
        settings, origins, _ = load(flags, config_file, os.environ)
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


def _with_store_as_flags(command: Any) -> Any:
    return _with_settings_as_flags(command, only=("store", "store_timeout"))


@_with_store_as_flags
def export(
    *,
    retire: Annotated[
        bool,
        typer.Option(
            "--retire",
            help="End all sequences first, and wait for all leases: to move for good. The store then refuses to create "
            "sequences, and servers refuse to start on it, until `import --unretire`.",
        ),
    ] = False,
    moved_to: Annotated[
        str,
        typer.Option(
            "--moved-to",
            metavar="TEXT",
            help="With --retire: where to go on, in words. Refused callers read it: no password, no token. "
            f"Default: {exporter.MOVED_TO}",
        ),
    ] = "",
    config_file: _ConfigFile = None,
    **flags: str | None,
) -> None:
    """Writes all sequences of a store, and the start timestamps of document ids, as JSON lines.

    Every id issued so far is at or before what is written, while servers run, too.
    """
    if moved_to:
        _check_moved_to(moved_to, retire=retire)

    async def work(store: Store) -> None:
        if not await store.list("", "", 1, deleted=True, periods=True) and not await store.claimed_starts():
            _fail(f"there is nothing in {store.address} to export", 1)
        if retire:
            ended = await exporter.retire(store, SystemClock(), moved_to)
            print(f"idalloc: ended {ended} sequences", file=sys.stderr)
        async for line in exporter.export_lines(store):
            print(line)
        sys.stdout.flush()

    _with_store(work, config_file, flags, must_exist=True)


@_with_store_as_flags
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `idalloc export` wrote; - for standard input.")],
    *,
    unretire: Annotated[
        bool,
        typer.Option(
            "--unretire",
            help="Use a store again that `export --retire` retired. FILE must be the newest export of the store that "
            "served since.",
        ),
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Bring what can be read, where some lines cannot.")
    ] = False,
    config_file: _ConfigFile = None,
    **flags: str | None,
) -> None:
    """Brings exported sequences to a store. A counter is never lowered."""
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        _fail(f"cannot read {file}: {error.strerror}", 2)
    found = export_file.read(content.splitlines())
    _tell(found.problems + found.notes)
    if found.problems and not partial:
        _fail("nothing was imported; mend these lines, or leave them out with --partial", 1)
    clock = SystemClock()
    brought = []

    async def work(store: Store) -> None:
        if unretire:
            await exporter.unretire(store, clock)
        brought.append(importer.Importer(store, clock))
        await brought[0].run(found)

    try:
        _with_store(work, config_file, flags)
    finally:
        for each in brought:
            _tell(each.problems)
            _summarize(each, clock.wall())
    if found.problems or brought[0].problems:
        raise typer.Exit(1)


def _with_store(
    work: Callable[[Store], Coroutine[Any, Any, None]],
    config_file: str | None,
    flags: dict[str, str | None],
    *,
    must_exist: bool = False,
) -> None:
    async def open_and_work(settings: Settings) -> None:
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
        run(open_and_work(settings))
    except StartRefused as error:
        _fail(str(error), 2)
    except StoreFailure as error:
        _fail(f"store: {error}", 1)
    except StoreRetired as error:
        _fail(f"store: {error}; `idalloc import --unretire FILE` undoes that", 1)
    except Refusal as error:
        _fail(f"{error.reason}: {error}", 1)


def _check_moved_to(text: str, *, retire: bool) -> None:
    if not retire:
        _fail("--moved-to: only with --retire", 2)
    if not text.strip() or not text.isprintable() or len(text) > MOST_MOVED_TO:
        _fail(f"--moved-to: must be one line of 1 to {MOST_MOVED_TO} characters", 2)
    if "://" in text and has_secret(text):
        _fail("--moved-to: must not have a password or a token, since refused callers read it", 2)


def _check_exists(store: Store) -> None:
    """Sees that the file of a SQLite store is there: opening would make it."""
    if file := _file(store):
        try:
            file.stat()
        except OSError as error:
            raise StartRefused("store", f"cannot read {file}: {error.strerror}") from None


def _created(store: Store) -> str:
    """Return what to print once a store is open whose file is missing now; else an empty text."""
    file = _file(store)
    return f"store created at {file}" if file and not os.path.lexists(file) else ""


def _file(store: Store) -> Path | None:
    kind, _, path = store.address.partition("://")
    return Path(path) if kind == "sqlite" else None


def _tell(problems: list[export_file.Problem]) -> None:
    for problem in problems:
        print(escaped(f"idalloc: line {problem.line}: {problem.why}"), file=sys.stderr)


def _summarize(done: importer.Importer, now: float) -> None:
    print(
        f"created {done.created}, raised or changed {done.raised}, unchanged {done.unchanged}, "
        f"refused {len(done.problems)}; {done.claims} start timestamps"
    )
    if done.effective_at is not None:
        # Rounded up: it must not be told too early.
        at = datetime.fromtimestamp(ceil(done.effective_at), UTC).isoformat()
        left = max(0, ceil(done.effective_at - now))
        print(f"effective at {at}, in {left} s: until then nodes may use ids from before")


def _fail(message: str, code: int) -> NoReturn:
    logs.print_line(escaped(f"idalloc: {message}"), STDERR)
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(serve)
