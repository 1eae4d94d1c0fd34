"""What the server's commands share: the settings as options, an open store, and errors."""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from idalloc_server.domain.clock import SystemClock
from idalloc_server.domain.errors import Refusal, StartRefused, StoreFailure, StoreRetired
from idalloc_server.domain.sequences.text import escaped
from idalloc_server.domain.store.identity import Opening
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.witness.binding import open_with_witness
from idalloc_server.domain.witness.marks import Witness
from idalloc_server.settings.installed import installed
from idalloc_server.settings.model import Settings
from idalloc_server.settings.sources import load
from idalloc_server.store.urls import open_store, open_witness
from idalloc_server.telemetry import logs
from idalloc_server.telemetry.log_queue import STDERR

if sys.platform == "win32":
    run = asyncio.run
else:
    from uvloop import run as run

ConfigFile = Annotated[
    str | None, typer.Option("--config", metavar="PATH", help="TOML file with settings; also IDALLOC_CONFIG.")
]


def with_settings_as_flags(command: Any, only: Iterable[str] = ()) -> Any:
    """Add an option for each setting to a command, or for some: the model is the only list of them.

    A port that is not installed has one option, which names the missing package.
    """
    *parameters, _ = inspect.signature(command).parameters.values()
    model, missing = installed()
    helps = {
        name: f"{model.model_fields[name].description} Default: {default}"
        for name, default in model().model_dump().items()
    }
    helps |= {f"{port}_listen": f"The port {port} is not installed." for port in missing}
    for name in only or (*helps, *model.replaced):
        # Typer would parse [native] as markup.
        text = escape(helps.get(name, ""))
        option = typer.Option(f"--{name.replace('_', '-')}", help=text, metavar="VALUE", hidden=name in model.replaced)
        parameters.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
            )
        )
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


with_store_as_flags = partial(with_settings_as_flags, only=("store", "store_timeout", "witness"))


def with_store(
    work: Callable[[Store, Witness | None], Coroutine[Any, Any, None]],
    config_file: str | None,
    flags: dict[str, str | None],
    opening: Opening,
) -> None:
    """Run a command's work on an open store and its witness; an error ends the command.

    Args:
        work: What to do with them; the witness is None if it is not set, or nothing is created.
        config_file: The option ``--config``.
        flags: The options of ``with_store_as_flags``.
        opening: How the store is opened.
    """

    async def run_on_store(settings: Settings) -> None:
        async with AsyncExitStack() as stack:
            store = open_store(settings.store, SystemClock(), settings.store_timeout)
            witness = None
            stack.push_async_callback(store.close)
            if not opening.creates or (opening.repairs and not settings.witness):
                check_exists(store, "store")
            if opening.creates and settings.witness:
                witness = open_witness(settings.witness, settings.store, settings.store_timeout)
                stack.push_async_callback(witness.close)
            await (open_with_witness(store, witness, opening) if witness else store.open(opening))
            await work(store, witness)

    with_settings(run_on_store, config_file, flags, "store")


def with_settings(
    work: Callable[[Settings], Coroutine[Any, Any, None]],
    config_file: str | None,
    flags: dict[str, str | None],
    place: str,
    log_level: str | None = None,
) -> None:
    """Run a command's work with the settings; an error ends the command.

    Args:
        work: What to do with the settings.
        config_file: The option ``--config``.
        flags: The options of ``with_settings_as_flags``.
        place: The store or witness that the work uses, as an error names it.
        log_level: The lowest level that is logged; None for the setting's.
    """
    try:
        settings = load(flags, config_file, os.environ).settings
        logs.configure(log_level or settings.log_level)
        run(work(settings))
    except StartRefused as error:
        fail(str(error), 2)
    except StoreFailure as error:
        fail(f"{place}: {error}", 1)
    except StoreRetired as error:
        fail(f"{place}: {error}; `idalloc store import --unretire --new-store URL FILE` undoes that", 1)
    except Refusal as error:
        fail(f"{error.reason}: {error}", 1)


def check_exists(store: Store | Witness, setting: str) -> None:
    """Check that the file of a SQLite store or witness exists: opening it would create it."""
    if file := store_file(store):
        try:
            file.stat()
        except OSError as error:
            raise StartRefused(setting, f"cannot read {file}: {error.strerror}") from None


def store_file(store: Store | Witness) -> Path | None:
    """Return the file of a SQLite store or witness, or None."""
    kind, _, path = store.address.partition("://")
    return Path(path) if kind == "sqlite" else None


def fail(message: str, code: int) -> NoReturn:
    """End a command with an error and its exit code."""
    logs.print_line(escaped(f"idalloc: {message}"), STDERR)
    raise typer.Exit(code)
