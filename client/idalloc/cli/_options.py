"""Options that the client's commands share, and the client that they configure."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from idalloc._core.defaults import DEFAULT_TARGET
from idalloc.cli import _output
from idalloc.cli._environment import unknown_variables
from idalloc.cli._plugins import is_plugin

if TYPE_CHECKING:
    from idalloc import Client, InvalidRequest
    from idalloc._transport.config import ChannelArguments

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """Parse a positive duration, such as 500ms, 30s or 2m, into seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"must be a positive duration such as 500ms, 30s or 2m, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def integer_parser(minimum: int, maximum: int) -> Callable[[str | int], int]:
    """Return a parser of integers within bounds, with a plainer error than typer's."""

    def parse(text: str | int) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", str(text)) or not minimum <= int(text) <= maximum:
            raise typer.BadParameter(f"must be a whole number from {minimum} to {maximum}, not {text!r}")
        return int(text)

    return parse


def parse_count(text: str | int) -> int:
    """Parse a number of ids. A default is passed as an integer."""
    if not re.fullmatch(r"[0-9]{1,19}", str(text)) or not 1 <= int(text) < 2**63:
        raise typer.BadParameter(f"must be a whole number from 1 to 2^63-1, not {text!r}")
    return int(text)


def parse_count_or_zero(text: str | int) -> int:
    """Parse a number of ids, or 0 for the server's default."""
    return 0 if str(text) == "0" else parse_count(text)


def print_version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        _output.write_lines([f"idalloc {version('idalloc')}"])
        raise typer.Exit


Server = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help=f"The server's address; default: IDALLOC_SERVER, else {DEFAULT_TARGET}."),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="The deadline of a call; default: IDALLOC_TIMEOUT, else 5s."),
]
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Log the issued ids to a new file for `idalloc verify`: JSON lines if it ends in .jsonl, else binary.",
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the reply as JSON, 64-bit integers as strings.")]


class CredentialOptions(NamedTuple):
    """TLS and credential options. They precede the command's name; none holds a secret itself."""

    tls: bool
    ca: Path | None
    cert: Path | None
    key: Path | None
    server_name: str | None
    token_file: Path | None
    insecure: bool


class GlobalOptions(NamedTuple):
    """Options that precede the command's name."""

    server: str
    timeout: str
    credentials: CredentialOptions


def set_global_options(
    context: typer.Context,
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="IDALLOC_SERVER", help="The server's address.")
    ] = DEFAULT_TARGET,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", envvar="IDALLOC_TIMEOUT", help="The deadline of a call.")
    ] = "5s",
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", metavar="", envvar="IDALLOC_TLS", help="Use TLS, and trust the system's certificate authorities."
        ),
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="IDALLOC_CA", help="Use TLS, and trust only the authorities in this PEM file."
        ),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="IDALLOC_CERT", help="Authenticate with the certificate in this PEM file."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="IDALLOC_KEY", help="The private key of --cert.")
    ] = None,
    server_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="IDALLOC_SERVER_NAME", help="The name to expect in the server's certificate."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="IDALLOC_TOKEN_FILE",
            help="Authenticate with the token in this file, or with the one in the environment variable IDALLOC_TOKEN.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            metavar="",
            envvar="IDALLOC_TOKEN_INSECURE",
            help="Send the token to another machine even without TLS.",
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Store the global options in the context, and warn of unknown environment variables."""
    if not is_plugin(context.invoked_subcommand):  # the server rejects unknown variables itself
        for warning in unknown_variables(os.environ):
            _output.write_stderr(warning)
    credentials = CredentialOptions(tls, ca, cert, key, server_name, token_file, insecure)
    context.obj = GlobalOptions(server or DEFAULT_TARGET, timeout or "5s", credentials)


def set_group_options(context: typer.Context, server: Server = None, timeout: Timeout = None) -> None:
    """Override the global options with those that follow the name of a command group."""
    options: GlobalOptions = context.obj
    context.obj = options._replace(server=server or options.server, timeout=timeout or options.timeout)


def target_and_timeout(context: typer.Context, server: str | None, timeout: str | None) -> tuple[str, float]:
    """Return the server's address and the timeout in seconds; a command's own options override the global ones."""
    options: GlobalOptions = context.obj
    target = server or options.server
    try:
        return target, parse_seconds(timeout or options.timeout)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, context, param_hint="'--timeout'") from None


def channel_arguments(context: typer.Context, target: str) -> "ChannelArguments":
    """Read the files of the TLS and credential options, and check them for a target."""
    from idalloc._transport.config import ChannelConfig, ChannelConfigError, read_channel_arguments

    options: CredentialOptions = context.obj.credentials
    source = context.find_root().get_parameter_source("token_file")
    # --token-file on the command line overrides both environment variables; those two exclude each other.
    on_command_line = source is not None and source.name == "COMMANDLINE"
    token = None if on_command_line else os.environ.get("IDALLOC_TOKEN")
    try:
        arguments = read_channel_arguments(**options._asdict(), token=token)
        ChannelConfig(target, **arguments)
    except ChannelConfigError as error:
        name = f"'--{error.setting.replace('_', '-')}'"
        if error.setting == "token" or (error.setting == "server" and target == os.environ.get("IDALLOC_SERVER")):
            name = f"IDALLOC_{error.setting.upper()}"
        raise typer.BadParameter(error.problem, context.find_root(), param_hint=name) from None
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
def connect(
    context: typer.Context, server: str | None, timeout: str | None, log: Path | None = None
) -> Iterator["Client"]:
    """Open a client configured by the options. Errors in its block name options in place of fields of the request."""
    from idalloc import Client, DeadlineExceeded, InvalidRequest  # imported late: `health` and `--help` need none

    target, limit = target_and_timeout(context, server, timeout)
    access = channel_arguments(context, target)
    with log_errors_as_usage(context):
        client = Client(target, timeout=limit, log=log, **access)
    with client:
        try:
            yield client
        except InvalidRequest as error:
            raise InvalidRequest(_name_option(context, error), metadata=error.metadata) from error
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}; raise the limit with --timeout") from error


def _name_option(context: typer.Context, error: "InvalidRequest") -> str:
    """Return the error's message with the field of the request replaced by the command's option."""
    message = str(error)
    before, _, setting = error.field.rpartition(".")
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if before != "sequence" or setting not in options:
        return message
    return options[setting] + message.removeprefix(error.field)
