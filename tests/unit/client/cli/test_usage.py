"""Errors of the command line and the environment name what is wrong and what to write."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import idalloc
from idalloc import aio, cli
from idalloc.cli import _environment
from idalloc_server.settings.model import Settings
from idalloc_server.settings.sources import _NOT_SETTINGS
from tests.support.fake_server import FakeServer, serving


@pytest.fixture(autouse=True)
def environment(clean_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return clean_environment


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as server:
        yield server


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run an invalid command line, and return its one line on standard error."""
    assert cli.main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    return line


WITHOUT_PORT = [
    "localhost", "10.0.0.1", "[::1]", "::1", "::1:50051", "idalloc.example", "localhost:", "localhost:0",
    "localhost:65536", "localhost:abc", "dns:///idalloc.example", "dns:idalloc.example", "dns://8.8.8.8/idalloc.example",
    "ipv4:10.0.0.1", "ipv4:10.0.0.1:1,10.0.0.2", "ipv6:[::1]", "ipv6:[::1]:1,[::2]", "a:1,b:2",
]  # fmt: skip
WITH_PORT = [
    "localhost:50051", "10.0.0.1:443", "[::1]:50051", "dns:///idalloc.example:443", "dns:idalloc.example:1",
    "dns://8.8.8.8/idalloc.example:1", "ipv4:10.0.0.1:1,10.0.0.2:2", "ipv6:[::1]:1,[::2]:2", "ipv4:///10.0.0.1:1",
    "unix:/run/idalloc.sock", "unix:///run/idalloc.sock", "unix-abstract:idalloc", "xds:///idalloc",
]  # fmt: skip


