"""Programs that get the Java client from a Maven repository on disk, on real servers."""

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.languages.conftest import Secrets
from tests.packages.java_package import Consumer, Taker, jdk
from tests.support.certificates import Certificates
from tests.support.processes import Server, environment, running

# With cold caches Maven downloads its plugins and the packages.
pytestmark = [pytest.mark.languages, pytest.mark.timeout(900)]

TOTAL = 1_000_000
FLOOR, NEWER = 17, 25
REASONS = {"SERVER_UNREACHABLE", "STORE_UNAVAILABLE", "SERVER_DRAINING", "DEADLINE_EXCEEDED"}


def variables(secrets: Secrets) -> dict[str, str]:
    """Return the environment of the programs."""
    return environment() | {"CA": str(secrets.ca), "TOKEN_FILE": str(secrets.token_file)}


def calls(consumer: Consumer, server: Server, **files: object) -> subprocess.CompletedProcess[str]:
    """Run the program that makes every call, with the files of its environment."""
    settings = environment() | {name: str(file) for name, file in files.items()}
    command = consumer.command(jdk(FLOOR), "EveryCall", server.address)
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=100)


def test_every_call_of_the_package_works(java_consumer: Consumer, secrets: Secrets, tmp_path: Path) -> None:
    """Each method gets ids from a server with TLS and a token; the observer counts them."""
    with running(tmp_path, **secrets.settings) as server:
        done = calls(java_consumer, server, CA=secrets.ca, TOKEN_FILE=secrets.token_file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "range: 100 99 1",
        "request id: true true true",
        "batch: 10 INVALID_REQUEST 5",
        "texts: [INV-0001, INV-0002]",
        "document ids: 5 28",
        "streams: 50000 50000",
        "allocate stream: 640 320",
        "pool: 1 2 3",
        "error: true INVALID_ARGUMENT [id_count] false",
        "received: true {AllocateStream=960, BatchAllocateRanges=15, GenerateDocId=5, "
        "StreamDocIds=50000, StreamRanges=50000}",
    ]
    assert done.stderr == ""


def test_a_client_certificate_is_presented(java_consumer: Consumer, tmp_path: Path) -> None:
    """A server that requires client certificates answers a client with one, and no other."""
    certificates = Certificates(tmp_path)
    served, shown = certificates.client("127.0.0.1"), certificates.client("billing")
    with running(tmp_path, tls_cert=served.cert, tls_key=served.key, tls_client_ca=certificates.ca) as server:
        key = tmp_path / "pkcs8.key"
        form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        key.write_bytes(load_pem_private_key(shown.key.read_bytes(), None).private_bytes(*form))
        done = calls(java_consumer, server, CA=certificates.ca, CERT=shown.cert, KEY=key)
        assert done.returncode == 0, done.stderr
        assert "texts: [INV-0001, INV-0002]" in done.stdout
        refused = calls(java_consumer, server, CA=certificates.ca)
    assert refused.returncode == 1
    assert refused.stderr.startswith('Exception in thread "main" SERVER_UNREACHABLE: ')


@pytest.mark.parametrize(("kind", "threads", "version"), [("platform", 64, FLOOR), ("virtual", 1000, NEWER)])
def test_a_pool_issues_no_id_twice_while_servers_are_killed(
    kind: str, threads: int, version: int, java_consumer: Consumer, secrets: Secrets, tmp_path: Path
) -> None:
    """P1: no id of a million comes twice while servers are killed in turn, then both at once."""
    with ExitStack() as stack:
        servers = [stack.enter_context(running(tmp_path, **secrets.settings)) for _ in range(2)]
        target = ",".join(server.address for server in servers)
        command = java_consumer.command(jdk(version), "Take", target, str(threads), kind, str(TOTAL))
        taker = Taker(tmp_path, command, variables(secrets))
        stack.callback(taker.process.kill)
        for killed in ([0], [1], [0, 1]):
            taker.wait_for_more()
            for each in killed:
                servers[each].stop(signal.SIGKILL)
            if len(killed) == 1:
                taker.wait_for_more()
            for each in killed:
                again = secrets.settings | {"listen": servers[each].address}
                servers[each] = stack.enter_context(running(tmp_path, **again))
        taker.wait_for_more()
        ids, reasons = taker.end()
    assert len({*ids}) == len(ids) >= TOTAL
    assert reasons <= REASONS
