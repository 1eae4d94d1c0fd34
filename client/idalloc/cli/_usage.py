"""Explains what is wrong with a command line, where typer itself says too little."""

import re
from collections.abc import Sequence
from typing import Any

# What people write for a number of ids.
_COUNTS = re.compile(r"--?(n|c|num|number|count|id[-_]count|ids|total)")


def explained(error: Any, args: Sequence[str]) -> str:
    """Return the message of a usage error, with what to write instead.

    Args:
        error: One of typer's usage errors.
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
            return f"Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not {negative}"
        if _COUNTS.fullmatch(option):
            usage = " ".join(piece.upper() for piece in _arguments(context.command))
            return f"No such option: {option}; COUNT has no flag: {context.command_path} {usage}"
    if _COUNTS.fullmatch(option) and any("--total" in param.opts for param in context.command.params):
        return f"No such option: {option}; --total says how many ids"
    if missing is not None and getattr(missing, "help", None):
        return f"{message.removesuffix('.')}: {missing.help}"
    return message


def _arguments(command: Any) -> list[str]:
    return [param.name for param in command.params if param.param_type_name == "argument"]
