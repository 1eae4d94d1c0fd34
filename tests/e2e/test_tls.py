"""TLS of a real server: authorized clients, refused settings, and certificates replaced live."""

import json
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

import idalloc
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import id_allocator_pb2_grpc
from tests.support.processes import Server, environment, running, serve_command, start_error
from tests.support.server_calls import wait_until

pytestmark = pytest.mark.test_long


class Files:
    """The files of a server's certificate, its key and the client CA."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()  # of the server's certificate
        self.cert, self.key, self.client_ca = folder / "server.pem", folder / "server.key", folder / "clients.pem"
        self.write()

    @property
    def flags(self) -> dict[str, object]:
        return {"tls_cert": self.cert, "tls_key": self.key}

    def write(self) -> str:
        """Write a new certificate and its key, and return its serial number."""
        leaf = self.authority.issue_cert("127.0.0.1", "localhost")
        leaf.private_key_pem.write_to_path(str(self.key))
        self.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        found: str = ssl._ssl._test_decode_cert(str(self.cert))["serialNumber"]  # type: ignore[attr-defined]
        return found

    def trust(self, client: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
        """Return credentials of a client that trusts the CA; ``client`` is its certificate."""
        root = self.authority.cert_pem.bytes()
        if client is None:
            return grpc.ssl_channel_credentials(root)
        chain = b"".join(blob.bytes() for blob in client.cert_chain_pems)
        return grpc.ssl_channel_credentials(root, client.private_key_pem.bytes(), chain)

    def shown(self, server: Server, oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> tuple[str, str | None]:
        """Return the server certificate's serial number, and the connection's TLS version."""
        context = ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())
        context.minimum_version = context.maximum_version = oldest
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # OpenSSL offers TLS 1.1 only at this level
        context.set_alpn_protocols(["h2"])
        host, _, port = server.address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as connection,
            context.wrap_socket(connection, server_hostname="localhost") as secured,
        ):
            certificate = secured.getpeercert()
            assert certificate
            return str(certificate["serialNumber"]), secured.version()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def refused(**settings: object) -> str:
    """Start a server that must refuse to start, and return its error."""
    done = subprocess.run(serve_command(**settings), capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return start_error(done.stderr)


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_without_tls_or_the_ca_are_rejected(tmp_path: Path, files: Files, workers: int) -> None:
    """A TLS server serves clients that trust its CA, and no client without TLS."""
    with running(tmp_path, **files.flags, workers=workers) as server:
        with idalloc.Client(server.address, credentials=files.trust()) as client:
            assert client.allocate_range("orders", 3).ids == range(1, 4)
        with idalloc.Client(server.address, timeout=2) as client, pytest.raises(idalloc.ServerUnreachable):
            client.allocate_range("orders")
        stranger = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
        with (
            idalloc.Client(server.address, credentials=stranger, timeout=2) as client,
            pytest.raises(idalloc.ServerUnreachable),
        ):
            client.allocate_range("orders")


def test_tls_1_1_is_refused(tmp_path: Path, files: Files) -> None:
    """TLS 1.2 and 1.3 are accepted, TLS 1.1 is refused."""
    with running(tmp_path, **files.flags) as server:
        assert files.shown(server, ssl.TLSVersion.TLSv1_2)[1] == "TLSv1.2"
        assert files.shown(server, ssl.TLSVersion.TLSv1_3)[1] == "TLSv1.3"
        with (
            pytest.raises(ssl.SSLError, match=r"(?i)alert|version|eof"),
            pytest.warns(DeprecationWarning, match="TLSv1_1"),
        ):
            files.shown(server, ssl.TLSVersion.TLSv1_1)


def test_clients_without_a_certificate_of_the_ca_are_rejected(tmp_path: Path, files: Files) -> None:
    """With tls_client_ca, a client without a certificate of that CA is rejected."""
    people = trustme.CA()
    people.cert_pem.write_to_path(str(files.client_ca))
    with running(tmp_path, **files.flags, tls_client_ca=files.client_ca) as server:
        known, unknown = people.issue_cert("billing.example.org"), trustme.CA().issue_cert("billing.example.org")
        with idalloc.Client(server.address, credentials=files.trust(known)) as client:
            assert client.allocate_range("orders").ids == range(1, 2)
        for shown in (None, unknown):
            with (
                idalloc.Client(server.address, credentials=files.trust(shown), timeout=2) as client,
                pytest.raises(idalloc.ServerUnreachable),
            ):
                client.allocate_range("orders")


def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path, files: Files) -> None:
    """A renewed server certificate is used for new connections; open ones stay."""
    with running(tmp_path, **files.flags) as server:
        with idalloc.Client(server.address, credentials=files.trust()) as client:
            client.allocate_range("orders")
            before, _ = files.shown(server)
            written = files.write()
            assert written != before
            wait_until(lambda: files.shown(server)[0] == written, "the new certificate is shown")
            assert client.allocate_range("orders")  # on the open connection
        assert "certificates_reloaded" in server.log.read_text()


def test_a_new_client_ca_applies_to_new_connections(tmp_path: Path, files: Files) -> None:
    """A replaced tls_client_ca applies to new connections; open ones stay."""
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(str(files.client_ca))
    of_old, of_new = (files.trust(each.issue_cert("billing.example.org")) for each in (old, new))
    with running(tmp_path, **files.flags, tls_client_ca=files.client_ca) as server:
        with idalloc.Client(server.address, credentials=of_old) as client:
            assert client.allocate_range("orders").ids == range(1, 2)
            assert is_accepted(server, of_old)
            assert not is_accepted(server, of_new)
            new.cert_pem.write_to_path(str(files.client_ca))
            wait_until(lambda: is_accepted(server, of_new), "a client of the new authority is accepted")
            assert not is_accepted(server, of_old)
            assert client.allocate_range("orders")  # on the open connection
        assert "certificates_reloaded" in server.log.read_text()


def is_accepted(server: Server, credentials: grpc.ChannelCredentials) -> bool:
    """Whether a client can allocate on a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(server.address, credentials, options) as channel:
        stub: Any = id_allocator_pb2_grpc.IdAllocatorServiceStub(channel)
        try:
            stub.AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20)
        except grpc.RpcError as failed:
            error: Any = failed
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
            return False
        return True


