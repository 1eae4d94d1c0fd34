"""A real server that asks who calls: its file is read again while it runs, and nothing secret is in its log."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.support.certificates import issue
from tests.support.processes import IDALLOC, Server, environment, running, serve_command

# Each starts several processes, which take their time on a machine that does other things.
pytestmark = pytest.mark.timeout(180)

ADMIN = ["--allocate", "*", "--read", "*", "--admin", "*"]


def new_token(file: Path, name: str, *roles: str) -> str:
    """Makes a token as people do, and adds its entry to the file."""
    made = subprocess.run([IDALLOC, "token", "new", name, *roles], capture_output=True, text=True, check=True)
    other = file.with_suffix(".new")
    other.write_text((file.read_text() if file.exists() else "") + made.stderr)
    other.replace(file)
    return made.stdout.strip()


def ask(server: Server, token: str, sequence: str = "orders") -> grpc.StatusCode:
    """Allocates on a connection of its own."""
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        try:
            stub.AllocateRange(pb.AllocateRangeRequest(sequence=sequence), metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def lines(server: Server, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.log.read_text().splitlines()]
    return [line for line in found if line["event"] == event]


@pytest.mark.parametrize(("transport", "workers"), [("grpcio", 1), ("native", 2)])
def test_a_running_server_follows_its_file(tmp_path: Path, transport: str, workers: int) -> None:
    file = tmp_path / "access.toml"
    old = new_token(file, "old", "--allocate", "orders*")
    settings = {"access": file, "transport": transport, "workers": workers, "log_level": "error"}
    with running(tmp_path, **settings) as server:
        assert ask(server, old) == grpc.StatusCode.OK
        assert ask(server, old, "customers") == grpc.StatusCode.PERMISSION_DENIED
        assert ask(server, "") == grpc.StatusCode.UNAUTHENTICATED
        file.write_text("[[identity]]\n" + file.read_text())
        until(lambda: len(lines(server, "access_not_reloaded")) == workers)
        assert ask(server, old) == grpc.StatusCode.OK
        file.unlink()
        new = new_token(file, "new", "--allocate", "*")
        # Each process reads it by itself, and each connection is one process's.
        for _ in range(4 * workers):
            until(lambda: ask(server, new) == grpc.StatusCode.OK and ask(server, old) != grpc.StatusCode.OK)
        assert server.stop() == 0
        log = server.log.read_text()
    assert new not in log
    assert old not in log
    # The audit does not depend on log_level.
    reasons = {line["reason"] for line in lines(server, "audit") if "reason" in line}
    assert {"PERMISSION_DENIED", "UNAUTHENTICATED"} <= reasons


def test_nothing_that_a_caller_shows_is_in_the_log(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    right = new_token(file, "boss", *ADMIN)
    planted = "idalloc_planted-secret-0123456789"
    with running(tmp_path, access=file, log_level="debug") as server:
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            for value in (f"Bearer {planted}", planted, f"Basic {planted}", f"Bearer {planted} {planted}"):
                with pytest.raises(grpc.RpcError) as failed:
                    stub.AllocateRange(
                        pb.AllocateRangeRequest(sequence="a"), metadata=(("authorization", value),), timeout=20
                    )
                assert planted not in str(failed.value)
        assert ask(server, right) == grpc.StatusCode.OK
        assert server.stop() == 0
        log = server.log.read_text()
    assert lines(server, "audit")
    assert "planted-secret" not in log
    assert right not in log
    assert right.removeprefix("idalloc_")[:20] not in log


def test_a_client_certificate_says_who_calls(tmp_path: Path) -> None:
    authority, files = trustme.CA(), {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    write_certificate(authority, x509.IPAddress(ip_address("127.0.0.1")), files["cert"], files["key"])
    access = tmp_path / "access.toml"
    access.write_text(
        "[[identity]]\nname = 'billing'\nallocate = ['invoices*']\n"
        "certificate = ['dns:billing.example.org', 'uri:spiffe://example.org/billing']\n"
    )
    secured = {"tls_cert": files["cert"], "tls_key": files["key"], "tls_client_ca": files["ca"]}
    with running(tmp_path, access=access, **secured) as server:

        def allocate(name: x509.GeneralName) -> str:
            """Allocates by the command, with a certificate of this name; returns what it said."""
            cert, key = tmp_path / "client.pem", tmp_path / "client.key"
            write_certificate(authority, name, cert, key)
            shown = ["--ca", files["ca"], "--cert", cert, "--key", key, "--server", server.address]
            command = [IDALLOC, *map(str, shown), "allocate", "invoices"]
            done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=40)
            assert (done.returncode == 0) == bool(done.stdout)
            return done.stdout or done.stderr

        assert allocate(x509.DNSName("billing.example.org")) == "1\n"
        assert allocate(x509.UniformResourceIdentifier("spiffe://example.org/billing")) == "2\n"
        assert allocate(x509.UniformResourceIdentifier("spiffe://example.org/orders")).startswith("UNAUTHENTICATED: ")


def write_certificate(authority: trustme.CA, name: x509.GeneralName, cert: Path, key: Path) -> None:
    """Writes a certificate of this one name, and its key."""
    issued = issue(authority, name)
    cert.write_bytes(issued.cert)
    key.write_bytes(issued.key)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_is_wrong_refuses_the_start(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "access.toml"
    file.write_text("[[identity]]\nname = 'x'\ntoken_sha256 = ['idalloc_planted-secret']\n")
    command = serve_command(access=file, store=f"sqlite://{tmp_path}/ids.db", workers=workers)
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=40)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        f"idalloc: access: {file}: [[identity]] number 1 ('x'): token_sha256: number 1: must"
    )
    assert "planted-secret" not in ended.stderr
    assert not (tmp_path / "ids.db").exists()


def test_a_worker_that_is_replaced_asks_too_when_the_file_names_nobody_any_more(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    token = new_token(file, "old", "--allocate", "*")
    with running(tmp_path, access=file, workers=2) as server:
        assert ask(server, token) == grpc.StatusCode.OK
        file.write_text("[[quota]]\nsequence = '*'\ncalls_per_second = 1000\n")
        until(lambda: len(lines(server, "access_reloaded")) == 2)
        [first, *_] = lines(server, "worker_started")
        subprocess.run(["kill", "-KILL", str(first["pid"])], check=True)
        until(lambda: len(lines(server, "worker_started")) == 3)
        for _ in range(8):
            assert ask(server, token) == grpc.StatusCode.UNAUTHENTICATED
            assert ask(server, "") == grpc.StatusCode.UNAUTHENTICATED
        assert server.stop() == 0