@pytest.mark.parametrize("target", WITHOUT_PORT)
def test_target_without_port_is_a_usage_error(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A target without a port is an error: gRPC would call port 443."""
    for args in (
        ("--server", target, "health"),
        ("allocate", "orders", "--server", target),
        ("bench", "--server", target),
    ):
        line = error_of(capsys, *args)
        assert line.startswith("idalloc: Invalid value for '--server': must be HOST:PORT, such as localhost:50051")
        assert line.endswith(f"not {target!r} (see idalloc --help)")


@pytest.mark.parametrize("target", WITHOUT_PORT)
def test_clients_reject_target_without_port(target: str, environment: pytest.MonkeyPatch) -> None:
    """Both clients reject such a target, from an argument or the environment."""
    environment.setenv("IDALLOC_SERVER", target)
    for make in (lambda: idalloc.Client(target), lambda: aio.Client(target)):
        with pytest.raises(ValueError, match="server: must be HOST:PORT"):
            make()
    for of in (idalloc.Client, aio.Client):
        with pytest.raises(ValueError, match="IDALLOC_SERVER: must be HOST:PORT"):
            of.from_environment()


@pytest.mark.parametrize("target", WITH_PORT)
def test_targets_with_ports_and_sockets_are_accepted(target: str) -> None:
    """Targets with ports, sockets and gRPC's resolver schemes are valid."""
    idalloc.Client(target).close()


def test_invalid_server_variable_is_named(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names IDALLOC_SERVER if that holds the invalid target."""
    environment.setenv("IDALLOC_SERVER", "localhost")
    assert "Invalid value for IDALLOC_SERVER: must be HOST:PORT" in error_of(capsys, "allocate", "orders")
    assert "'--server': must be HOST:PORT" in error_of(capsys, "--server", "other", "allocate", "orders")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("allocate orders -3", "Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not '-3'"),
        ("allocate orders -30 --json", "Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not '-30'"),
        ("allocate orders x", "Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not 'x'"),
        ("docid -1", "Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not '-1'"),
        ("uuid -25", "Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not '-25'"),
        ("allocate orders --count 3", "No such option: --count; COUNT is an argument: idalloc allocate SEQUENCE COUNT"),
        ("allocate orders --count=3", "No such option: --count; COUNT is an argument: idalloc allocate SEQUENCE COUNT"),
        ("allocate orders -n 3", "No such option: -n; COUNT is an argument: idalloc allocate SEQUENCE COUNT"),
        ("docid --count 3", "No such option: --count; COUNT is an argument: idalloc docid COUNT"),
        ("uuid -n 3", "No such option: -n; COUNT is an argument: idalloc uuid COUNT"),
        ("stream orders --count 5", "No such option: --count; give the number of ids with --total"),
        ("stream orders 100", "Missing option '--total': The total number of ids."),
        ("stream orders", "Missing option '--total': The total number of ids."),
        ("allocate", "Missing argument 'SEQUENCE': The sequence's name."),
        ("allocate orders --jsn", "No such option: --jsn (Possible options: --json)"),
    ],
)
def test_invalid_count_is_explained(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the argument, its value and the correct form."""
    command = line.split()[0]
    assert error_of(capsys, *line.split()) == f"idalloc: {message} (see idalloc {command} --help)"


@pytest.mark.parametrize(
    ("line", "message", "command"),
    [
        ("node --json", "Missing command; give one of show, set", "idalloc node"),
        ("token --json", "Missing command; give one of new", "idalloc token"),
        (
            "allocate orders --tls",
            "No such option: --tls; give it before the command: idalloc --tls allocate",
            "idalloc allocate",
        ),
        (
            "sequences list --token-file x",
            "No such option: --token-file; give it before the command: idalloc --token-file sequences list",
            "idalloc sequences list",
        ),
    ],
)
def test_what_is_missing_or_misplaced_is_named(
    line: str, message: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group without a command lists its commands; a misplaced option's error names its place."""
    assert error_of(capsys, *line.split()) == f"idalloc: {message} (see {command} --help)"


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("IDALLOC_SERVR", "IDALLOC_SERVER"),
        ("IDALLOC_TIMOUT", "IDALLOC_TIMEOUT"),
        ("IDALLOC_TOKENFILE", "IDALLOC_TOKEN_FILE"),
        ("IDALLOC_COLOUR_OF_LINES", ""),
    ],
)
def test_mistyped_variable_prints_a_warning(
    server: FakeServer,
    environment: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    suggestion: str,
) -> None:
    """An unknown variable is reported with a suggestion and without its value; the call goes on."""
    environment.setenv(variable, "secret")
    assert cli.main(("--server", server.target, "allocate", "orders")) == 0
    out, err = capsys.readouterr()
    hint = f"; did you mean {suggestion}?" if suggestion else ""
    assert (out, err) == ("1\n", f"idalloc: the environment variable {variable} is unknown and has no effect{hint}\n")


def test_server_and_kubernetes_variables_are_known(
    server: FakeServer, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Variables of the server, Kubernetes and the tests print no warning."""
    for name in Settings.model_fields:
        environment.setenv(f"IDALLOC_{name.upper()}", "x")
    for name in ("CONFIG", "SERVICE_HOST", "SERVICE_PORT_GRPC", "PORT", "PORT_50051_TCP_ADDR", "TEST_SEED"):
        environment.setenv(f"IDALLOC_{name}", "x")
    assert cli.main(("--server", server.target, "allocate", "orders")) == 0
    assert capsys.readouterr() == ("1\n", "")


def test_client_and_server_know_the_same_variables() -> None:
    """The client knows all settings of the server; the server ignores the client's variables."""
    assert {name.upper() for name in Settings.model_fields} <= set(_environment.SERVER)
    assert all(_NOT_SETTINGS.fullmatch(name) for name in _environment.CLIENT)


def test_server_commands_report_variables_once(environment: pytest.MonkeyPatch) -> None:
    """The server reports an unknown variable itself, in one line."""
    environment.setenv("IDALLOC_SERVR", "x")
    command = [sys.executable, "-c", "import sys; from idalloc.cli import main; sys.exit(main())", "config", "show"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert done.stderr == "idalloc: IDALLOC_SERVR: there is no such setting; `idalloc serve --help` lists all\n"


@pytest.mark.parametrize("command", [("serve",), ("config", "show")])
def test_help_keeps_words_in_brackets(
    command: tuple[str, ...], environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The help shows [native], which Rich would interpret as markup."""
    environment.setenv("COLUMNS", "300")
    environment.setenv("TERMINAL_WIDTH", "300")
    assert cli.main((*command, "--help")) == 0
    printed = capsys.readouterr().out
    brackets = {
        word for field in Settings.model_fields.values() for word in re.findall(r"\[\w+\]", str(field.description))
    }
    assert brackets == {"[native]"}
    assert all(word in printed for word in brackets)
