"""The command over TLS, and with tokens and certificates: what it takes, and what it says where that is wrong."""

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
from tests.support.fake_server import FakeServer, serving

TOKEN = "idalloc_planted-secret-0123456789"
BEARER = f"Bearer {TOKEN}"
BENCH = ("bench", "--total", "20", "--concurrency", "4", "--warm-up", "0s", "--json")


@pytest.fixture(autouse=True)
def environment(clean_environment: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return clean_environment


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.fixture
def shown(certificates: Certificates) -> Shown:
    return certificates.client("billing")


@pytest.fixture
def server(certificates: Certificates) -> Iterator[FakeServer]:
    """Speaks TLS, wants a certificate and a token."""
    with serving(credentials=certificates.server(of_clients=certificates.authority)) as server:
        server.tokens = {TOKEN}
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> str:
        code = cli.main([*map(str, args)])
        out, err = self._capsys.readouterr()
        assert (code, err) == (0, "")
        return out

    def fails(self, code: int, *args: object) -> str:
        assert cli.main([*map(str, args)]) == code
        out, err = self._capsys.readouterr()
        assert out == ""
        assert TOKEN not in err
        [line] = err.splitlines()
        return line


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def test_options_before_the_verb(
    server: FakeServer, run: Run, certificates: Certificates, shown: Shown, token_file: Path
) -> None:
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
    assert run(*options, "sequences", "create", "made")
    assert run(*options, "sequences", "list")
    assert run(*options, "parse", "orders", "T-1")
    for scenario in ("unary", "mixed"):
        report = json.loads(run(*options, *BENCH, scenario))
        assert report["statusCodeDistribution"] == {"OK": 20}
    rpcs = {"Check", "AllocateRange", "StreamRanges", "GenerateDocId", "UpdateNode", "ListSequences", "StreamDocIds"}
    assert rpcs < server.authorizations.keys()
    assert {each for calls in server.authorizations.values() for each in calls} == {BEARER}


@pytest.mark.parametrize("verb", [("health",), ("node",), BENCH], ids=["health", "node", "bench"])
def test_the_environment(
    server: FakeServer,
    run: Run,
    certificates: Certificates,
    shown: Shown,
    environment: pytest.MonkeyPatch,
    verb: tuple[str, ...],
) -> None:
    environment.setenv("IDALLOC_SERVER", server.target)
    environment.setenv("IDALLOC_CA", str(certificates.ca))
    environment.setenv("IDALLOC_CERT", str(shown.cert))
    environment.setenv("IDALLOC_KEY", str(shown.key))
    environment.setenv("IDALLOC_TOKEN", TOKEN)
    assert run(*verb)


def test_the_systems_authorities(
    certificates: Certificates, run: Run, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.delenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", raising=False)
    environment.setenv("SSL_CERT_FILE", str(certificates.ca))
    with serving(credentials=certificates.server()) as server:
        assert run("--tls", "--server", server.target, "health") == "SERVING\n"
        environment.setenv("IDALLOC_TLS", "true")
        assert run("--server", server.target, "node")
        elsewhere = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(elsewhere))
        line = run.fails(1, "--ca", elsewhere, "--server", server.target, "node")  # nothing but these
        assert "is signed by an untrusted CA" in line


def test_what_is_said_on_the_line_goes_before_the_environment(
    run: Run, environment: pytest.MonkeyPatch, token_file: Path, tmp_path: Path
) -> None:
    environment.setenv("IDALLOC_TOKEN", "another")
    with serving() as server:
        environment.setenv("IDALLOC_SERVER", server.target)
        run("--token-file", token_file, "node")
        run("node")
        assert server.authorizations["GetNode"] == [BEARER, "Bearer another"]
        environment.setenv("IDALLOC_TOKEN_FILE", str(token_file))
        assert "'--token-file': cannot be combined with token" in run.fails(2, "node")
        run("--token-file", token_file, "node")
        environment.delenv("IDALLOC_TOKEN")
        run("node")
        assert server.authorizations["GetNode"][2:] == [BEARER] * 2


def test_a_server_that_cannot_be_talked_to_is_told_in_one_line(
    certificates: Certificates, run: Run, shown: Shown, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))

    def told(server: FakeServer, *options: object) -> str:
        lines = {run.fails(1, *options, "--server", server.target, *verb) for verb in (("health",), ("node",))}
        lines |= {run.fails(1, *options, "--timeout", "500ms", "--server", server.target, *BENCH)}
        [kind] = {line.partition(" (")[0] for line in lines}
        assert kind.startswith(f"SERVER_UNREACHABLE: no answer from {server.target}: ")
        [hint] = {line.rpartition("; ")[2] for line in lines}
        return f"{kind.partition(': no answer from ')[2].partition(': ')[2]}; {hint}"

    with serving(credentials=certificates.server()) as server:
        untrusted = "the server's certificate is signed by an untrusted CA; --ca names the file of its authority"
        assert told(server, "--ca", other) == untrusted
        closed = "the server closed the connection; it may require TLS or another client certificate; "
        assert told(server) == closed + "--tls or --ca is for the one, --cert and --key are for the other"
    with serving(credentials=certificates.server("idalloc.example.org")) as server:
        name = "the server's certificate is not valid for the target's name; "
        assert told(server, "--ca", certificates.ca) == name + "--server-name says which name it has to be"
        assert run("--ca", certificates.ca, "--server-name", "idalloc.example.org", "--server", server.target, "health")
    with serving() as server:
        assert (
            told(server, "--ca", certificates.ca)
            == "the server does not use TLS; call it without --tls, --ca and --cert"
        )
    with serving(credentials=certificates.server(of_clients=certificates.authority)) as server:
        assert told(server, "--ca", certificates.ca).startswith("the server closed the connection")
        assert run("--ca", certificates.ca, "--cert", shown.cert, "--key", shown.key, "--server", server.target, "node")


