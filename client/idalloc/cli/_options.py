"""The options that commands share, and parsers of values."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc.cli._printer import OUTPUTS, Printer
from idalloc.cli._usage import UsageError

MAX_INT64 = 2**63 - 1
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str | float) -> float:
    """Parse a positive duration, such as 500ms, 30s or 2m, into seconds.

    A default is passed as a number.
    """
    if isinstance(text, float):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"must be a positive duration such as 500ms, 30s or 2m, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def integer_parser(minimum: int, maximum: int = MAX_INT64) -> Callable[[str | int], int]:
    """Return a parser of integers within bounds, with a plainer error than typer's."""
    largest = "2^63-1" if maximum == MAX_INT64 else maximum

    def parse(text: str | int) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", str(text)) or not minimum <= int(text) <= maximum:
            raise typer.BadParameter(f"must be a whole number from {minimum} to {largest}, not {text!r}")
        return int(text)

    return parse


def choices(*values: str) -> Any:
    """Return the arguments of an option or argument whose value is one of the given ones."""

    def parse(text: str) -> str:
        if text not in values:
            raise typer.BadParameter(f"must be one of {', '.join(values)}, not {text!r}")
        return text

    return {"metavar": "|".join(values), "parser": parse, "autocompletion": lambda: list(values)}


Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Log the issued ids to a new file for `idalloc verify`: JSON lines if it ends in .jsonl, else binary.",
    ),
]
_CONNECTION = {
    "server": Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help=f"The server's address; default: IDALLOC_SERVER, else {DEFAULT_TARGET}."
        ),
    ],
    "timeout": Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parse_seconds,
            help=f"The deadline of a call; default: IDALLOC_TIMEOUT, else {DEFAULT_TIMEOUT:g}s.",
        ),
    ],
}
_OUTPUT = {
    "output": Annotated[
        str | None,
        typer.Option(**choices(*OUTPUTS), help="The form of the results; default: table on a terminal, else text."),
    ],
    "as_json": Annotated[bool | None, typer.Option("--json", metavar="", help="Short for --output json.")],
}


def add_options(command: Any, options: Mapping[str, Any]) -> Any:
    """Add options to a command, in place of its ``**`` parameter if it has one.

    Args:
        command: The command's function.
        options: The annotations of the options, by name; the default of each is None.
    """
    parameters = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def with_output(command: Any, options: Mapping[str, Any] = _OUTPUT) -> Any:
    """Add the output options to a command or a group, and set ``context.obj`` to their printer.

    The options may be given before and after a command's name; the last one applies.

    Args:
        command: A function. It prints results if it has a parameter ``context``; otherwise it is
            returned unchanged.
        options: The annotations of the options, by name.
    """
    parameters = inspect.signature(command).parameters
    if "context" not in parameters or "output" in parameters:
        return command

    @wraps(command)
    def run(context: typer.Context, **arguments: Any) -> Any:
        given = {name: arguments.pop(name) for name in options}
        output = given["output"]
        if given["as_json"]:
            if output not in (None, "json"):
                raise UsageError(f"--output {output} and --json are mutually exclusive; give one of them", context)
            output = "json"
        if output or context.obj is None:
            context.obj = Printer(output)
        return command(context, **arguments)

    return add_options(run, options)


def with_options(command: Any) -> Any:
    """Add --server and --timeout to a command or a group, besides the options for the output."""
    return with_output(command, _CONNECTION | _OUTPUT)


def add_group_options(group: typer.Typer, decorate: Callable[[Any], Any] = with_options) -> typer.Typer:
    """Add the shared options to a group of commands, and return it."""

    def callback(context: typer.Context) -> None:
        pass

    group.callback()(decorate(callback))
    return group


def nearest(context: typer.Context, option: str) -> Any:
    """Return an option's value, the last one if several levels have it; None if not given."""
    level: Any = context
    while level is not None:
        if level.params.get(option) is not None:
            return level.params[option]
        level = level.parent
    return None
