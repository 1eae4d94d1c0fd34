"""Clients configured by environment variables."""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import idalloc
import idalloc.aio
from tests.support.certificates import Certificates
from tests.support.fake_server import FakeServer, serving
from tests.unit.client.clients import KINDS, blocking

TOKEN = "idalloc_planted-secret-0123456789"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SERVER", "TLS", "CA", "CERT", "KEY", "SERVER_NAME", "TOKEN", "TOKEN_FILE", "TOKEN_INSECURE"):
        monkeypatch.delenv(f"IDALLOC_{name}", raising=False)
    return monkeypatch


async def test_from_environment_configures_tls_and_token(
    certificates: Certificates, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """from_environment() of both clients reads target, certificates and token."""
    assert idalloc.Client.from_environment().target == "127.0.0.1:50051"
    shown = certificates.client("billing")
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(credentials=certificates.server("idalloc.example", of_clients=certificates.authority)) as server:
        server.tokens = {TOKEN}
        for name, value in {
            "SERVER": server.target,
            "CA": certificates.ca,
            "CERT": shown.cert,
            "KEY": shown.key,
            "SERVER_NAME": "idalloc.example",
            "TOKEN_FILE": file,
        }.items():
            environment.setenv(f"IDALLOC_{name}", str(value))
        with idalloc.Client.from_environment() as client:
            assert client.node().prefix == 7
        environment.delenv("IDALLOC_TOKEN_FILE")
        environment.setenv("IDALLOC_TOKEN", TOKEN)
        async with idalloc.aio.Client.from_environment(timeout=9) as other:
            assert other.timeout == 9
            assert (await other.node()).prefix == 7


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CA": "/nowhere/ca.pem"}, "IDALLOC_CA: cannot read /nowhere/ca.pem: No such file"),
        ({"CERT": "/nowhere/cert.pem"}, "IDALLOC_KEY: must be given with cert"),
        ({"TOKEN_FILE": "/nowhere/token"}, "IDALLOC_TOKEN_FILE: cannot read /nowhere/token: No such file"),
        ({"TOKEN": TOKEN, "TOKEN_FILE": "x"}, "IDALLOC_TOKEN_FILE: cannot be combined with token"),
        ({"TOKEN": "two words"}, "IDALLOC_TOKEN: must be ASCII"),
        ({"TOKEN": TOKEN, "SERVER": "192.0.2.7:1"}, "IDALLOC_TOKEN_INSECURE: the token would be sent unencrypted"),
        ({"TLS": "perhaps"}, "IDALLOC_TLS: must be true or false"),
    ],
)
def test_an_invalid_variable_is_named(environment: pytest.MonkeyPatch, variables: dict[str, str], message: str) -> None:
    """An invalid variable raises ValueError, which names it and does not contain the token."""
    for name, value in variables.items():
        environment.setenv(f"IDALLOC_{name}", value)
    with pytest.raises(ValueError, match=message) as caught:
        idalloc.Client.from_environment()
    assert TOKEN not in str(caught.value)
    environment.setenv("IDALLOC_TOKEN_INSECURE", "yes")
    if "SERVER" in variables:
        idalloc.Client.from_environment()


def test_idalloc_default_uses_the_environment(server: FakeServer, environment: pytest.MonkeyPatch) -> None:
    """idalloc_default without a client connects as the environment configures."""
    from idalloc.ext import sqlalchemy as ext

    environment.setattr(ext, "_clients", {})
    environment.setenv("IDALLOC_SERVER", server.target)
    environment.setenv("IDALLOC_TOKEN", TOKEN)
    server.tokens = {TOKEN}
    assert ext.idalloc_default("orders")() == 1
    ext._clients[server.target].close()


def test_a_changed_token_file_is_read_again(
    kind: str, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rotation of its token a client goes on, and makes the rejected call again."""
    file = tmp_path / "token"
    monkeypatch.setenv("IDALLOC_SERVER", server.target)
    monkeypatch.setenv("IDALLOC_TOKEN_FILE", str(file))
    rotate(server, file, "first")
    with blocking(KINDS[kind].from_environment()) as client:
        for token in ("first", "second", "the-third"):
            for call in (partial(client.allocate_range, "orders", idempotent=True), client.doc_ids, client.node):
                rotate(server, file, token)
                call()
    assert {"Bearer first", "Bearer second", "Bearer the-third"} <= set(chain(*server.authorizations.values()))


def rotate(server: FakeServer, file: Path, token: str) -> None:
    file.write_text(token)
    server.tokens = {token}


def test_changed_certificates_are_for_new_calls(server: FakeServer, tmp_path: Path, monkeypatch: Any) -> None:
    """After a change of the CA file new calls have a new connection; an open stream goes on."""
    authority = tmp_path / "ca.pem"
    monkeypatch.setenv("IDALLOC_CA", str(authority))
    monkeypatch.setattr(grpc, "secure_channel", lambda target, _, options: grpc.insecure_channel(target, options))
    trustme.CA().cert_pem.write_to_path(str(authority))
    monkeypatch.setenv("IDALLOC_SERVER", server.target)
    with idalloc.Client.from_environment() as client:
        stream = client.stream_ranges("orders", 6, 2)
        taken = [*next(stream)]
        before = client._connection.stubs().channel
        trustme.CA(key_type=trustme.KeyType.RSA).cert_pem.write_to_path(str(authority))
        assert client._read_changed_files(at_once=True)
        client.node()
        assert client._connection.stubs().channel is not before
        taken += [each for ids in stream for each in ids]
        assert sorted(taken) == [1, 2, 3, 4, 5, 6]
