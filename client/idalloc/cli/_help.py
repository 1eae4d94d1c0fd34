"""The help texts of commands."""

import re
from typing import Any


def join_lines(command: Any) -> Any:
    """Join the lines of each paragraph in the help of a command and its subcommands.

    Rich then breaks them where the terminal ends. Returns the command.
    """
    if command.help:
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help)
    for each in getattr(command, "commands", {}).values():
        join_lines(each)
    return command
