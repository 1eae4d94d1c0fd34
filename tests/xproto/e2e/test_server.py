"""The X Protocol's port of a real server: access, workers, metrics, a drain, kills, strangers."""

import asyncio
import hashlib
import json
import signal
import socket
import ssl
import subprocess
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from idalloc.xprotocol.v1 import connection_pb2, statement_pb2
from idalloc_xproto import frames
from tests.e2e.test_http import metrics
from tests.e2e.test_persist import free_address
from tests.e2e.test_strangers import LOOPBACK, SECRET, STRANGERS, holding, opened, port_of
from tests.support.certificates import Certificates, issue
from tests.support.processes import IDALLOC, Server, running, running_beside
from tests.support.server_calls import log_events, refused_start
from tests.support.store_backends import WITH_DOCUMENTS, empty_store
from tests.support.waiting import until
from tests.xproto.support.client import XClient, connected

pytestmark = pytest.mark.timeout(180)


class Access:
    """An access file with identities, and a certificate."""

    def __init__(self, folder: Path) -> None:
        certificates = Certificates(folder)
        shown = certificates.client("127.0.0.1")
        self._file = folder / "access.toml"
        self.tls = ssl.create_default_context(cafile=certificates.ca)
        self.tokens: dict[str, str] = {}
        self.settings = {"access_file": self._file, "xproto_listen": "127.0.0.1:0", "log_level": "info"}
        self.certificate = {"tls_cert": shown.cert, "tls_key": shown.key}

    def add(self, name: str, *roles: str, more: str = "") -> None:
        """Add an identity with a token, its roles and more lines."""
        made = subprocess.run([IDALLOC, "token", "new", name, *roles], capture_output=True, text=True, check=True)
        self.tokens[name] = made.stdout.strip()
        with self._file.open("a") as file:
            file.write(f"{made.stderr.rstrip()}\n{more}\n\n")

    async def client(self, server: Server, name: str) -> XClient:
        """Return a session of an identity."""
        client = await XClient.connect(server.xproto)
        await client.read()
        await client.start_tls(self.tls)
        assert (await client.log_in_plain(name, self.tokens[name])).code == 0
        return client


@pytest.fixture
def access(tmp_path: Path) -> Access:
    access = Access(tmp_path)
    access.add("root", "--allocate", "*", "--read", "*", "--admin", "*")
    return access


def test_access_without_a_certificate_is_refused(access: Access, tmp_path: Path) -> None:
    """With access, the port needs a certificate: tokens would cross the network in clear text."""
    error = refused_start(store=f"sqlite://{tmp_path}/ids.db", **access.settings)
    assert "xproto_listen" in error
    assert "tls_cert" in error


def test_a_store_without_documents_is_refused_at_start(tmp_path: Path) -> None:
    """OpenSearch keeps no documents: the start is refused before the store is reached."""
    error = refused_start(store="opensearch://127.0.0.1:1/", xproto_listen="127.0.0.1:0")
    assert "xproto_listen: documents need a store of sqlite:// or crate://" in error


