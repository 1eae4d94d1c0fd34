"""The command's TLS and credential options, and their errors."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from idalloc import cli
from tests.support.certificates import Certificates, Shown
from tests.support.command_line import Command
from tests.support.fake_server import FakeServer, serving

TOKEN = "idalloc_planted-secret-0123456789"
BEARER = f"Bearer {TOKEN}"
CLOSED = (
    "the server closed the connection before it answered, as one that requires TLS or a client certificate does; "
    "pass --tls or --ca, or --cert and --key"
)
BENCH = ("bench", "--total", "20", "--concurrency", "4", "--warm-up", "0s", "--json")


@pytest.fixture(autouse=True)
def environment(clean_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return clean_environment


@pytest.fixture
def shown(certificates: Certificates) -> Shown:
    return certificates.client("billing")


@pytest.fixture
def server(certificates: Certificates) -> Iterator[FakeServer]:
    """A TLS server that requires a client certificate and a token."""
    with serving(credentials=certificates.server(of_clients=certificates.authority)) as server:
        server.tokens = {TOKEN}
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


class SecretCommand(Command):
    def error_line(self, code: int, *args: object) -> str:
        """Run a command that prints one line on standard error, without the token."""
        line = super().error_line(code, *args)
        assert TOKEN not in line
        return line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> SecretCommand:
    return SecretCommand(capsys)


def test_global_options_apply_to_all_commands(
    server: FakeServer, run: SecretCommand, certificates: Certificates, shown: Shown, token_file: Path
) -> None:
    """Every command sends the TLS and credential options that precede its name."""
    options = (
        *("--server", server.target, "--ca", certificates.ca),
        *("--cert", shown.cert, "--key", shown.key, "--token-file", token_file),
    )
    assert run(*options, "health") == "SERVING\n"
    assert run(*options, "allocate", "orders", "2") == "1\n2\n"
    assert run(*options, "stream", "orders", "--total", "2") == "3\n4\n"
    assert run(*options, "docid")
    assert run(*options, "uuid")
    assert run(*options, "node", "set", "--prefix", "8")
    assert run(*options, "sequences", "create", "invoices")
    assert run(*options, "sequences", "list")
    assert run(*options, "sequences", "parse", "orders", "T-1")
    for scenario in ("unary", "mixed"):
        report = json.loads(run(*options, *BENCH, scenario))
        assert report["statusCodeDistribution"] == {"OK": 20}
    rpcs = {"Check", "AllocateRange", "StreamRanges", "GenerateDocId", "UpdateNode", "ListSequences", "StreamDocIds"}
    assert rpcs < server.authorizations.keys()
    assert {each for calls in server.authorizations.values() for each in calls} == {BEARER}


@pytest.mark.parametrize("command", [("health",), ("node", "show"), BENCH], ids=["health", "node", "bench"])
def test_environment_variables_set_credentials(
    server: FakeServer,
    run: SecretCommand,
    certificates: Certificates,
    shown: Shown,
    environment: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    """Environment variables replace the TLS and credential options."""
    environment.setenv("IDALLOC_SERVER", server.target)
    environment.setenv("IDALLOC_CA", str(certificates.ca))
    environment.setenv("IDALLOC_CERT", str(shown.cert))
    environment.setenv("IDALLOC_KEY", str(shown.key))
    environment.setenv("IDALLOC_TOKEN", TOKEN)
    assert run(*command)


def test_system_authorities_are_trusted_without_ca(
    certificates: Certificates, run: SecretCommand, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--tls trusts the system's authorities; --ca trusts only its file."""
    environment.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    environment.setenv("SSL_CERT_FILE", str(certificates.ca))
    with serving(credentials=certificates.server()) as server:
        assert run("--tls", "--server", server.target, "health") == "SERVING\n"
        environment.setenv("IDALLOC_TLS", "true")
        assert run("--server", server.target, "node", "show")
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(other))
        line = run.error_line(1, "--ca", other, "--server", server.target, "node", "show")
        assert "is signed by an untrusted CA" in line


def test_command_line_overrides_environment(
    run: SecretCommand, environment: pytest.MonkeyPatch, token_file: Path, tmp_path: Path
) -> None:
    """--token-file on the command line overrides both token variables."""
    environment.setenv("IDALLOC_TOKEN", "another")
    with serving() as server:
        environment.setenv("IDALLOC_SERVER", server.target)
        run("--token-file", token_file, "node", "show")
        run("node", "show")
        assert server.authorizations["GetNode"] == [BEARER, "Bearer another"]
        environment.setenv("IDALLOC_TOKEN_FILE", str(token_file))
        line = run.error_line(2, "node", "show")
        assert "'--token-file': cannot be combined with token (IDALLOC_TOKEN); set one of them" in line
        run("--token-file", token_file, "node", "show")
        environment.delenv("IDALLOC_TOKEN")
        run("node", "show")
        assert server.authorizations["GetNode"][2:] == [BEARER] * 2


