"""Authentication by tokens and client certificates on a real server; it reloads the access file."""

from __future__ import annotations

import subprocess
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
from tests.support.processes import IDALLOC, Server, environment, running, serve_command, start_error
from tests.support.server_calls import log_events, wait_until

# Each test starts several processes, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(180)

ADMIN = ["--allocate", "*", "--read", "*", "--admin", "*"]


def new_token(file: Path, name: str, *roles: str) -> str:
    """Create a token by the command line, and add its entry to the access file."""
    made = subprocess.run([IDALLOC, "token", "new", name, *roles], capture_output=True, text=True, check=True)
    other = file.with_suffix(".new")
    other.write_text((file.read_text() if file.exists() else "") + made.stderr)
    other.replace(file)
    return made.stdout.strip()


def allocate_status(server: Server, token: str, sequence: str = "orders") -> grpc.StatusCode:
    """Allocate an id on a new connection, and return the status."""
    with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        try:
            stub.AllocateRange(pb.AllocateRangeRequest(sequence=sequence), metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("transport", "workers"), [("grpcio", 1), pytest.param("native", 2, marks=pytest.mark.test_long)]
)
def test_a_running_server_follows_its_access_file(tmp_path: Path, transport: str, workers: int) -> None:
    """Tokens added to and removed from the access file take effect while the server runs."""
    file = tmp_path / "access.toml"
    old = new_token(file, "old", "--allocate", "orders*")
    settings = {"access_file": file, "transport": transport, "workers": workers, "log_level": "error"}
    with running(tmp_path, **settings) as server:
        assert allocate_status(server, old) == grpc.StatusCode.OK
        assert allocate_status(server, old, "customers") == grpc.StatusCode.PERMISSION_DENIED
        assert allocate_status(server, "") == grpc.StatusCode.UNAUTHENTICATED
        file.write_text("[[identity]]\n" + file.read_text())
        wait_until(lambda: len(log_events(server, "access_not_reloaded")) == workers, seconds=60)
        assert allocate_status(server, old) == grpc.StatusCode.OK
        file.unlink()
        new = new_token(file, "new", "--allocate", "*")
        # Each process reloads the file by itself, and a connection belongs to one process.
        for _ in range(4 * workers):
            wait_until(
                lambda: (
                    allocate_status(server, new) == grpc.StatusCode.OK
                    and allocate_status(server, old) != grpc.StatusCode.OK
                ),
                seconds=60,
            )
        assert server.stop() == 0
        log = server.log.read_text()
    assert new not in log
    assert old not in log
    # The audit does not depend on log_level.
    reasons = {line["reason"] for line in log_events(server, "audit") if "reason" in line}
    assert {"PERMISSION_DENIED", "UNAUTHENTICATED"} <= reasons


@pytest.mark.test_long
def test_near_names_are_those_that_the_caller_may_list(tmp_path: Path) -> None:
    """A mistyped name gets near ones on which the caller has the role read; without it, none."""
    file = tmp_path / "access.toml"
    reader = new_token(file, "reader", "--allocate", "*", "--read", "orders-a", "--read", "ordres")
    writer = new_token(file, "writer", "--allocate", "*")
    admin = new_token(file, "admin", *ADMIN)
    with running(tmp_path, access_file=file, auto_create_sequences="false") as server:

        def idalloc(token: str, *command: str) -> str:
            env = environment(server=server.address, token=token)
            return subprocess.run([IDALLOC, *command], capture_output=True, text=True, env=env, timeout=50).stderr

        for name in ("orders-a", "orders-b"):
            assert idalloc(admin, "sequences", "create", name) == ""
        missing = "sequence 'ordres-a' does not exist, and auto_create_sequences is off: create it first"
        message = f"SEQUENCE_NOT_FOUND: {missing}"
        assert idalloc(reader, "allocate", "ordres-a") == f"{message}; near names are 'orders-a'\n"
        assert idalloc(writer, "allocate", "ordres-a") == f"{message}\n"


