"""Wrong logins are slowed, and connections without a login make room for others."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from time import time

import pytest
import structlog
from cryptography import x509
from google.protobuf.message import Message

from idalloc.xprotocol.v1 import connection_pb2
from idalloc_server.auth.access import AccessPolicy
from idalloc_server.auth.access_control import AccessControl
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.rejected_callers import BURST
from idalloc_server.domain.clock import Clock
from idalloc_server.listen import connections
from idalloc_server.listen.connections import HEADER_SECONDS
from idalloc_server.listen.transport import MAX_CONNECTION_GRACE_SECONDS
from idalloc_xproto import frames
from idalloc_xproto.caller import Caller
from idalloc_xproto.listener import LOGIN_SECONDS, WRITE_BYTES
from tests.support.certificates import issue
from tests.support.fake_store import FakeClock
from tests.support.identities import ACCESS, TOKENS
from tests.support.waiting import hold_for_async, until
from tests.xproto.support.client import XClient, connected, insert
from tests.xproto.unit.conftest import Tls
from tests.xproto.unit.test_listener import listening


@pytest.fixture(scope="module")
def mutual_tls(tls: Tls, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Contexts with a certificate of the client, which expires in 600 seconds."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    tls.authority.issue_cert("127.0.0.1").configure_cert(server)
    for context in (server, client):
        tls.authority.configure_trust(context)
    server.verify_mode = ssl.CERT_REQUIRED
    own = issue(tls.authority, x509.DNSName("billing.example.org"), seconds=600)
    file = tmp_path_factory.mktemp("client") / "client.pem"
    file.write_bytes(own.cert + own.key)
    client.load_cert_chain(file)
    return Tls(tls.authority, server, client)


async def login(address: str, tls: Tls, user: str, token: str) -> tuple[int, str, bool]:
    """Log in on a new connection; return the error's code and text, and whether it has ended."""
    async with connected(address, logs_in=False) as client:
        await client.start_tls(tls.client)
        reply = await client.log_in_plain(user, token)
        is_fatal = bool(reply.code) and connection_pb2.Error.FromString(reply.frames[-1][1]).severity == 1
        return reply.code, reply.text, is_fatal


async def test_wrong_logins_are_slowed(tls: Tls) -> None:
    """Beyond its host's rate a wrong login waits and ends the connection; a right one passes."""
    clock = FakeClock()
    async with listening(access=AccessControl(clock, 1000, ACCESS), tls=tls.server) as listener:
        for number in range(BURST + 1):
            assert (await login(listener.address, tls, "read", f"wrong {number}"))[0] == 1045
            clock.advance(0.01)
        begun = asyncio.get_running_loop().time()
        code, text, is_fatal = await login(listener.address, tls, "nobody", "wrong")
        assert (code, is_fatal) == (1045, True)
        assert text.startswith("Access denied for user 'nobody'@")
        assert text.endswith("the name and the token match no identity of the access file")
        assert asyncio.get_running_loop().time() - begun >= 0.89
        assert (await login(listener.address, tls, "read", TOKENS["read"]))[0] == 0
        assert listener.calls == {"login 1045": BURST + 2, "login 0": 1}


async def test_connections_without_a_login_end_no_session() -> None:
    """A new connection ends the oldest one without a login; sessions stay, and log in beside."""
    async with listening(max_connections=5, of_address=3) as listener, AsyncExitStack() as opened:
        sessions = [await opened.enter_async_context(connected(listener.address)) for _ in range(3)]
        waiting = [await opened.enter_async_context(connected(listener.address, logs_in=False)) for _ in range(6)]
        assert [await each.rest() for each in waiting[:4]] == [b""] * 4
        assert (await waiting[4].log_in()).code == 0
        assert [(await each.sql("SELECT 1")).code for each in (*sessions, waiting[4])] == [0] * 4


