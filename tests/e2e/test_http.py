"""The HTTP port of real servers: probes and metrics, with one process and with several."""

import os
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from idalloc.v1 import id_allocator_pb2
from tests.e2e.test_access import new_token
from tests.support.processes import Server, environment, locked, running, serve_command, start_error
from tests.support.server_calls import connect, id_allocator, log_events
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.test_long, pytest.mark.timeout(180)]
LOOPBACK = "127.0.0.1:0"
Values = dict[str, float]


def get(server: Server, path: str, token: str = "", tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Return the status and text of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(server.http + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def allocate(server: Server, sequence: str, count: int) -> None:
    """Take ids on a connection of its own."""
    with connect(server) as channel:
        id_allocator(channel).AllocateRange(
            id_allocator_pb2.AllocateRangeRequest(sequence=sequence, id_count=count), timeout=10
        )


def write_certificate(folder: Path, *, expired: bool = False) -> None:
    """Write cert.pem and key.pem for 127.0.0.1."""
    leaf = trustme.CA().issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC) if expired else None)
    for name, content in (("key.pem", leaf.private_key_pem.bytes()), ("cert.pem", leaf.cert_chain_pems[0].bytes())):
        (folder / f"{name}.new").write_bytes(content)
        (folder / f"{name}.new").replace(folder / name)