@pytest.mark.parametrize("workers", [1, 2])
def test_a_taken_port_is_refused_at_start(tmp_path: Path, workers: int) -> None:
    """A port in use ends the start with one line that names xproto_listen, and exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        error = refused_start(store=f"sqlite://{tmp_path}/ids.db", xproto_listen=listen, workers=workers)
    assert error == f"2 xproto_listen: cannot serve on {listen}: Address already in use; choose another address or port"


@pytest.mark.test_long
@pytest.mark.parametrize("workers", [1, 2])
def test_an_unusable_document_file_is_refused_at_start(tmp_path: Path, workers: int) -> None:
    """A file of documents that is no database ends the start with one line and exit code 2."""
    (tmp_path / "ids-documents.db").write_bytes(b"not a database")
    error = refused_start(store=f"sqlite://{tmp_path}/ids.db", xproto_listen="127.0.0.1:0", workers=workers)
    assert error.startswith(f"2 store: cannot use {tmp_path}/ids-documents.db as a SQLite database: ")


def test_an_open_address_needs_insecure(tmp_path: Path) -> None:
    """An address that other machines reach needs TLS and access, or insecure."""
    error = refused_start(store=f"sqlite://{tmp_path}/ids.db", xproto_listen="0.0.0.0:0")
    assert "insecure" in error


async def test_only_a_token_over_tls_logs_in(access: Access, tmp_path: Path) -> None:
    """With access PLAIN over TLS works; a digest of the access file logs in by no mechanism."""
    with running(tmp_path, **access.settings, **access.certificate) as server:
        client = await XClient.connect(server.xproto)
        await client.read()
        assert (await client.log_in("root")).code == 3159
        client.close()
        client = await XClient.connect(server.xproto)
        await client.read()
        await client.start_tls(access.tls)
        assert (await client.log_in("root")).code == 1045
        salt = (await client.ask(connection_pb2.AuthenticateStart(mech_name="SHA256_MEMORY"))).frames[-1][1]
        nonce = connection_pb2.AuthenticateContinue.FromString(salt).auth_data
        digest = hashlib.sha256(access.tokens["root"].encode()).digest()
        mask = hashlib.sha256(hashlib.sha256(digest).digest() + nonce).digest()
        proof = bytes(one ^ other for one, other in zip(digest, mask, strict=True)).hex()
        proven = connection_pb2.AuthenticateContinue(auth_data=f"\0root\0{proof}".encode())
        assert (await client.ask(proven)).code == 1045
        assert (await client.log_in_plain("root", access.tokens["root"])).code == 0
        assert (await client.sql("SELECT 1")).rows == [b"\x02"]
        client.close()


@pytest.mark.test_long
async def test_a_wrong_token_is_refused_and_audited(access: Access, tmp_path: Path) -> None:
    """A wrong token, or another identity's, gets 1045; the audit names the peer and no token."""
    access.add("other", "--read", "*")
    with running(tmp_path, **access.settings, **access.certificate) as server:
        for name, token in (("root", "wrong"), ("root", access.tokens["other"]), ("nobody", access.tokens["root"])):
            client = await XClient.connect(server.xproto)
            await client.read()
            await client.start_tls(access.tls)
            reply = await client.log_in_plain(name, token)
            assert (reply.code, reply.text) == (
                1045,
                f"Access denied for user '{name}'@'127.0.0.1' (using password: YES)",
            )
            client.close()
        await until(lambda: len(log_events(server, "audit")) == 3, "the audit's lines")
        lines = log_events(server, "audit")
        assert {line["code"] for line in lines} == {"UNAUTHENTICATED"}
        assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in lines)
        log = server.log.read_text()
    assert not any(token in log for token in access.tokens.values())


@pytest.mark.test_long  # the certificate expires in real time
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_session_ends_with_its_certificate(tmp_path: Path, workers: int) -> None:
    """With tls_client_ca a session is closed with the reason when its certificate expires."""
    certificates = Certificates(tmp_path)
    shown = certificates.client("127.0.0.1")
    tls = ssl.create_default_context(cafile=certificates.ca)
    settings = {"tls_cert": shown.cert, "tls_key": shown.key, "tls_client_ca": certificates.ca}
    with running(tmp_path, xproto_listen="127.0.0.1:0", workers=workers, **settings) as server:
        own = issue(certificates.authority, x509.DNSName("billing.example.org"), seconds=10)
        (tmp_path / "client.pem").write_bytes(own.cert + own.key)
        tls.load_cert_chain(tmp_path / "client.pem")
        async with connected(server.xproto, logs_in=False) as client:
            await client.start_tls(tls)
            assert (await client.log_in()).code == 0
            assert (await client.sql("SELECT 1")).code == 0
            reply = await client.reply()
            assert reply.code == 1045
            assert "the client certificate expired at 20" in reply.text
            assert await client.rest() == b""


@pytest.mark.test_long
async def test_roles_hold_on_collections(access: Access, tmp_path: Path) -> None:
    """Find needs read, add allocate, all else admin on SCHEMA.COLLECTION; else 1142, audited."""
    access.add("reader", "--read", "s.*")
    access.add("adder", "--allocate", "s.c")
    access.add("elsewhere", "--allocate", "t.*", "--read", "t.*", "--admin", "t.*")
    with running(tmp_path, **access.settings, **access.certificate) as server:
        root = await access.client(server, "root")
        await root.create_collection()
        clients = {name: await access.client(server, name) for name in ("root", "reader", "adder", "elsewhere")}
        adds = {name: (await client.add("{}")).code for name, client in clients.items()}
        finds = {name: (await client.find()).code for name, client in clients.items()}
        drops = {name: (await client.sql("DROP TABLE s.c")).code for name, client in reversed(clients.items())}
        assert adds == {"root": 0, "reader": 1142, "adder": 0, "elsewhere": 1142}
        assert finds == {"root": 0, "reader": 0, "adder": 1142, "elsewhere": 1142}
        assert drops == {"root": 0, "reader": 1142, "adder": 1142, "elsewhere": 1142}
        assert (await clients["reader"].sql("SET GLOBAL mysqlx_document_id_unique_prefix = 9")).code == 1227
        assert (await clients["root"].sql("SET GLOBAL mysqlx_document_id_unique_prefix = 9")).code == 0
        await until(lambda: any(line.get("after") for line in log_events(server, "audit")), "the change in the audit")
        denied = Counter(line["identity"] for line in log_events(server, "audit") if line["code"] != "OK")
        assert denied == {"reader": 3, "adder": 2, "elsewhere": 3}
        drops_audited = [line for line in log_events(server, "audit") if line["method"] == "xproto/drop_collection"]
        assert {(line["identity"], line["schema"], line["collection"], line["code"]) for line in drops_audited} == {
            ("root", "s", "c", "OK"),
            *((name, "s", "c", "PERMISSION_DENIED") for name in ("reader", "adder", "elsewhere")),
        }
        for client in (root, *clients.values()):
            client.close()