async def test_refused_connections_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has the number of connections that got 1040, and of those ended for others."""
    monkeypatch.setattr(connections, "_LOG_SECONDS", 0.05)
    with structlog.testing.capture_logs() as lines:
        async with listening(max_connections=1) as listener:
            async with connected(listener.address, logs_in=False) as waiting, connected(listener.address):
                assert await waiting.rest() == b""
                for _ in range(3):
                    refused = await XClient.connect(listener.address)
                    assert (await refused.reply()).code == 1040
                    refused.close()
            await until(lambda: len(lines) == 2)
    shown = [(line["event"], line["port"], line["reason"], line["count"]) for line in lines]
    assert shown == [
        ("connections_refused", "xproto_listen", "ended", 1),
        ("connections_refused", "xproto_listen", "connections", 3),
    ]


ENDS = [connection_pb2.SessionClose(), connection_pb2.SessionReset()]


@pytest.mark.parametrize("end", ENDS, ids=["close", "reset"])
async def test_the_time_of_a_login_restarts_after_a_session(end: Message) -> None:
    """After its session a client has the same time to log in, even if it sends bytes."""
    loop = asyncio.get_running_loop()
    async with listening() as listener, connected(listener.address) as client:
        for _ in range(2):
            await hold_for_async(2 * LOGIN_SECONDS, "a session lasts longer than a login")
            assert (await client.ask(end)).code == 0
            assert (await client.log_in()).code == 0
        assert (await client.ask(end)).code == 0
        begun = loop.time()
        client.writer.write(b"\xff\0\0\0")  # the length of a frame
        while listener.connection_count:
            client.writer.write(b"\x04")
            await hold_for_async(1, "a client sends slowly")
        assert LOGIN_SECONDS <= loop.time() - begun <= LOGIN_SECONDS + HEADER_SECONDS


@pytest.mark.parametrize("end", ENDS, ids=["close", "reset"])
async def test_a_connection_whose_session_ended_counts_for_its_address(end: Message) -> None:
    """A connection that has logged out is ended for a new one of its address."""
    async with listening(of_address=2) as listener, AsyncExitStack() as opened:
        first, second, third = [await opened.enter_async_context(connected(listener.address)) for _ in range(3)]
        for each in (first, second):
            assert (await each.ask(end)).code == 0
        begun = asyncio.get_running_loop().time()
        async with connected(listener.address):
            assert await first.rest() == b""
            assert (await second.log_in()).code == 0
            assert (await third.sql("SELECT 1")).code == 0
            assert listener.connection_count == 3
        assert asyncio.get_running_loop().time() - begun < 1


def secured(clock: Clock, policy: AccessPolicy | None = ACCESS) -> AccessControl:
    """Return access control with client certificates."""
    return AccessControl(clock, 1000, policy, certificates=ClientCertificates(clock))


class LoopClock:
    """A ``Clock`` that follows the loop's virtual time."""

    def __init__(self) -> None:
        self.boot = asyncio.get_running_loop().time
        self._begun = self.boot()
        self._wall = time()

    def wall(self) -> float:
        return self._wall + self.boot() - self._begun


@pytest.mark.parametrize("policy", [ACCESS, None], ids=["access", "no access"])
async def test_an_idle_session_ends_with_its_certificate(mutual_tls: Tls, policy: AccessPolicy | None) -> None:
    """When a client certificate expires, its session gets the reason and ends."""
    clock = LoopClock()
    async with (
        listening(access=secured(clock, policy), tls=mutual_tls.server) as listener,
        connected(listener.address, logs_in=False) as client,
    ):
        await client.start_tls(mutual_tls.client)
        assert (await client.log_in_plain("read", TOKENS["read"])).code == 0
        await hold_for_async(580, "the certificate is valid")
        assert (await client.sql("SELECT 1")).code == 0
        begun = clock.boot()
        reply = await client.reply()
        assert reply.code == 1045
        assert "the client certificate expired at 20" in reply.text
        assert clock.boot() - begun < 20
        assert await client.rest() == b""


async def test_an_expired_certificate_runs_nothing(mutual_tls: Tls) -> None:
    """A login or statement with an expired certificate gets 1045 and the reason."""
    clock = FakeClock(wall=time())
    async with (
        listening(access=secured(clock), tls=mutual_tls.server) as listener,
        connected(listener.address, logs_in=False) as client,
        connected(listener.address, logs_in=False) as late,
    ):
        for each in (client, late):
            await each.start_tls(mutual_tls.client)
        assert (await client.log_in_plain("read", TOKENS["read"])).code == 0
        clock.advance(601)
        with structlog.testing.capture_logs() as lines:
            for reply in (await late.log_in_plain("read", TOKENS["read"]), await client.sql("SELECT 1")):
                assert reply.code == 1045
                assert "the client certificate expired at 20" in reply.text
        assert [line["method"] for line in lines if line["event"] == "audit"] == ["xproto/login"]
        assert listener.calls == {"login 0": 1, "login 1045": 1, "sql 1045": 1}


async def test_a_long_reply_ends_with_its_certificate(mutual_tls: Tls) -> None:
    """A running reply ends with the reason when the certificate expires."""
    clock = FakeClock(wall=time())

    class Rows:
        async def execute(self, message: Message, caller: Caller) -> None:
            for _ in range(20):
                clock.advance(60)
                await caller.send(frames.row([b"x" * WRITE_BYTES]))
            await caller.send(frames.DONE_EXECUTING)

    async with (
        listening(access=secured(clock, None), tls=mutual_tls.server, statements=Rows()) as listener,
        connected(listener.address, logs_in=False) as client,
    ):
        await client.start_tls(mutual_tls.client)
        assert (await client.log_in()).code == 0
        reply = await client.add("{}")
        assert (reply.code, len(reply.rows)) == (1045, 10)