def test_a_certificate_that_does_not_match_its_key_is_ignored(tmp_path: Path, files: Files) -> None:
    """A certificate that does not match its key is logged, and the previous one stays active."""
    with running(tmp_path, **files.flags) as server:
        before, _ = files.shown(server)
        files.key.write_bytes(trustme.CA().issue_cert("other").private_key_pem.bytes())
        for _ in range(3):
            assert files.shown(server)[0] == before
        files.cert.unlink()
        for _ in range(3):
            assert files.shown(server)[0] == before
        output = server.log.read_text()
        assert output.count("certificates_not_reloaded") == 2  # once for each change
        assert "key values mismatch" in output
        assert "No such file" in output
        written = files.write()
        wait_until(lambda: files.shown(server)[0] == written, "the new certificate is shown")


def test_unusable_tls_files_are_refused_at_startup(tmp_path: Path, files: Files) -> None:
    """Missing, unreadable or mismatching TLS files are fatal at startup."""
    store = f"sqlite://{tmp_path}/ids.db"
    other = tmp_path / "other.key"
    other.write_bytes(trustme.CA().issue_cert("other").private_key_pem.bytes())
    text = tmp_path / "text"
    text.write_text("no certificate")
    output = refused(store=store, tls_cert=files.cert, tls_key=other)
    assert "tls_cert" in output
    assert "key values mismatch" in output
    assert "tls_key" in refused(store=store, tls_cert=files.cert)
    assert "tls_cert" in refused(store=store, tls_key=files.key)
    assert "cannot read" in refused(store=store, tls_cert=files.cert, tls_key=tmp_path / "missing")
    assert "tls_client_ca" in refused(store=store, **files.flags, tls_client_ca=text)
    assert "tls-client-ca" in refused(store=store, tls_client_ca=files.cert)
    assert not (tmp_path / "ids.db").exists()


