"""Explains usage errors for which typer's own message gives no next step."""

import re
from collections.abc import Sequence
from typing import Any

import typer

# The base class of usage errors: its name differs between versions of typer.
UsageError: Any = typer.BadParameter.__mro__[1]

# Options that users guess for the number of ids.
_COUNT_OPTIONS = re.compile(r"--?(n|c|num|number|count|id[-_]count|ids|total)")


def explain(error: Any, args: Sequence[str]) -> str:
    """Return the message of a usage error, with a correct form where one is known.

    Args:
        error: A usage error of typer.
        args: The command line without the command's name.
    """
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None:
        return message
    option = getattr(error, "option_name", "")
    missing = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
    if option and any(param.name == "count" for param in context.command.params):
        negative = next((arg for arg in args if re.fullmatch(r"-[0-9]+", arg)), "")
        if negative and option == negative[:2]:
            return f"Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not {negative!r}"
        if _COUNT_OPTIONS.fullmatch(option):
            usage = [each.name.upper() for each in context.command.params if each.param_type_name == "argument"]
            return f"No such option: {option}; COUNT is an argument: {context.command_path} {' '.join(usage)}"
    if _COUNT_OPTIONS.fullmatch(option) and any("--total" in param.opts for param in context.command.params):
        return f"No such option: {option}; give the number of ids with --total"
    if any(param.name == "server" for param in context.command.params):  # a command that calls the server
        root = context.find_root()
        if any(option in param.opts for param in root.command.params):
            command = context.command_path.removeprefix(f"{root.command_path} ")
            return f"No such option: {option}; give it before the command: {root.command_path} {option} {command}"
    if message == "Missing command.":
        return f"Missing command; give one of {', '.join(context.command.list_commands(context))}"
    if missing is not None and getattr(missing, "help", None):
        return f"{message.removesuffix('.')}: {missing.help}"
    return message
