"""Explains usage errors for which typer's own message gives no next step."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import typer

# The base class of usage errors: its name differs between versions of typer.
UsageError: Any = typer.BadParameter.__mro__[1]

# Options that users guess for the number of ids.
_COUNT_OPTIONS = re.compile(r"--?(n|c|num|number|count|id[-_]count|ids|total)")


class _Usage(NamedTuple):
    """A usage error."""

    message: str  # typer's
    option: str  # the option that it names, or ""
    context: Any  # the command's
    args: Sequence[str]  # the command line

    def has_parameter(self, name: str) -> bool:
        return any(param.name == name for param in self.context.command.params)


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
    usage = _Usage(message, getattr(error, "option_name", ""), context, args)
    for explain_case in (_negative_count, _count_as_option, _total_as_count, _option_of_root):
        if explanation := explain_case(usage):
            return explanation
    if message == "Missing command.":
        return f"Missing command; give one of {', '.join(context.command.list_commands(context))}"
    missing = getattr(error, "param", None) if type(error).__name__ == "MissingParameter" else None
    if missing is not None and getattr(missing, "help", None):
        return f"{message.removesuffix('.')}: {missing.help}"
    return message


def _negative_count(usage: _Usage) -> str:
    """Explain that COUNT is positive, if it was read as an option."""
    negative = next((arg for arg in usage.args if re.fullmatch(r"-[0-9]+", arg)), "")
    if negative and usage.option == negative[:2] and usage.has_parameter("count"):
        return f"Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not {negative!r}"
    return ""


def _count_as_option(usage: _Usage) -> str:
    """Explain that COUNT is an argument."""
    option, context = usage.option, usage.context
    if not _COUNT_OPTIONS.fullmatch(option) or not usage.has_parameter("count"):
        return ""
    arguments = [each.name.upper() for each in context.command.params if each.param_type_name == "argument"]
    return f"No such option: {option}; COUNT is an argument: {context.command_path} {' '.join(arguments)}"


def _total_as_count(usage: _Usage) -> str:
    """Explain the option --total of the bench."""
    if _COUNT_OPTIONS.fullmatch(usage.option) and any("--total" in p.opts for p in usage.context.command.params):
        return f"No such option: {usage.option}; give the number of ids with --total"
    return ""


def _option_of_root(usage: _Usage) -> str:
    """Explain that an option precedes the command."""
    option, context, root = usage.option, usage.context, usage.context.find_root()
    calls_server = usage.has_parameter("server")
    if not calls_server or not any(option in param.opts for param in root.command.params):
        return ""
    command = context.command_path.removeprefix(f"{root.command_path} ")
    return f"No such option: {option}; give it before the command: {root.command_path} {option} {command}"