def test_native_refuses_tls_and_max_connection_age(tmp_path: Path, files: Files) -> None:
    """The native transport refuses TLS and max_connection_age at startup."""
    pytest.importorskip("pygrpc_native")
    store = f"sqlite://{tmp_path}/ids.db"
    output = refused(store=store, transport="native", **files.flags)
    assert "tls_cert" in output
    assert "grpcio" in output
    assert "max_connection_age" in refused(store=store, transport="native", max_connection_age="1h")


class TestNonLoopbackAddresses:
    @pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
    def test_plaintext_without_access_is_refused(self, tmp_path: Path, listen: str) -> None:
        """A reachable address without authentication and TLS is refused unless insecure."""
        output = refused(store=f"sqlite://{tmp_path}/ids.db", listen=listen)
        assert "access_file" in output
        assert "insecure" in output

    def test_tls_without_access_is_refused(self, tmp_path: Path, files: Files) -> None:
        """A reachable address with TLS but without authentication is refused."""
        output = refused(store=f"sqlite://{tmp_path}/ids.db", listen="0.0.0.0:0", **files.flags)
        assert "set access_file, listen" in output

    def test_tokens_without_tls_are_refused(self, tmp_path: Path) -> None:
        """A reachable address with tokens but without TLS is refused."""
        access = tmp_path / "access.toml"
        access.write_text(f"[[identity]]\nname = 'a'\ntoken_sha256 = ['{'0' * 64}']\n")
        output = refused(store=f"sqlite://{tmp_path}/ids.db", listen="0.0.0.0:0", access_file=access)
        assert "set tls_cert, listen" in output
        access.write_text("[[quota]]\nsequence = '*'\nids_per_second = 1\n")
        output = refused(store=f"sqlite://{tmp_path}/ids.db", listen="0.0.0.0:0", access_file=access)
        assert "set access_file and tls_cert, listen" in output

    def test_client_certificates_are_served(self, tmp_path: Path, files: Files) -> None:
        """A reachable address with client certificates is served."""
        people = trustme.CA()
        people.cert_pem.write_to_path(str(files.client_ca))
        with running(tmp_path, **files.flags, listen="0.0.0.0:0", tls_client_ca=files.client_ca) as server:
            port = server.address.rpartition(":")[2]
            credentials = files.trust(people.issue_cert("billing.example.org"))
            with idalloc.Client(f"127.0.0.1:{port}", credentials=credentials) as client:
                assert client.allocate_range("orders").ids == range(1, 2)

    def test_insecure_is_served(self, tmp_path: Path) -> None:
        """A reachable address with insecure is served."""
        with running(tmp_path, listen="0.0.0.0:0", insecure="true") as server:
            port = server.address.rpartition(":")[2]
            with idalloc.Client(f"127.0.0.1:{port}") as client:
                assert client.allocate_range("orders").ids == range(1, 2)


def test_max_connection_age_is_transparent_to_clients(tmp_path: Path) -> None:
    """Connections close at max_connection_age without an error in a client."""
    with running(tmp_path, max_connection_age="500ms") as server, idalloc.Client(server.address) as client:
        ids: list[int] = []

        def has_reconnected() -> bool:
            ids.extend(client.allocate_range("orders"))
            # The audit has the client's port, which is another one for each connection.
            with pytest.raises(idalloc.SequenceNotFound):
                client.sequences.delete("none")
            lines = [json.loads(line) for line in server.log.read_text().splitlines()]
            return len({line["peer"] for line in lines if line["event"] == "audit"}) >= 3

        wait_until(has_reconnected, "two reconnections")
        assert ids == sorted(set(ids))
