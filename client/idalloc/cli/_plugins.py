"""The server's verbs. They are listed without loading the server, which takes time and may not be installed."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from idalloc.cli import _output

GROUP = "idalloc.commands"

_HELP = {
    "serve": "Serve ids.",
    "config": "Look at the server's settings.",
    "export": "Write all sequences of a store as JSON lines.",
    "import": "Bring exported sequences to a store.",
    "token": "Make tokens for the access file.",
}


class Verbs(TyperGroup):
    """The client's verbs and, behind them, those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        return [*super().list_commands(ctx), *_others()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; of another package's one, what a list of commands shows."""
        if cmd_name in _others():
            return TyperCommand(cmd_name, help=_HELP.get(cmd_name, ""))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run."""
        entry_point = _others().get(args[0]) if args else None
        if entry_point is None:
            return super().resolve_command(ctx, args)
        return args[0], _load(entry_point), args[1:]


def is_others(verb: str | None) -> bool:
    """Return whether a verb is another package's."""
    return verb in _others()


def _others() -> dict[str, EntryPoint]:
    return {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}


def _load(entry_point: EntryPoint) -> Any:
    try:
        loaded = entry_point.load()
    except ModuleNotFoundError as error:
        _output.say(
            f"idalloc {entry_point.name} needs the server, and {error.name} is missing: pip install 'idalloc[server]'"
        )
        raise typer.Exit(2) from error
    if not isinstance(loaded, typer.Typer):
        verb = typer.Typer(add_completion=False)
        verb.command(entry_point.name)(loaded)
        loaded = verb
    command = typer.main.get_command(loaded)
    command.name = entry_point.name
    return command
