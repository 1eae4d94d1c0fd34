"""Commands of other packages, such as the server's. Listing them loads none: that takes time, and may fail."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from idalloc.cli import _output

GROUP = "idalloc.commands"

_HELP = {
    "serve": "Start the server.",
    "config": "Show the server's settings.",
    "export": "Export all sequences of a store as JSON lines.",
    "import": "Import exported sequences into a store.",
    "token": "Create tokens for the access file.",
}


class CommandGroup(TyperGroup):
    """The client's commands, followed by those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*super().list_commands(ctx), *_plugins()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for another package's, a placeholder with its name and help."""
        if cmd_name in _plugins():
            return TyperCommand(cmd_name, help=_HELP.get(cmd_name, ""))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the loaded command and its arguments."""
        entry_point = _plugins().get(args[0]) if args else None
        if entry_point is None:
            return super().resolve_command(ctx, args)
        return args[0], _load(entry_point), args[1:]


def is_plugin(name: str | None) -> bool:
    """Return whether a command is another package's."""
    return name in _plugins()


def _plugins() -> dict[str, EntryPoint]:
    return {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}


def _load(entry_point: EntryPoint) -> Any:
    try:
        loaded = entry_point.load()
    except ModuleNotFoundError as error:
        _output.write_stderr(
            f"idalloc {entry_point.name} needs the server, and {error.name} is missing: pip install 'idalloc[server]'"
        )
        raise typer.Exit(2) from error
    if not isinstance(loaded, typer.Typer):
        wrapper = typer.Typer(add_completion=False)
        wrapper.command(entry_point.name)(loaded)
        loaded = wrapper
    command = typer.main.get_command(loaded)
    command.name = entry_point.name
    return command
