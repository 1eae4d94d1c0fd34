"""Commands of other packages, such as the server's.

Listing them loads none: that takes time, and may fail. The client's own commands do not list them.
"""

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from idalloc.cli._commands import join_lines
from idalloc.cli._options import add_group_options, with_output
from idalloc.cli._printer import failure

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "idalloc.commands"

_HELP = {
    "serve": "Start the server.",
    "config": "Show the server's settings.",
    "store": "Export all sequences of a store, and import them.",
    "token": "Create tokens for the access file.",
    "witness": "Show and delete the high-water marks that a witness keeps.",
}


class CommandGroup(TyperGroup):
    """The client's commands, followed by those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_plugins()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for another package's, a placeholder with its name and help."""
        if cmd_name not in self.commands and cmd_name in _plugins():
            return TyperCommand(cmd_name, help=_HELP.get(cmd_name, ""))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name, the loaded command and its arguments."""
        name = args[0]
        if name not in self.commands and (entry_point := _plugins().get(name)):
            return name, _load(entry_point), args[1:]
        return super().resolve_command(ctx, args)


def _plugins() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    return {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}


def _load(entry_point: "EntryPoint") -> Any:
    try:
        loaded = entry_point.load()
    except ModuleNotFoundError as error:
        needs = f"idalloc {entry_point.name} needs the server, and {error.name} is missing"
        raise failure(f"{needs}: pip install 'idalloc[server]'", 2) from error
    if isinstance(loaded, typer.Typer):
        if loaded.registered_callback is None:
            add_group_options(loaded, with_output)
    else:
        function, loaded = loaded, typer.Typer(add_completion=False)
        loaded.command(entry_point.name)(function)
    for each in loaded.registered_commands:
        each.callback = with_output(each.callback)
    command = join_lines(typer.main.get_command(loaded))
    command.name = entry_point.name
    return command
