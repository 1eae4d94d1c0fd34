"""The options that configure the connection to the server, and the client that they configure."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc.cli._environment import unknown_variables
from idalloc.cli._options import add_options, nearest, parse_seconds, with_options
from idalloc.cli._printer import Printer, write_stderr

if TYPE_CHECKING:
    from idalloc import Client, InvalidRequest, SequenceNotFound
    from idalloc._transport.config import ChannelArguments

# How many sequences are compared with a name that does not exist: of those with its first letter,
# and of all.
_LISTED = 1_000


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        Printer("text").lines([f"idalloc {version('idalloc')}"], dict)
        raise typer.Exit


def _credential(kind: Any, variable: str, metavar: str, help: str, *, flag: str = "") -> Any:
    names = [flag] if flag else []
    option = typer.Option(*names, metavar=metavar, envvar=variable, help=help, rich_help_panel="TLS and credentials")
    return Annotated[kind | None, option]


# The arguments of `ChannelSettings` but the token: no option holds a secret itself.
_CREDENTIALS = {
    "tls": _credential(
        bool, "IDALLOC_TLS", "", "Use TLS, and trust the system's certificate authorities.", flag="--tls"
    ),
    "ca": _credential(Path, "IDALLOC_CA", "FILE", "Use TLS, and trust only the authorities in this PEM file."),
    "cert": _credential(Path, "IDALLOC_CERT", "FILE", "Authenticate with the certificate in this PEM file."),
    "key": _credential(Path, "IDALLOC_KEY", "FILE", "The private key of --cert."),
    "server_name": _credential(str, "IDALLOC_SERVER_NAME", "NAME", "The name to expect in the server's certificate."),
    "token_file": _credential(
        Path,
        "IDALLOC_TOKEN_FILE",
        "FILE",
        "Authenticate with the token in this file, or with the one in IDALLOC_TOKEN.",
    ),
    "insecure": _credential(
        bool, "IDALLOC_TOKEN_INSECURE", "", "Send the token to another machine even without TLS.", flag="--insecure"
    ),
}


@with_options
@partial(add_options, options=_CREDENTIALS)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    **credentials: Any,
) -> None:
    """Issue identifiers that are never issued twice."""
    own: Any = context.command
    if context.invoked_subcommand in own.commands:  # the server rejects unknown variables itself
        for warning in unknown_variables(os.environ):
            write_stderr(warning)


def target_and_timeout(context: typer.Context) -> tuple[str, float]:
    """Return the server's address and the timeout in seconds."""
    target = nearest(context, "server") or os.environ.get("IDALLOC_SERVER") or DEFAULT_TARGET
    try:
        timeout = nearest(context, "timeout") or parse_seconds(os.environ.get("IDALLOC_TIMEOUT") or DEFAULT_TIMEOUT)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, context, param_hint="IDALLOC_TIMEOUT") from None
    return target, timeout


def channel_arguments(context: typer.Context, target: str) -> "ChannelArguments":
    """Read the files of the TLS and credential options, and check them for a target."""
    from idalloc._transport.config import ChannelConfig, ChannelConfigError, ChannelSettings

    root = context.find_root()
    source = root.get_parameter_source("token_file")
    # --token-file on the command line overrides both environment variables; those two exclude each
    # other.
    on_command_line = source is not None and source.name == "COMMANDLINE"
    token = None if on_command_line else os.environ.get("IDALLOC_TOKEN")
    try:
        arguments = ChannelSettings(**{name: root.params[name] for name in _CREDENTIALS}, token=token).read()
        ChannelConfig(target, **arguments)
    except ChannelConfigError as error:
        name = f"'--{error.setting.replace('_', '-')}'"
        if error.setting == "token" or (error.setting == "server" and not nearest(context, "server")):
            name = f"IDALLOC_{error.setting.upper()}"
        raise typer.BadParameter(error.problem, root, param_hint=name) from None
    return arguments


@contextmanager
def log_errors_as_usage(context: typer.Context) -> Iterator[None]:
    """Convert errors from opening the file of --log to usage errors."""
    try:
        yield
    except FileExistsError:
        message = "the file exists and is never overwritten; name a new file"
        raise typer.BadParameter(message, context, param_hint="'--log'") from None
    except OSError as error:
        raise typer.BadParameter(f"cannot be written: {error.strerror}", context, param_hint="'--log'") from None


@contextmanager
def connect(context: typer.Context, log: Path | None = None) -> Iterator["Client"]:
    """Open a client configured by the options.

    Errors in its block name options in place of fields of the request.
    """
    # imported late: `health` and `--help` need none
    from idalloc import Client, DeadlineExceeded, InvalidRequest, SequenceNotFound

    target, timeout = target_and_timeout(context)
    access = channel_arguments(context, target)
    with log_errors_as_usage(context):
        client = Client(target, timeout=timeout, log=log, **access)
    with client:
        try:
            yield client
        except InvalidRequest as error:
            raise InvalidRequest(_name_option(context, error), metadata=error.metadata) from (error.__cause__ or error)
        except SequenceNotFound as error:
            raise SequenceNotFound(str(error) + _next_step(client, error), metadata=error.metadata) from error
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}; raise the limit with --timeout") from error


def _next_step(client: "Client", error: "SequenceNotFound") -> str:
    """Return the next step for a sequence not found; empty if the caller may list none."""
    from difflib import get_close_matches
    from itertools import chain, islice

    from idalloc import IdallocError

    name = error.metadata.get("sequence", "")
    if not name or not re.search("does not exist(?!:)", str(error)):  # but was deleted, or the store was retired
        return ""
    try:
        found = chain(*(islice(client.sequences.list(prefix), _LISTED) for prefix in (name[:1], "")))
        near = get_close_matches(name, {each.name for each in found} - {name})
    except IdallocError:
        return ""
    if near:
        return f"; near names are {', '.join(map(repr, near))}"
    return "" if "create it" in str(error) else "; create it with `idalloc sequences create`"


def _name_option(context: typer.Context, error: "InvalidRequest") -> str:
    """Return the error's message with the field of the request replaced by the command's option."""
    message = str(error)
    before, _, setting = error.field.rpartition(".")
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if before != "sequence" or setting not in options:
        return message
    return options[setting] + message.removeprefix(error.field)