def metrics(server: Server) -> Values:
    """Return the value of each series, such as ``idalloc_leases`` or ``idalloc_workers``."""
    status, text = get(server, "metrics")
    assert status == 200
    return {
        " ".join([sample.name, *(value for _, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def issued(server: Server) -> float:
    """Return how many ids all series have."""
    return sum(value for name, value in metrics(server).items() if name.startswith("idalloc_ids_issued_total "))


def test_single_process_serves_probes_and_metrics(tmp_path: Path) -> None:
    """The server names the port when it serves; the metrics have what was called."""
    with running(tmp_path, http_listen=LOOPBACK) as server:
        assert server.http.startswith("http://127.0.0.1:")
        assert get(server, "livez") == (200, "ok\n")
        wait_until(lambda: get(server, "readyz") == (200, "ok\n"))
        checks = "[+]shutdown ok\n[+]store ok\n[+]lease-renewals ok\n[+]certificates ok\n"
        assert get(server, "readyz?verbose") == (200, checks)
        allocate(server, "orders", 10_000)
        wait_until(lambda: "idalloc_ids_issued_total orders" in metrics(server), "a series of its own")
        allocate(server, "orders", 5)
        wait_until(lambda: metrics(server)["idalloc_ids_issued_total orders"] == 5)
        values = metrics(server)
        call = "AllocateRange idalloc.v1.IdAllocatorService unary"
        assert values["idalloc_ids_issued_total "] == 10_000
        assert values[f"grpc_server_started_total {call}"] == 2
        assert values["idalloc_store_calls_total create ok"] == 1
        wait_until(lambda: metrics(server)["idalloc_leases"] == 1)
        assert server.stop() == 0


def test_sums_are_right_after_a_worker_was_killed(tmp_path: Path) -> None:
    """A killed worker's counters stay in the sums, its gauges go; the port outlasts all workers."""
    with running(tmp_path, http_listen=LOOPBACK, workers=2) as server:
        for _ in range(20):
            allocate(server, "orders", 7)
        wait_until(lambda: issued(server) == 140)
        before = metrics(server)
        assert before["idalloc_workers"] == 2
        for line in log_events(server, "worker_started"):
            os.kill(line["pid"], signal.SIGKILL)
        wait_until(lambda: metrics(server)["idalloc_worker_exits_total"] == 2)
        assert get(server, "livez") == (200, "ok\n")
        after = metrics(server)
        counters = [name for name in before if "_total" in name and not name.startswith("process_")]
        assert {name: after[name] for name in counters if after[name] < before[name]} == {}
        assert issued(server) == 140
        wait_until(lambda: get(server, "readyz") == (200, "ok\n"))
        wait_until(lambda: metrics(server)["idalloc_workers"] == 2)
        assert server.stop() == 0


@contextmanager
def without_workers(folder: Path) -> Iterator[Server]:
    """Run a server whose two workers are killed; they can start again after the block."""
    with running(folder, http_listen=LOOPBACK, workers=2, store_timeout="1s") as server:
        wait_until(lambda: get(server, "readyz")[0] == 200)
        with locked(folder / "ids.db"):
            for line in log_events(server, "worker_started"):
                os.kill(line["pid"], signal.SIGKILL)
            wait_until(lambda: get(server, "readyz")[0] == 503)
            yield server
        wait_until(lambda: get(server, "readyz")[0] == 200)


def test_port_answers_while_no_worker_can_start(tmp_path: Path) -> None:
    """Without a worker /livez and /metrics answer, and /readyz names the check."""
    with without_workers(tmp_path) as server:
        assert get(server, "readyz")[1].startswith("[-]workers failed: no worker serves\n")
        assert get(server, "livez")[0] == 200
        assert metrics(server)["idalloc_workers"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_readyz_names_the_store_while_it_is_away(tmp_path: Path, workers: int) -> None:
    """While the store is away /readyz is 503 with the check's name, and /livez is 200."""
    with running(tmp_path, http_listen=LOOPBACK, workers=workers, store_timeout="1s") as server:
        allocate(server, "orders", 1)
        with locked(tmp_path / "ids.db"):

            def fails() -> bool:
                with pytest.raises(grpc.RpcError):
                    allocate(server, "orders", 1_000_000)
                return get(server, "readyz")[0] == 503

            wait_until(fails)
            status, text = get(server, "readyz")
            assert (status, "[-]store failed: the last calls of the store failed\n" in text) == (503, True)
            assert get(server, "livez")[0] == 200
            assert metrics(server)["idalloc_store_up"] == 0
        assert metrics(server)["idalloc_refill_duration_seconds_count failed"] > 0
        wait_until(lambda: get(server, "readyz")[0] == 200, "a heartbeat that shows that the store is back")


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_need_the_role_read_on_all_sequences(tmp_path: Path, workers: int) -> None:
    """With access on, /metrics needs a token that may read everything; probes need none."""
    file = tmp_path / "access.toml"
    reader = new_token(file, "prometheus", "--read", "*")
    other = new_token(file, "billing", "--read", "billing*")
    with running(tmp_path, http_listen=LOOPBACK, workers=workers, access_file=file) as server:
        assert get(server, "livez")[0] == 200
        assert get(server, "readyz?verbose")[0] == 200
        assert get(server, "metrics")[0] == 401
        assert get(server, "metrics", "wrong")[0] == 401
        status, text = get(server, "metrics", other)
        assert (status, "role 'read'" in text) == (403, True)
        status, text = get(server, "metrics", reader)
        assert status == 200
        assert 'idalloc_auth_rejections_total{reason="UNAUTHENTICATED"} 2.0' in text
        assert 'idalloc_auth_rejections_total{reason="PERMISSION_DENIED"} 1.0' in text
        assert {get(server, "metrics", "wrong")[0] for _ in range(20)} == {401}
        audited = {(each["method"], each["reason"]) for each in log_events(server, "audit")}
        assert ("GET /metrics", "PERMISSION_DENIED") in audited


@pytest.mark.parametrize("workers", [1, 2])
def test_https_uses_the_certificates_of_the_server(tmp_path: Path, workers: int) -> None:
    """With TLS the port speaks HTTPS and takes renewed files; an expired one fails its check."""
    write_certificate(tmp_path)
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with running(tmp_path, http_listen=LOOPBACK, workers=workers, **files) as server:
        assert server.http.startswith("https://")
        wait_until(lambda: get(server, "readyz", tls=trust)[0] == 200)
        text = get(server, "metrics", tls=trust)[1]
        assert 'idalloc_certificate_expires_timestamp_seconds{file="tls_cert"} ' in text
        port = int(server.http.rstrip("/").rpartition(":")[2])
        first = ssl.get_server_certificate(("127.0.0.1", port))
        write_certificate(tmp_path, expired=True)
        wait_until(lambda: ssl.get_server_certificate(("127.0.0.1", port)) != first)
        wait_until(lambda: get(server, "readyz", tls=trust)[0] == 503)
        assert "[-]certificates failed: expired: tls_cert\n" in get(server, "readyz", tls=trust)[1]


@pytest.mark.parametrize(
    ("workers", "with_access"),
    [(1, True), (2, True), (1, False)],
)
def test_client_certificates_give_the_roles(tmp_path: Path, workers: int, with_access: bool) -> None:
    """/metrics needs a certificate of `tls_client_ca`; with access, one that may read all."""
    write_certificate(tmp_path)
    authority, access = trustme.CA(), tmp_path / "access.toml"
    authority.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    identity = '[[identity]]\nname = "{0}"\ncertificate = ["dns:{0}.example.org"]\nread = ["{1}"]\n'
    access.write_text(identity.format("prometheus", "*") + identity.format("billing", "billing*"))
    settings = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    settings |= {"tls_client_ca": tmp_path / "clients.pem"} | ({"access_file": access} if with_access else {})

    def presenting(name: str = "", issuer: trustme.CA = authority) -> ssl.SSLContext:
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        if name:
            issuer.issue_cert(f"{name}.example.org").configure_cert(client)
        return client

    with running(tmp_path, http_listen=LOOPBACK, workers=workers, **settings) as server:
        wait_until(lambda: get(server, "readyz", tls=presenting()) == (200, "ok\n"), "a probe without a certificate")
        status, text = get(server, "metrics", tls=presenting("prometheus"))
        assert (status, "idalloc_build_info{" in text) == (200, True)
        assert get(server, "metrics", tls=presenting())[0] == 401
        with pytest.raises(OSError):  # noqa: PT011 - the handshake fails, or the first read after it
            get(server, "metrics", tls=presenting("prometheus", trustme.CA()))
        billing, unknown = (get(server, "metrics", tls=presenting(name)) for name in ("billing", "unknown"))
        assert (billing[0], unknown[0]) == ((403, 401) if with_access else (200, 200))
        if with_access:
            assert "identity 'billing'" in billing[1]
            audited = {(each["method"], each["identity"], each["reason"]) for each in log_events(server, "audit")}
            assert ("GET /metrics", "billing", "PERMISSION_DENIED") in audited


def test_port_in_use_ends_the_start(tmp_path: Path) -> None:
    """A start whose HTTP port is taken ends with exit code 2 and one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = serve_command(store=f"sqlite://{tmp_path}/ids.db", http_listen=address)
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    why = f"http_listen: cannot serve on {address}: Address already in use; choose another address or port"
    assert start_error(done.stderr) == why


def test_port_that_others_reach_needs_tls_and_access(tmp_path: Path) -> None:
    """The HTTP port obeys the same rule as listen."""
    command = serve_command(store=f"sqlite://{tmp_path}/ids.db", http_listen="0.0.0.0:0")
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 2
    assert start_error(done.stderr).startswith("http_listen: other machines can reach 0.0.0.0:0, and callers are not")


def test_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    """Unknown paths are 404, other methods 405, and long headers 400; no answer names a version."""
    with running(tmp_path, http_listen=LOOPBACK) as server:
        assert get(server, "nothing") == (404, "404 Not Found\n")
        assert get(server, "../etc/passwd")[0] == 404
        request = urllib.request.Request(server.http + "livez", data=b"", method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        with refused.value as error:
            assert (error.code, error.headers["Server"]) == (405, "idalloc")
        request = urllib.request.Request(server.http + "livez", headers={"Long": "x" * 20_000})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        with refused.value as error:
            assert error.code == 400