@pytest.mark.test_long
async def test_quotas_hold_on_statements(access: Access, tmp_path: Path) -> None:
    """Generated ids count against ids_per_second, every statement against calls_per_second."""
    access.add("few", "--allocate", "*", "--read", "*", more="ids_per_second = 1")
    access.add("slow", "--allocate", "*", "--read", "*", more="calls_per_second = 1")
    with running(tmp_path, **access.settings, **access.certificate) as server:
        root = await access.client(server, "root")
        await root.create_collection()
        few, slow = await access.client(server, "few"), await access.client(server, "slow")
        assert (await few.add(*["{}"] * 1000)).code == 0
        refused = await few.add("{}")
        assert refused.code == 1226
        assert "few" in refused.text
        assert (await few.find()).code == 0
        codes = [(await slow.add(f'{{"_id": "{number}"}}')).code for number in range(20)]
        assert set(codes) == {0, 1226}
        for client in (root, few, slow):
            client.close()


async def test_every_worker_listens(tmp_path: Path) -> None:
    """All workers serve the port; their sessions make different ids in one collection."""
    with running(tmp_path, xproto_listen="127.0.0.1:0", workers=2, log_level="warning") as server:
        async with connected(server.xproto) as client:
            await client.create_collection()
        ids: set[str] = set()
        for _ in range(200):
            async with connected(server.xproto) as client:
                ids |= set((await client.add("{}")).ids)
            if len({doc_id[:12] for doc_id in ids}) == 2:
                break
        assert len({doc_id[:12] for doc_id in ids}) == 2
        async with connected(server.xproto) as client:
            assert len((await client.find()).rows) == len(ids)
            assert (await client.sql("SET GLOBAL mysqlx_document_id_unique_prefix = 77")).code == 0
        for _ in range(8):
            async with connected(server.xproto) as client:
                assert (await client.sql("SELECT @@mysqlx_document_id_unique_prefix")).rows == [b"M"]


async def test_metrics_have_calls_and_connections(tmp_path: Path) -> None:
    """The metrics have calls by kind and code, added documents, and open connections."""
    settings = {"xproto_listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0"}
    with running(tmp_path, **settings) as server:
        async with connected(server.xproto) as client:
            await client.create_collection()
            await client.add("{}", "{}")
            await client.add('{"_id": 1}', '{"_id": 1}')
            await client.find()
            values = await asyncio.to_thread(metrics, server)
            shown = {name: value for name, value in values.items() if "xproto" in name}
        assert shown == {
            "idalloc_xproto_calls_total 0 login": 1,
            "idalloc_xproto_calls_total 0 sql": 1,
            "idalloc_xproto_calls_total 0 command": 1,
            "idalloc_xproto_calls_total 0 insert": 1,
            "idalloc_xproto_calls_total 5116 insert": 1,
            "idalloc_xproto_calls_total 0 find": 1,
            "idalloc_xproto_documents_added_total": 2,
            "idalloc_xproto_connections": 1,
        }


async def test_a_stop_ends_idle_sessions(tmp_path: Path) -> None:
    """SIGTERM sends each idle session 1053; the server ends with 0, long before drain_timeout."""
    with running(tmp_path, xproto_listen="127.0.0.1:0", drain_timeout="60s") as server:
        async with connected(server.xproto) as client:
            server.send(signal.SIGTERM)
            reply = await client.reply()
            assert reply.code == 1053
            assert await client.rest() == b""
        assert await asyncio.to_thread(server.process.wait, 30) == 0


