"""Errors of the command line and the environment name what is wrong and what to write."""

import re
import shlex
import subprocess
import sys

import pytest

import idalloc
from idalloc import aio, cli
from idalloc.cli import _environment
from idalloc_server.settings.installed import installed
from idalloc_server.settings.sources import _NOT_SETTINGS
from tests.support.command_line import Command
from tests.support.fake_server import FakeServer


@pytest.fixture(autouse=True)
def environment(clean_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return clean_environment


WITHOUT_PORT = [
    "localhost", "10.0.0.1", "[::1]", "::1", "::1:50051", "idalloc.example", "localhost:", "localhost:0",
    "localhost:65536", "localhost:abc", "dns:///idalloc.example", "dns:idalloc.example", "dns://8.8.8.8/idalloc.example",
    "ipv4:10.0.0.1", "ipv4:10.0.0.1:1,10.0.0.2", "ipv6:[::1]", "ipv6:[::1]:1,[::2]", "a:1,b",
]  # fmt: skip
WITH_PORT = [
    "localhost:50051", "a:1,b:2", "10.0.0.1:443", "[::1]:50051", "dns:///idalloc.example:443", "dns:idalloc.example:1",
    "dns://8.8.8.8/idalloc.example:1", "ipv4:10.0.0.1:1,10.0.0.2:2", "ipv6:[::1]:1,[::2]:2", "ipv4:///10.0.0.1:1",
    "unix:/run/idalloc.sock", "unix:///run/idalloc.sock", "unix-abstract:idalloc", "xds:///idalloc",
]  # fmt: skip


@pytest.mark.parametrize("target", WITHOUT_PORT)
def test_target_without_port_is_a_usage_error(target: str, run: Command) -> None:
    """A target without a port is an error: gRPC would call port 443."""
    for args in (
        ("--server", target, "health"),
        ("allocate", "orders", "--server", target),
        ("bench", "--server", target),
    ):
        line = run.error_line(2, *args)
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


def test_invalid_server_variable_is_named(environment: pytest.MonkeyPatch, run: Command) -> None:
    """The error names IDALLOC_SERVER if that holds the invalid target."""
    environment.setenv("IDALLOC_SERVER", "localhost")
    assert "Invalid value for IDALLOC_SERVER: must be HOST:PORT" in run.error_line(2, "allocate", "orders")
    assert "'--server': must be HOST:PORT" in run.error_line(2, "--server", "other", "allocate", "orders")


COUNT = "Invalid value for 'COUNT': must be a whole number from 1 to 2^63-1, not"
HAS_COUNT = "COUNT is an argument: idalloc"
NUMBER, SHORT = "must be a whole number of 64 bits", "must be a whole number from 0 to 65535"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # COUNT
        ("allocate orders -3", f"idalloc: {COUNT} '-3' (see idalloc allocate --help)"),
        ("allocate orders -30 --json", f"idalloc: {COUNT} '-30' (see idalloc allocate --help)"),
        ("allocate orders x", f"idalloc: {COUNT} 'x' (see idalloc allocate --help)"),
        ("allocate orders many", f"idalloc: {COUNT} 'many' ("),
        ("allocate orders 0", f"idalloc: {COUNT} '0' ("),
        ("allocate orders 9223372036854775808", f"idalloc: {COUNT} '9223372036854775808' ("),
        ("docid -1", f"idalloc: {COUNT} '-1' (see idalloc docid --help)"),
        ("uuid -25", f"idalloc: {COUNT} '-25' (see idalloc uuid --help)"),
        ("allocate orders --count 3", f"No such option: --count; {HAS_COUNT} allocate SEQUENCE COUNT (see idalloc a"),
        ("allocate orders --count=3", f"No such option: --count; {HAS_COUNT} allocate SEQUENCE COUNT (see idalloc a"),
        ("allocate orders -n 3", f"No such option: -n; {HAS_COUNT} allocate SEQUENCE COUNT (see idalloc allocate --"),
        ("docid --count 3", f"No such option: --count; {HAS_COUNT} docid COUNT (see idalloc docid --help)"),
        ("uuid -n 3", f"No such option: -n; {HAS_COUNT} uuid COUNT (see idalloc uuid --help)"),
        ("stream orders --count 5", "No such option: --count; give the number of ids with --total (see idalloc str"),
        ("stream orders 100", "idalloc: Missing option '--total': The total number of ids. (see idalloc stream --h"),
        ("stream orders", "idalloc: Missing option '--total': The total number of ids. (see idalloc stream --help)"),
        ("stream orders --total 0", "'--total': must be a whole number from 1 to 2^63-1, not '0'"),
        # What is missing, misplaced or mistyped
        ("allocate", "idalloc: Missing argument 'SEQUENCE': The sequence's name. (see idalloc allocate --help)"),
        ("sequences create", "Missing argument 'NAME'"),
        ("sequences parse a", "Missing argument 'TEXT'"),
        ("node --json", "idalloc: Missing command; give one of show, set (see idalloc node --help)"),
        ("token --json", "idalloc: Missing command; give one of new (see idalloc token --help)"),
        ("allocate orders --tls", "No such option: --tls; give it before the command: idalloc --tls allocate (see id"),
        (
            "sequences list --token-file x",
            "No such option: --token-file; give it before the command: idalloc --token-file sequences list (see idal",
        ),
        ("allocate orders --jsn", "idalloc: No such option: --jsn (Possible options: --json) (see idalloc allocate -"),
        ("node show --bogus", "No such option: --bogus"),
        ("allocat orders", "'allocate'"),
        ("allocate \udcff", "UTF-8"),
        ("sequences create \udcff", "UTF-8"),
        ("health \udcff", "UTF-8"),
        # Server, timeout and output
        ("node show --timeout 5", "'--timeout': must be a positive duration"),
        ("node show --timeout 0s", "'--timeout': must be a positive duration"),
        ("--timeout 5 health", "'--timeout': must be a positive duration"),
        ("node show --server http://127.0.0.1:50051", "'--server': must be HOST:PORT"),
        ("--server https://127.0.0.1:50051 health", "'--server': must be HOST:PORT"),
        ("--output table --json node show", "idalloc: --output table and --json are mutually exclusive; give one of"),
        ("--output table --json node show", "give one of them (see idalloc --help)"),
        ("node --output text --json show", "idalloc: --output text and --json are mutually exclusive; give one of th"),
        ("node --output text --json show", "give one of them (see idalloc node --help)"),
        ("sequences delete orders --json --output text", "idalloc: --output text and --json are mutually exclusive; "),
        ("health --output yaml", "idalloc: Invalid value for '--output': must be one of table, text, json, not 'yaml'"),
        ("bench --output report.json", "Invalid value for '--output': must be one of table, text, json, not 'report"),
        ("serve --json", "idalloc: No such option: --json"),
        ("store export --json", "idalloc: No such option: --json"),
        # Settings and options of sequences and nodes
        ("sequences create a --step 1.5", f"'--step': {NUMBER}"),
        ("sequences create a --start 9223372036854775808", f"'--start': {NUMBER}"),
        ("sequences create a --step abc", f"'--step': {NUMBER}, or the word default, not 'abc'"),
        ("sequences create a --kind odd", "'--kind': must be one of"),
        ("sequences create a --kind ''", "'--kind': must be one of counter, timestamp-ms, timestamp-us, not ''"),
        ("sequences create a --label b", "'--label': must have the form KEY=VALUE"),
        ("sequences advance a", "give either --past or --past-table"),
        ("sequences advance --past 1", "give the NAME of a sequence, or --all"),
        *(
            (f"sequences advance --all {other}", "--all excludes NAME")
            for other in ("a", "--past 0", "--past-table crate://h/a.b.c", "--period 2026", '--etag "1"')
        ),
        ("sequences advance a --past default", f"'--past': {NUMBER}, not 'default' (see"),
        ("sequences advance a --past abc", f"'--past': {NUMBER}, not 'abc' (see"),
        ("sequences advance a --past ''", f"'--past': {NUMBER}, not '' (see"),
        ("sequences advance a --past 1 --past-table crate://h/a.b", "--past"),
        ("sequences update a --kind counter", "'--kind': cannot be changed after creation"),
        ("sequences update a --reset never", "'--reset': cannot be changed after creation"),
        ("sequences update a --time-zone UTC", "'--time-zone': cannot be changed after creation"),
        ("node set", "nothing to change"),
        ("node set --prefix 65536", f"'--prefix': {SHORT}"),
        ("node set --prefix x", f"'--prefix': {SHORT}"),
        ("node set --auto-increment-offset 0", "must be a whole number from 1 to 65535"),
        ("node set --auto-increment-increment 65536", "must be a whole number from 1 to 65535"),
        ("docid 1 --offset 65536", f"'--offset': {SHORT}"),
        ("uuid --version 1", "'--version': must be one of 4, 7"),
        ("allocate a --request-id 7", "--request-id"),
        ("allocate a --texts --ranges", "--ranges and --texts are mutually exclusive"),
    ],
)
def test_usage_error_is_one_line_and_exits_with_2(server: FakeServer, run: Command, line: str, message: str) -> None:
    """A usage error is one line that names argument, value and help; nothing is sent."""
    error = run.error_line(2, *shlex.split(line))
    assert message in error
    if pointer := re.search(r"\(see (idalloc.*) --help\)$", error):
        words = [word for word in shlex.split(line) if re.fullmatch("[a-z]+", word)]
        assert " ".join(["idalloc", *words]).startswith(pointer[1])
    else:
        assert "(see" not in error
    assert not server.requests


