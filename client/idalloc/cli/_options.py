"""What all verbs of the client take: which server, how long, and as what to print."""

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
from idalloc.cli._environment import warnings
from idalloc.cli._plugins import is_others

if TYPE_CHECKING:
    from idalloc import Client, InvalidRequest
    from idalloc._transport.config import ChannelArguments

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """Reads a duration such as 500ms, 30s, 2m."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter("must be a duration such as 500ms, 30s or 2m")
    return float(match[1]) * _UNITS[match[2]]


def whole_number(least: int, most: int) -> Callable[[str | int], int]:
    """Makes what reads a number within bounds: where it is wrong, typer itself would speak of input and of schemas."""

    def read(text: str | int) -> int:
        if not re.fullmatch(r"[0-9]{1,19}", str(text)) or not least <= int(text) <= most:
            raise typer.BadParameter(f"must be a whole number from {least} to {most}, not {text}")
        return int(text)

    return read


def count(text: str | int) -> int:
    """Reads a number of ids. A default comes as the number that it is."""
    if not re.fullmatch(r"[0-9]{1,19}", str(text)) or not 1 <= int(text) < 2**63:
        raise typer.BadParameter(f"must be a whole number from 1 to 2^63-1, not {text}")
    return int(text)


def count_or_default(text: str | int) -> int:
    """Reads a number of ids; 0 stands for the server's default."""
    return 0 if str(text) == "0" else count(text)


def show_version(wanted: bool) -> None:
    """Prints the version and ends."""
    if wanted:
        _output.write_lines([f"idalloc {version('idalloc')}"])
        raise typer.Exit


Server = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help=f"The server: {DEFAULT_TARGET}, unless IDALLOC_SERVER says otherwise."),
]
Timeout = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="How long a call may take: 5s, unless IDALLOC_TIMEOUT says otherwise."),
]
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Write down what was issued in a new file, for `idalloc verify`: JSON lines in a .jsonl, else binary.",
    ),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print the reply as JSON, numbers of 64 bits as text.")]


class ShownCredentials(NamedTuple):
    """What the client is to show, and to trust: options that stand before the verb alone. No secret is among them."""

    tls: bool
    ca: Path | None
    cert: Path | None
    key: Path | None
    server_name: str | None
    token_file: Path | None
    insecure: bool


class GlobalOptions(NamedTuple):
    """What was said before the verb."""

    server: str
    timeout: str
    shown: ShownCredentials


def remember(
    context: typer.Context,
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="IDALLOC_SERVER", help="The server, also after the verb.")
    ] = DEFAULT_TARGET,
    timeout: Annotated[
        str, typer.Option(metavar="DURATION", envvar="IDALLOC_TIMEOUT", help="How long a call may take.")
    ] = "5s",
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", metavar="", envvar="IDALLOC_TLS", help="Speak TLS, and trust the authorities that the system does."
        ),
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="IDALLOC_CA", help="Speak TLS, and trust the authorities in this PEM file alone."
        ),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="IDALLOC_CERT", help="Show the certificate in this PEM file."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="IDALLOC_KEY", help="The private key of --cert.")
    ] = None,
    server_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="IDALLOC_SERVER_NAME", help="The name in the server's certificate, if it is another."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="IDALLOC_TOKEN_FILE",
            help="Send the token in this file; or that in the environment variable IDALLOC_TOKEN.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            metavar="",
            envvar="IDALLOC_TOKEN_INSECURE",
            help="Send the token to another machine also without TLS.",
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keeps what was said before the verb."""
    if not is_others(context.invoked_subcommand):  # the server itself refuses to start
        for warning in warnings(os.environ):
            _output.say(warning)
    shown = ShownCredentials(tls, ca, cert, key, server_name, token_file, insecure)
    context.obj = GlobalOptions(server or DEFAULT_TARGET, timeout or "5s", shown)


def remember_for_group(context: typer.Context, server: Server = None, timeout: Timeout = None) -> None:
    """Keeps what was said before a verb of a group."""
    before: GlobalOptions = context.obj
    context.obj = before._replace(server=server or before.server, timeout=timeout or before.timeout)


def settings(context: typer.Context, server: str | None, timeout: str | None) -> tuple[str, float]:
    """Which server, and how many seconds: what was said after the verb, else what was said before."""
    before: GlobalOptions = context.obj
    target = server or before.server
    try:
        return target, seconds(timeout or before.timeout)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, context, param_hint="'--timeout'") from None


def arguments(context: typer.Context, target: str) -> "ChannelArguments":
    """Reads what the client of a target is to show, and to trust."""
    from idalloc._transport.config import ChannelConfig, ChannelConfigError, read_channel_arguments

    shown: ShownCredentials = context.obj.shown
    source = context.find_root().get_parameter_source("token_file")
    # What the command line says goes before the environment, whose two variables are on a par.
    on_the_line = source is not None and source.name == "COMMANDLINE"
    token = None if on_the_line else os.environ.get("IDALLOC_TOKEN")
    try:
        read = read_channel_arguments(**shown._asdict(), token=token)
        ChannelConfig(target, **read)
    except ChannelConfigError as refused:
        name = f"'--{refused.setting.replace('_', '-')}'"
        if refused.setting == "token" or (refused.setting == "server" and target == os.environ.get("IDALLOC_SERVER")):
            name = f"IDALLOC_{refused.setting.upper()}"
        raise typer.BadParameter(refused.problem, context.find_root(), param_hint=name) from None
    return read


@contextmanager
def opening_log(context: typer.Context) -> Iterator[None]:
    """Tells what is wrong with the file of --log, in a block that opens it."""
    try:
        yield
    except FileExistsError:
        raise typer.BadParameter("the file exists, and no log is overwritten", context, param_hint="'--log'") from None
    except OSError as error:
        raise typer.BadParameter(f"cannot be written: {error.strerror}", context, param_hint="'--log'") from None


@contextmanager
def connect(
    context: typer.Context, server: str | None, timeout: str | None, log: Path | None = None
) -> Iterator["Client"]:
    """Makes the client that the options ask for. Its errors are told in the words of the command line."""
    from idalloc import Client, DeadlineExceeded, InvalidRequest  # a verb that needs them; `health` and `--help` do not

    target, limit = settings(context, server, timeout)
    access = arguments(context, target)
    with opening_log(context):
        client = Client(target, timeout=limit, log=log, **access)
    with client:
        try:
            yield client
        except InvalidRequest as error:
            raise InvalidRequest(_by_flag(context, error), metadata=error.metadata) from error
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}; --timeout gives it longer") from error


def _by_flag(context: typer.Context, error: "InvalidRequest") -> str:
    """What the error says, with the verb's option for a setting in place of the request's field."""
    message = str(error)
    before, _, setting = error.field.rpartition(".")
    options = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    if before != "sequence" or setting not in options:
        return message
    return options[setting] + message.removeprefix(error.field)