@pytest.mark.parametrize("rounds", [2, pytest.param(10, marks=pytest.mark.test_long)])
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("emulator", marks=pytest.mark.test_long), *WITH_DOCUMENTS[2:]])
async def test_killed_servers_keep_what_they_answered(kind: str, tmp_path: Path, rounds: int) -> None:
    """kill -9 amid adds: no id is made twice, and each id that a client received is stored."""
    received: list[str] = []

    async def add(client: XClient) -> None:
        while True:
            received.extend((await client.add("{}", '{"n": 1}')).ids)

    def has_received(count: int) -> bool:
        return len(received) >= count

    settings = {"xproto_listen": "127.0.0.1:0", "log_level": "warning"}
    async with empty_store(kind, tmp_path) as store:
        for number in range(rounds):
            async with (
                running_beside(tmp_path, store=store, **settings) as server,
                connected(server.xproto) as first,
                connected(server.xproto) as second,
            ):
                await first.create_collection()
                adding = [asyncio.create_task(add(client)) for client in (first, second)]
                await until(partial(has_received, len(received) + 40 + number), "some ids")
                server.send(signal.SIGKILL)
                ended = await asyncio.gather(*adding, return_exceptions=True)
                assert all(isinstance(each, asyncio.IncompleteReadError | OSError) for each in ended)
        assert len(set(received)) == len(received)
        async with (
            running_beside(tmp_path, store=store, **settings) as server,
            connected(server.xproto) as client,
        ):
            stored = [json.loads(row)["_id"] for row in (await client.find()).rows]
    assert set(received) <= set(stored)
    assert len(set(stored)) == len(stored)


@pytest.mark.test_long
async def test_sql_persists_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart keeps what PERSIST set, also where a later SET GLOBAL differed, and no more."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = {"listen": free_address(), "xproto_listen": "127.0.0.1:0"}
    names = ("auto_increment_increment", "auto_increment_offset", "mysqlx_document_id_unique_prefix")
    read = f"SELECT {', '.join(f'@@{name}' for name in names)}"

    async def run(server: Server, *statements: str) -> list[int]:
        async with connected(server.xproto) as client:
            for statement in statements:
                assert (await client.sql(statement)).code == 0
            reply = await client.sql(read)
            [row] = [payload for kind, payload in reply.frames if kind == frames.ROW]
            return [field[0] for field in statement_pb2.Row.FromString(row).field]

    with running(tmp_path, **settings) as server:
        mixed = "SET GLOBAL auto_increment_increment = 8, PERSIST mysqlx_document_id_unique_prefix = 5"
        twice = "SET PERSIST auto_increment_offset = 3, GLOBAL auto_increment_offset = 4"
        assert await run(server, mixed, twice) == [8, 4, 5]
        server.stop(signal.SIGKILL)
    with running(tmp_path, **settings) as server:
        assert await run(server) == [1, 3, 5]


@pytest.mark.test_long
def test_strangers_on_the_port_of_the_x_protocol_are_ended_first(tmp_path: Path) -> None:
    """Connections without a login make room for a new one, even of their address; sessions stay."""
    with running(tmp_path, http_listen=LOOPBACK, xproto_listen=LOOPBACK) as server:
        port = port_of(server, "xproto")
        with holding(port, 150, ["127.0.0.1", *STRANGERS]):
            with opened(port) as late:
                assert late.recv(5)[4] == 11  # the hello
            with opened(port, STRANGERS[0]) as other:
                assert other.recv(5)[4] == 11


@pytest.mark.test_long
def test_no_byte_of_a_login_is_in_a_reply_or_the_log(tmp_path: Path) -> None:
    """A token sent as user, schema, mechanism or proof is in no reply of X and in no log."""
    token = SECRET[7:] + "_of_the_usual_length_of_a_token"
    starts = [
        connection_pb2.AuthenticateStart(mech_name=token),
        connection_pb2.AuthenticateStart(mech_name="PLAIN", auth_data=f"{token}\0{token}\0{token}".encode()),
        connection_pb2.AuthenticateStart(mech_name="MYSQL41"),
    ]
    proof = connection_pb2.AuthenticateContinue(auth_data=f"{token}\0{token}\0*{token}".encode())
    with running(tmp_path, http_listen=LOOPBACK, xproto_listen=LOOPBACK) as server:
        for start in starts:
            with opened(port_of(server, "xproto"), sent=frames.frame(4, start) + frames.frame(5, proof)) as connection:
                connection.settimeout(10)
                reply = b""
                while not any(text in reply for text in (b"authentication method", b"Unknown database")):
                    part = connection.recv(65536)
                    assert part, reply
                    reply += part
            assert b"one_of_the_secrets" not in reply
        assert server.stop() == 0
    assert "one_of_the_secrets" not in server.log.read_text()