def test_group_without_a_command_prints_its_help(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A group without a command prints its help, with exit code 2."""
    assert cli.main(["sequences"]) == 2
    assert "Usage: idalloc sequences" in "".join(capsys.readouterr())
    assert not server.requests


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
    for name in installed().settings.model_fields:
        environment.setenv(f"IDALLOC_{name.upper()}", "x")
    for name in ("CONFIG", "SERVICE_HOST", "SERVICE_PORT_GRPC", "PORT", "PORT_50051_TCP_ADDR", "TEST_SEED"):
        environment.setenv(f"IDALLOC_{name}", "x")
    assert cli.main(("--server", server.target, "allocate", "orders")) == 0
    assert capsys.readouterr() == ("1\n", "")


def test_client_and_server_know_the_same_variables() -> None:
    """The client knows all settings of the server; the server ignores the client's variables."""
    assert {name.upper() for name in installed().settings.model_fields} <= set(_environment.SERVER)
    assert all(_NOT_SETTINGS.fullmatch(name) for name in _environment.CLIENT)


def test_server_commands_report_variables_once(environment: pytest.MonkeyPatch) -> None:
    """The server reports an unknown variable itself, in one line."""
    environment.setenv("IDALLOC_SERVR", "x")
    command = [sys.executable, "-c", "import sys; from idalloc.cli import main; sys.exit(main())", "config", "show"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert done.stderr == "idalloc: IDALLOC_SERVR: there is no such setting; `idalloc serve --help` lists all\n"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("allocate",), "unless its setting auto_create_sequences is off."),
        (("sequences", "advance"), "A new generation begins in either case, since nodes may hold leases of older ids."),
        (("serve",), "persisted by `node set --persist` > TOML file > default."),
    ],
)
def test_help_breaks_lines_at_the_end_of_the_terminal(
    command: tuple[str, ...], sentence: str, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A paragraph of the help is one line on a terminal that is wide enough."""
    environment.setenv("COLUMNS", "300")
    environment.setenv("TERMINAL_WIDTH", "300")
    assert cli.main((*command, "--help")) == 0
    assert sentence in capsys.readouterr().out


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
        word
        for field in installed().settings.model_fields.values()
        for word in re.findall(r"\[\w+\]", str(field.description))
    }
    assert brackets == {"[native]"}
    assert all(word in printed for word in brackets)