def test_a_token_that_is_refused_is_told_in_one_line(run: Run, token_file: Path) -> None:
    with serving() as server:
        server.tokens = {"another"}
        for verb in (("health",), ("node",), ("stream", "orders", "--total", "3"), BENCH):
            line = run.fails(1, "--token-file", token_file, "--server", server.target, *verb)
            assert line.startswith("UNAUTHENTICATED: UNAUTHENTICATED it is")
            assert line.endswith("; --token-file or --cert say who this is")


def test_what_is_not_allowed_and_what_is_too_much(run: Run) -> None:
    with serving() as server:
        server.fail_next("AllocateRange", "PERMISSION_DENIED", grpc.StatusCode.PERMISSION_DENIED, role="allocate")
        line = run.fails(1, "--server", server.target, "allocate", "orders")
        assert line == "PERMISSION_DENIED: PERMISSION_DENIED it is"
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.fail_next("AllocateRange", "QUOTA_EXCEEDED", code, retry_after=0.5)
        line = run.fails(1, "--server", server.target, "allocate", "orders")
        assert line == "QUOTA_EXCEEDED: QUOTA_EXCEEDED it is"


def test_the_bench_counts_what_a_quota_refuses(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.fail_next("AllocateRange", "QUOTA_EXCEEDED", code, times=3, retry_after=0.1)
        assert cli.main(["--server", server.target, *BENCH]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["statusCodeDistribution"] == {"OK": 17, "ResourceExhausted": 3}


@pytest.fixture
def files(tmp_path: Path, certificates: Certificates, shown: Shown) -> Path:
    certificates.client("stranger")
    key = load_pem_private_key(shown.key.read_bytes(), None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    contents = {"empty": b"", "words": b"two words", "bytes": b"\xff", "token": TOKEN.encode(), "locked": encrypted}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "told"),
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
            "--cert F/billing.pem --key F/stranger.key",
            "'--key': F/stranger.key: is not the key of the certificate in F/billing.pem",
        ),
        ("--cert F/billing.pem --key F/locked", "'--key': F/locked: is encrypted; it must be without a passphrase"),
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
def test_a_wrong_file_is_one_line_and_2(run: Run, files: Path, options: str, told: str) -> None:
    line = ["--server", "127.0.0.1:1", *options.replace("F", str(files)).split()]
    for verb in (("health",), ("node",), BENCH):
        assert told.replace("F", str(files)) in run.fails(2, *line, *verb)


def test_a_wrong_variable_is_told_as_its_option(run: Run, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("IDALLOC_TOKEN", "two words")
    assert "IDALLOC_TOKEN: must be ASCII" in run.fails(2, "--server", "127.0.0.1:1", "node")
    environment.setenv("IDALLOC_TLS", "perhaps")
    assert "'--tls'" in run.fails(2, "node")


def test_insecure_says_that_it_is_meant(run: Run, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("IDALLOC_TOKEN", TOKEN)
    nobody = ("--server", "192.0.2.7:1", "--timeout", "100ms")
    assert run.fails(1, *nobody, "--insecure", "node").startswith(("DEADLINE_EXCEEDED: ", "SERVER_UNREACHABLE: "))
    environment.setenv("IDALLOC_TOKEN_INSECURE", "1")
    assert run.fails(1, *nobody, "node").startswith(("DEADLINE_EXCEEDED: ", "SERVER_UNREACHABLE: "))
    environment.delenv("IDALLOC_TOKEN_INSECURE")
    environment.setenv("IDALLOC_INSECURE", "1")  # the server's
    assert "'--insecure'" in run.fails(2, *nobody, "node")


def test_the_servers_verbs_do_not_mind_the_clients_variables(
    run: Run, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("TLS", "CA", "CERT", "KEY", "SERVER_NAME", "TOKEN", "TOKEN_FILE", "TOKEN_INSECURE"):
        environment.setenv(f"IDALLOC_{name}", "true" if name in ("TLS", "TOKEN_INSECURE") else "/nowhere")
    environment.setenv("XDG_STATE_HOME", str(tmp_path))
    assert "50051" in run("config", "show")


def test_no_option_takes_a_token_itself(run: Run) -> None:
    assert "No such option" in run.fails(2, "--token", "x", "node")
    help_text = run("--help")
    for option in ("--tls", "--ca", "--cert", "--key", "--server-name", "--token-file", "--insecure"):
        assert option in help_text


def test_a_traceback_does_not_show_it() -> None:
    with serving() as server:
        server.tokens = {"another"}
        script = "import sys; from idalloc.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", script, "--server", server.target, "node"],
            env=os.environ | {"IDALLOC_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            timeout=50,
        )
    assert done.returncode == 1
    assert "Unauthenticated" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