async def test_a_session_ends_with_its_token(tls: Tls) -> None:
    """A statement whose token was removed from the access file gets the reason, and the end."""
    access = AccessControl(FakeClock(), 1000, ACCESS)
    async with (
        listening(access=access, tls=tls.server) as listener,
        connected(listener.address, logs_in=False) as client,
    ):
        await client.start_tls(tls.client)
        assert (await client.log_in_plain("read", TOKENS["read"])).code == 0
        access.apply_policy(AccessPolicy(each for each in ACCESS.identities if each.name != "read"))
        reply = await client.sql("SELECT 1")
        reason = "the access file no longer has this identity or its token"
        assert (reply.code, reply.text) == (1045, f"Access denied for user 'read'@'127.0.0.1': {reason}")
        assert await client.rest() == b""


async def test_a_session_ends_at_the_age_of_its_connection() -> None:
    """At max_connection_age a waiting session ends, and a running statement completes."""
    loop = asyncio.get_running_loop()

    class Slow:
        async def execute(self, message: Message, caller: Caller) -> None:
            await hold_for_async(50, "a statement takes time")
            await caller.send(frames.DONE_EXECUTING)

    async with (
        listening(age=100, statements=Slow()) as listener,
        connected(listener.address) as idle,
        connected(listener.address) as busy,
    ):
        begun = loop.time()
        await hold_for_async(70, "the connection grows old")
        assert (await busy.add("{}")).code == 0
        assert 119 < loop.time() - begun < 125
        for each in (idle, busy):
            reply = await each.reply()
            assert (reply.code, reply.text) == (3169, "Session was killed: its connection is older than 100 s")
            assert await each.rest() == b""


async def test_a_statement_ends_after_the_grace_of_its_connection() -> None:
    """A statement that outlasts the grace of gRPC's connections is ended."""
    loop = asyncio.get_running_loop()

    class Endless:
        async def execute(self, message: Message, caller: Caller) -> None:
            while True:
                await hold_for_async(10, "a statement takes time")
                await caller.send(frames.row([b"x"]))

    async with listening(age=100, statements=Endless()) as listener, connected(listener.address) as client:
        begun = loop.time()
        client.send(insert("{}"))
        await client.rest()
        assert 100 + MAX_CONNECTION_GRACE_SECONDS - 1 < loop.time() - begun < 100 + MAX_CONNECTION_GRACE_SECONDS + 10


async def test_a_login_without_tls_gets_the_reason(tls: Tls) -> None:
    """Where TLS is required a proof gets 3159 as from MySQL, so that clients show the reason."""
    async with listening(tls=tls.server) as listener:
        async with connected(listener.address, logs_in=False) as client:
            for mechanism in ("MYSQL41", "SHA256_MEMORY", "MYSQL41"):
                reply = await client.log_in(mechanism=mechanism)
                text = "Connections using insecure transport are prohibited: use TLS"
                assert (reply.code, reply.text) == (3159, text)
            assert await client.rest() == b""
        async with connected(listener.address, logs_in=False) as client:
            assert (await client.log_in()).code == 3159
            await client.start_tls(tls.client)
            assert (await client.log_in()).code == 0
        async with connected(listener.address, logs_in=False) as client:
            assert (await client.log_in_plain("x", "y")).code == 3159
            assert await client.rest() == b""


async def test_a_token_has_no_end_in_a_nul(tls: Tls) -> None:
    """What follows a NUL belongs to the token, which then is wrong."""
    async with listening(access=AccessControl(FakeClock(), 1000, ACCESS), tls=tls.server) as listener:
        for end in ("\0", "\0\0", "\0x"):
            assert (await login(listener.address, tls, "read", TOKENS["read"] + end))[0] == 1045
        assert (await login(listener.address, tls, "read", TOKENS["read"]))[0] == 0


async def test_a_login_with_names_that_are_not_utf8_is_refused() -> None:
    """A user that is not UTF-8 gets 1045, and such a schema 1300, where any other user logs in."""
    async with listening() as listener, connected(listener.address, logs_in=False) as client:
        for auth_data, code in ((b"\0u\xff\0*00", 1045), (b"s\xff\0u\0*00", 1300), (b"s\0u\0*00", 0)):
            await client.ask(connection_pb2.AuthenticateStart(mech_name="MYSQL41"))
            assert (await client.ask(connection_pb2.AuthenticateContinue(auth_data=auth_data))).code == code