@pytest.mark.test_long
def test_tls_errors_are_one_line_with_a_hint(
    certificates: Certificates, run: SecretCommand, shown: Shown, tmp_path: Path
) -> None:
    """Each TLS error is one line with its cause and the option that helps."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))

    def cause_and_hint(server: FakeServer, *options: object) -> str:
        lines = {
            run.error_line(1, *options, "--server", server.target, *args) for args in (("health",), ("node", "show"))
        }
        lines |= {run.error_line(1, *options, "--timeout", "500ms", "--server", server.target, *BENCH)}
        [cause] = {line.partition(" (")[0] for line in lines}
        assert cause.startswith(f"SERVER_UNREACHABLE: no answer from {server.target}: ")
        [hint] = {line.rpartition("; ")[2] for line in lines}
        return f"{cause.partition(': no answer from ')[2].partition(': ')[2]}; {hint}"

    with serving(credentials=certificates.server()) as server:
        untrusted = "the server's certificate is signed by an untrusted CA; "
        assert cause_and_hint(server, "--ca", other) == untrusted + "pass the certificate of its CA with --ca"
        assert cause_and_hint(server) == CLOSED
    with serving(credentials=certificates.server(expired=True)) as server:
        expired = "the server's certificate has expired; renew it on the server"
        assert cause_and_hint(server, "--ca", certificates.ca) == expired
    with serving(credentials=certificates.server("idalloc.example.org")) as server:
        name = "the server's certificate is not valid for the expected name; "
        hint = "pass a name in its certificate with --server-name"
        assert cause_and_hint(server, "--ca", certificates.ca) == name + hint
        assert run("--ca", certificates.ca, "--server-name", "idalloc.example.org", "--server", server.target, "health")
    with serving() as server:
        assert (
            cause_and_hint(server, "--ca", certificates.ca)
            == "the server does not use TLS; omit --tls, --ca and --cert"
        )
    with serving(credentials=certificates.server(of_clients=certificates.authority)) as server:
        assert cause_and_hint(server, "--ca", certificates.ca) == CLOSED
        assert run(
            "--ca", certificates.ca, "--cert", shown.cert, "--key", shown.key, "--server", server.target, "node", "show"
        )


def test_rejected_token_is_one_line_with_a_hint(run: SecretCommand, token_file: Path) -> None:
    """A rejected token is one line that names the credential options."""
    with serving() as server:
        server.tokens = {"another"}
        for command in (("health",), ("node", "show"), ("stream", "orders", "--total", "3"), BENCH):
            line = run.error_line(1, "--token-file", token_file, "--server", server.target, *command)
            assert line.startswith("UNAUTHENTICATED: UNAUTHENTICATED it is")
            assert line.endswith("; authenticate with --token-file, or --cert and --key")


def test_permission_and_quota_errors_are_one_line(run: SecretCommand) -> None:
    """PERMISSION_DENIED and QUOTA_EXCEEDED are one line with exit code 1."""
    with serving() as server:
        server.fail_next("AllocateRange", "PERMISSION_DENIED", grpc.StatusCode.PERMISSION_DENIED, role="allocate")
        line = run.error_line(1, "--server", server.target, "allocate", "orders")
        assert line == "PERMISSION_DENIED: PERMISSION_DENIED it is"
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.fail_next("AllocateRange", "QUOTA_EXCEEDED", code, retry_after=0.5)
        line = run.error_line(1, "--server", server.target, "allocate", "orders")
        assert line == "QUOTA_EXCEEDED: QUOTA_EXCEEDED it is (in 0.500 s)"


def test_bench_counts_calls_over_quota(run: SecretCommand, capsys: pytest.CaptureFixture[str]) -> None:
    """The bench reports calls over quota by status and exits with 1."""
    with serving() as server:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.fail_next("AllocateRange", "QUOTA_EXCEEDED", code, times=3, retry_after=0.1)
        assert cli.main(["--server", server.target, *BENCH]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["statusCodeDistribution"] == {"OK": 17, "ResourceExhausted": 3}


@pytest.fixture
def files(tmp_path: Path, certificates: Certificates, shown: Shown) -> Path:
    certificates.client("other")
    key = load_pem_private_key(shown.key.read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    contents = {"empty": b"", "words": b"two words", "bytes": b"\xff", "token": TOKEN.encode(), "encrypted": encrypted}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--ca F/none", "'--ca': cannot read F/none: No such file or directory"),
        ("--ca F", "'--ca': cannot read F: Is a directory"),
        ("--ca F/words", "'--ca': F/words has no certificates in PEM"),
        ("--ca F/empty", "'--ca': F/empty has no certificates in PEM"),
        ("--cert F/billing.pem", "'--key': must be given with cert"),
        ("--key F/billing.key", "'--cert': must be given with key"),
        ("--cert F/none --key F/billing.key", "'--cert': cannot read F/none: No such file"),
        ("--cert F/billing.pem --key F/none", "'--key': cannot read F/none: No such file"),
        ("--cert F/billing.key --key F/billing.key", "'--cert': F/billing.key has no certificate in PEM"),
        ("--cert F/billing.pem --key F/billing.pem", "'--key': F/billing.pem has no private key in PEM"),
        (
            "--cert F/billing.pem --key F/other.key",
            "'--key': F/other.key: is not the key of the certificate in F/billing.pem",
        ),
        (
            "--cert F/billing.pem --key F/encrypted",
            "'--key': F/encrypted: is encrypted; it must be without a passphrase",
        ),
        ("--token-file F/none", "'--token-file': cannot read F/none: No such file"),
        ("--token-file F/empty", "'--token-file': F/empty is empty"),
        ("--token-file F/words", "'--token-file': F/words must contain one token and nothing else"),
        ("--token-file F/bytes", "'--token-file': F/bytes is not text"),
        ("--server-name there", "'--server-name': requires TLS"),
        (
            "--server 192.0.2.7:1 --token-file F/token",
            "'--insecure': the token would be sent unencrypted to 192.0.2.7:1: use TLS",
        ),
    ],
)
def test_invalid_credential_file_exits_with_2(run: SecretCommand, files: Path, options: str, message: str) -> None:
    """An invalid credential option is one line that names the option and the file."""
    line = ["--server", "127.0.0.1:1", *options.replace("F", str(files)).split()]
    for command in (("health",), ("node", "show"), BENCH):
        assert message.replace("F", str(files)) in run.error_line(2, *line, *command)


def test_invalid_variable_is_named(run: SecretCommand, environment: pytest.MonkeyPatch) -> None:
    """An invalid environment variable is named, or its option."""
    environment.setenv("IDALLOC_TOKEN", "two words")
    assert "IDALLOC_TOKEN: must be ASCII" in run.error_line(2, "--server", "127.0.0.1:1", "node", "show")
    environment.setenv("IDALLOC_TLS", "perhaps")
    assert "'--tls'" in run.error_line(2, "node", "show")


def test_insecure_permits_token_without_tls(run: SecretCommand, environment: pytest.MonkeyPatch) -> None:
    """--insecure permits a token without TLS to another machine."""
    environment.setenv("IDALLOC_TOKEN", TOKEN)
    options = ("--server", "192.0.2.7:1", "--timeout", "100ms")
    assert run.error_line(1, *options, "--insecure", "node", "show").startswith(
        ("DEADLINE_EXCEEDED: ", "SERVER_UNREACHABLE: ")
    )
    environment.setenv("IDALLOC_TOKEN_INSECURE", "1")
    assert run.error_line(1, *options, "node", "show").startswith(("DEADLINE_EXCEEDED: ", "SERVER_UNREACHABLE: "))
    environment.delenv("IDALLOC_TOKEN_INSECURE")
    environment.setenv("IDALLOC_INSECURE", "1")  # the server's
    assert "'--insecure'" in run.error_line(2, *options, "node", "show")


def test_server_commands_ignore_client_variables(
    run: SecretCommand, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server's commands ignore the client's variables."""
    for name in ("TLS", "CA", "CERT", "KEY", "SERVER_NAME", "TOKEN", "TOKEN_FILE", "TOKEN_INSECURE"):
        environment.setenv(f"IDALLOC_{name}", "true" if name in ("TLS", "TOKEN_INSECURE") else "/nowhere")
    environment.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "50051" in run("config", "show")


def test_no_option_takes_a_token_value(run: SecretCommand) -> None:
    """No option takes a token, which the list of processes would show."""
    assert "No such option" in run.error_line(2, "--token", "x", "node", "show")
    help_text = run("--help")
    for option in ("--tls", "--ca", "--cert", "--key", "--server-name", "--token-file", "--insecure"):
        assert option in help_text


def test_traceback_hides_token() -> None:
    """A traceback in development mode does not contain the token."""
    with serving() as server:
        server.tokens = {"another"}
        script = "import sys; from idalloc.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", script, "--server", server.target, "node", "show"],
            env=os.environ | {"IDALLOC_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=50,
        )
    assert done.returncode == 1
    assert "Unauthenticated" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
