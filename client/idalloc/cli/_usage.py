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
    if explanation := _explain_option(context, getattr(error, "option_name", ""), args):
        return explanation
    if message == "Missing command.":
        return f"Missing command; give one of {', '.join(context.command.list_commands(context))}"
    missing = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
    if missing is not None and getattr(missing, "help", None):
        return f"{message.removesuffix('.')}: {missing.help}"
    return message


def _explain_option(context: Any, option: str, args: Sequence[str]) -> str:
    """Explain an option that the command lacks; empty if no correct form is known."""
    params = {param.name: param for param in context.command.params}
    negative = next((arg for arg in args if re.fullmatch(r"-[0-9]+", arg)), "")
    if "count" in params and negative and option == negative[:2]:
        return f"Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not {negative!r}"
    if "count" in params and _COUNT_OPTIONS.fullmatch(option):
        arguments = [name.upper() for name, param in params.items() if param.param_type_name == "argument"]
        return f"No such option: {option}; COUNT is an argument: {context.command_path} {' '.join(arguments)}"
    if _COUNT_OPTIONS.fullmatch(option) and any("--total" in param.opts for param in params.values()):
        return f"No such option: {option}; give the number of ids with --total"
    root = context.find_root()
    if "server" in params and any(option in param.opts for param in root.command.params):
        command = context.command_path.removeprefix(f"{root.command_path} ")
        return f"No such option: {option}; give it before the command: {root.command_path} {option} {command}"
    return ""
