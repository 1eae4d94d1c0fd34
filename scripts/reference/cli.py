"""cli.md: every command, from the command line's own parser."""

from functools import cache
from typing import Any

import typer

from idalloc.cli import app
from idalloc_server.settings.installed import installed
from scripts.reference import links
from scripts.reference.cli_examples import EXAMPLES, EXIT_CODES
from scripts.reference.markdown import block, document, one_line, prose, table

_HEAD = """\
# Commands

Find a command of `idalloc`, its options and its exit codes. `idalloc COMMAND --help` prints the same.

The package `idalloc[cli]` has the client's commands, `idalloc[server]` also `serve`, `config`, `store`,
`token` and `witness`. `bench` needs `idalloc[bench]`, and `verify` needs `idalloc[verify]`.

## What all commands share

Results go to standard output. Errors go to standard error, one line each: `REASON: message` if the server rejected the
call ([errors](errors.md)), `idalloc: message` otherwise. A warning is also one line there, such as
`created sequence 'orders'`.

The form of the results is a table on a terminal and text in a pipe; ids and reports are lines in both. `--json` prints
the [JSON mapping](api.md#json) of the protos: names in lowerCamelCase, 64-bit integers as texts. A stream prints an
object on each line. Control characters and bidirectional marks are printed as `\\u202e` and the like.

`--server`, `--timeout`, `--output` and `--json` may come before and after the names of a command; the last one
applies. The other options of `idalloc` come before the command. [Variables](settings.md#variables-of-the-client) set
the same. A duration is written `500ms`, `30s` or `2m`.
"""
_EXIT_CODES = [
    ("0", "success"),
    ("1", "the call failed, or the result is negative"),
    ("2", "the command line, a variable or a file is wrong, or a package is missing"),
    ("130", "Ctrl-C"),
]
# Options of all commands that call a server, which the page describes once.
_SHARED = ("server", "timeout", "output", "as_json")


def page() -> str:
    """Return the page."""
    found = commands()
    for known, what in ((EXAMPLES, "an example"), (EXIT_CODES, "exit codes")):
        wrong = known.keys() ^ found.keys() if known is EXAMPLES else known.keys() - found.keys()
        if wrong:
            raise ValueError(f"scripts/reference/cli_examples.py must have {what} for: {sorted(wrong)}")
    overview = [
        (f"[`idalloc {name}`](#{'-'.join(['idalloc', *name.split()])})", _first_sentence(command))
        for name, command in found.items()
    ]
    return document(
        _HEAD,
        "### Options of `idalloc`",
        table(("option", "value", "meaning"), map(_row, root_options())),
        "### Exit codes",
        table(("code", "meaning"), _EXIT_CODES),
        "## All commands",
        "The examples of this page run one after the other. They need a server:",
        block("sh", 'idalloc serve --witness "sqlite://$PWD/witness.db"'),
        table(("command", "what it does"), overview),
        *(_section(name, command) for name, command in found.items()),
    )


def root_options() -> list[Any]:
    """Return the options of `idalloc` itself."""
    return [*typer.main.get_command(app).params]


@cache
def commands() -> dict[str, Any]:
    """Return the parser of each command by its name, such as "sequences create"."""
    found: dict[str, Any] = {}
    root: Any = typer.main.get_command(app)
    context = root.make_context("idalloc", [], resilient_parsing=True)
    for name in root.list_commands(context):
        _, command, _ = root.resolve_command(context, [name])
        nested = getattr(command, "commands", None)
        found |= {name: command} if nested is None else {f"{name} {each}": nested[each] for each in nested}
    return found


def _section(name: str, command: Any) -> str:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    own = [each for each in command.params if each.name not in _SHARED and not getattr(each, "hidden", False)]
    settings = [each for each in own if each.name in installed().settings.model_fields and each.metavar == "VALUE"]
    rows = [_row(each) for each in own if each not in settings]
    usage = ["idalloc", name, "[OPTIONS]", *(_usage(each) for each in arguments)]
    shared = [f"`{each.opts[0]}`" for each in command.params if each.name in _SHARED]
    return document(
        f"## `idalloc {name}`",
        block("text", " ".join(usage)),
        "\n\n".join(prose(one_line(part), links.ALL) for part in command.help.split("\n\n")),
        table(("argument or option", "value", "meaning"), rows) if rows else "",
        _settings(settings),
        f"Also {', '.join(shared)}: see [above](#what-all-commands-share)." if shared else "",
        f"Exit code: {EXIT_CODES[name]}" if name in EXIT_CODES else "",
        "Example:",
        block("sh", EXAMPLES[name]),
    )


def _settings(options: list[Any]) -> str:
    """Return the options that are settings of the server, which another page describes."""
    listed = ", ".join(f"[`{each.opts[0]}`]({links.SETTINGS[each.name]})" for each in options)
    return f"Settings of the server: {listed}." if options else ""


def _row(option: Any) -> tuple[str, str, str]:
    is_argument = option.param_type_name == "argument"
    name = _metavar(option) if is_argument else ", ".join(f"`{each}`" for each in option.opts)
    choices = (option.metavar or "").split("|")
    if len(choices) > 1:
        value = ", ".join(f"`{each}`" for each in choices)
    else:
        value = "" if is_argument or getattr(option, "is_flag", False) else f"`{_metavar(option)}`"
    return (f"`{name}`" if is_argument else name, value, f"{prose(one_line(option.help or ''))}{_default(option)}")


def _metavar(option: Any) -> str:
    metavar = option.metavar or option.name.upper()
    return str(option.name.upper() if "|" in metavar else metavar)


def _usage(argument: Any) -> str:
    return _metavar(argument) if argument.required else f"[{_metavar(argument)}]"


def _default(option: Any) -> str:
    """Return the default, unless the help states it or it is empty."""
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    if option.required:
        return " Required." if option.param_type_name == "option" else ""
    if shown in (None, False, "", ()) or "efault:" in (option.help or ""):
        return ""
    return f" Default: `{shown}`."


def _first_sentence(command: Any) -> str:
    return prose(one_line(command.help.partition("\n\n")[0]).partition(". ")[0].removesuffix("."), links.ALL)
