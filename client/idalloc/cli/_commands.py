"""Changes typer's commands: the conversion of parameters, and the lines of help texts."""

import re
from functools import partial
from typing import Any


def convert_without_pydantic(command: Any) -> Any:
    """Replace typer's conversion in a command and its subcommands, and return the command.

    Typer imports pydantic for each parameter, also for those that are not given. It would take 40
    ms of the 220 ms that `idalloc allocate` takes. The values of parameters that have no parser,
    and are no text, are still typer's.
    """
    command.get_params = partial(_get_params, command.get_params)
    for each in getattr(command, "commands", {}).values():
        convert_without_pydantic(each)
    return command


def join_lines(command: Any) -> Any:
    """Join the lines of each paragraph in the help of a command and its subcommands.

    Rich then breaks them where the terminal ends. Returns the command.
    """
    if command.help:
        command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", command.help)
    for each in getattr(command, "commands", {}).values():
        join_lines(each)
    return command


def _get_params(get_params: Any, context: Any) -> Any:
    parameters = get_params(context)  # of typer, which adds --help
    for each in parameters:
        plain = hasattr(each, "type_descriptor") and each.nargs == 1 and not each.multiple
        if plain and "process_value" not in vars(each):
            each.process_value = partial(_process_value, each, each.process_value)
    return parameters


def _process_value(parameter: Any, process_value: Any, context: Any, value: Any) -> Any:
    descriptor = parameter.type_descriptor
    parse = descriptor.parameter_info.parser
    if value is None and not parameter.required:
        pass
    elif value is not None and parse is not None:
        value = parse(value)
    elif not (isinstance(value, str) and descriptor.annotation is str):
        return process_value(context, value)
    return parameter.callback(context, parameter, value) if parameter.callback else value