def test_credentials_are_not_logged(tmp_path: Path) -> None:
    """No credential that a caller sends is in the log or in an error."""
    file = tmp_path / "access.toml"
    right = new_token(file, "boss", *ADMIN)
    planted = "idalloc_planted-secret-0123456789"
    with running(tmp_path, access_file=file, log_level="debug") as server:
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
            for value in (f"Bearer {planted}", planted, f"Basic {planted}", f"Bearer {planted} {planted}"):
                with pytest.raises(grpc.RpcError) as failed:
                    stub.AllocateRange(
                        pb.AllocateRangeRequest(sequence="a"), metadata=(("authorization", value),), timeout=20
                    )
                assert planted not in str(failed.value)
        assert allocate_status(server, right) == grpc.StatusCode.OK
        assert server.stop() == 0
        log = server.log.read_text()
    assert log_events(server, "audit")
    assert "planted-secret" not in log
    assert right not in log
    assert right.removeprefix("idalloc_")[:20] not in log


@pytest.mark.test_long
def test_a_client_certificate_authenticates_its_identity(tmp_path: Path) -> None:
    """A client certificate authenticates as the identity that lists its name."""
    authority, files = trustme.CA(), {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    write_certificate(authority, x509.IPAddress(ip_address("127.0.0.1")), files["cert"], files["key"])
    access = tmp_path / "access.toml"
    access.write_text(
        "[[identity]]\nname = 'billing'\nallocate = ['invoices*']\n"
        "certificate = ['dns:billing.example.org', 'uri:spiffe://example.org/billing']\n"
    )
    secured = {"tls_cert": files["cert"], "tls_key": files["key"], "tls_client_ca": files["ca"]}
    with running(tmp_path, access_file=access, **secured) as server:

        def allocate(name: x509.GeneralName) -> str:
            """Allocate by the command line with a certificate of this name; return its output."""
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
    """Write a certificate with this name, and its key."""
    issued = issue(authority, name)
    cert.write_bytes(issued.cert)
    key.write_bytes(issued.key)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_invalid_access_file_is_refused_at_startup(tmp_path: Path, workers: int) -> None:
    """An invalid access file is fatal at startup; the error names the entry and hides its value."""
    file = tmp_path / "access.toml"
    file.write_text("[[identity]]\nname = 'x'\ntoken_sha256 = ['idalloc_planted-secret']\n")
    command = serve_command(access_file=file, store=f"sqlite://{tmp_path}/ids.db", workers=workers)
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=40)
    assert ended.returncode == 2
    error = start_error(ended.stderr)
    assert error.startswith(f"access_file: {file}: [[identity]] number 1 ('x'): token_sha256: number 1: must")
    assert "planted-secret" not in ended.stderr
    assert not (tmp_path / "ids.db").exists()


@pytest.mark.test_long
def test_a_replaced_worker_authenticates_if_the_old_one_did(tmp_path: Path) -> None:
    """A replacement worker requires authentication, also if the file has lost its identities."""
    file = tmp_path / "access.toml"
    token = new_token(file, "old", "--allocate", "*")
    with running(tmp_path, access_file=file, workers=2) as server:
        assert allocate_status(server, token) == grpc.StatusCode.OK
        file.write_text("[[quota]]\nsequence = '*'\ncalls_per_second = 1000\n")
        wait_until(lambda: len(log_events(server, "access_reloaded")) == 2, seconds=60)
        [first, *_] = log_events(server, "worker_started")
        subprocess.run(["kill", "-KILL", str(first["pid"])], check=True)
        wait_until(lambda: len(log_events(server, "worker_started")) == 3, seconds=60)
        for _ in range(8):
            assert allocate_status(server, token) == grpc.StatusCode.UNAUTHENTICATED
            assert allocate_status(server, "") == grpc.StatusCode.UNAUTHENTICATED
        assert server.stop() == 0
