"""The way to CrateDB: what was sent is never sent again, whatever happens."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from idalloc_server.domain.errors import (
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreRejected,
    StoreUnreachable,
)
from idalloc_server.store.cratedb.http import CrateHttp
from tests.support.cratedb.emulator import CrateEmulator, Fault

ADD = "UPDATE sequences SET last_value = last_value + ? WHERE name = ? RETURNING last_value"
READ = "SELECT last_value FROM sequences WHERE name = ?"

MakeHttp = Callable[..., CrateHttp]


@pytest.fixture
async def crate(emulator: CrateEmulator) -> CrateEmulator:
    emulator.statements.execute("CREATE TABLE sequences (name TEXT PRIMARY KEY, last_value BIGINT)", [])
    emulator.statements.execute("INSERT INTO sequences (name, last_value) VALUES ('s', 0)", [])
    return emulator


@pytest.fixture
async def make_http() -> AsyncIterator[MakeHttp]:
    made: list[CrateHttp] = []

    def make(*hosts: str, **options: object) -> CrateHttp:
        settings = {"timeout": 0.3, "connect_timeout": 1.0, **options}
        made.append(CrateHttp(hosts, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for http in made:
        await http.close()


def last_value(crate: CrateEmulator) -> int:
    return int(crate.statements.execute(READ, ["s"])["rows"][0][0])


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def two_hosts(crate: CrateEmulator) -> list[str]:
    return [crate.host, f"127.0.0.1:{await crate.listen()}"]


class TestWritesAreSentOnce:
    @pytest.mark.parametrize("hosts", [1, 2])
    @pytest.mark.parametrize("warm", [False, True], ids=["new connection", "kept connection"])
    @pytest.mark.parametrize(
        ("fault", "moved"),
        [
            (Fault("drop"), 5),
            (Fault("drop", applied=False), 0),
            (Fault("reset"), 5),
            (Fault("reset", applied=False), 0),
            (Fault("hang"), 5),
            (Fault("garbage"), 5),
            (Fault("error", status=503, code=5031), 0),
            (Fault("error", status=500, code=5002, message="UnavailableShardsException[…]"), 0),
            (Fault("error", status=502, code=0, message="Bad Gateway"), 0),
            (Fault("error", status=408, code=0, message="Request Timeout"), 0),
            (Fault("error", status=307, code=0, message="Temporary Redirect"), 0),
        ],
        ids=lambda value: f"{value.kind} {value.status} {value.applied}" if isinstance(value, Fault) else "",
    )
    async def test_no_answer_or_a_failure_leaves_the_outcome_unknown(
        self, crate: CrateEmulator, make_http: MakeHttp, fault: Fault, moved: int, hosts: int, warm: bool
    ) -> None:
        http = make_http(*(await two_hosts(crate))[:hosts])
        if warm:
            await http.write(ADD, 100, "s")
        before, sent = last_value(crate), len(crate.writes())
        # A copy: the fault counts down.
        crate.inject(Fault(**vars(fault)))
        with pytest.raises(StoreOutcomeUnknown):
            await http.write(ADD, 5, "s")
        await asyncio.sleep(0.02)
        assert len(crate.writes()) - sent == 1
        assert last_value(crate) - before == moved
        assert await http.write(ADD, 1, "s") == [[before + moved + 1]]

    async def test_a_port_that_speaks_no_http_is_told_so(self, make_http: MakeHttp) -> None:
        async def speak_postgresql(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"E\x00\x00\x00\x10Cerror\x00\n\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(speak_postgresql, "127.0.0.1", 0) as server:
            host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(StoreOutcomeUnknown, match="is not CrateDB's HTTP endpoint"):
                await make_http(host).write(ADD, 5, "s")

    async def test_what_an_operator_must_change_is_refused_with_its_code(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        http = make_http(*await two_hosts(crate))
        with pytest.raises(StoreRefused, match=r"RelationUnknown\[Relation 'doc.nope' unknown\]") as caught:
            await http.write("UPDATE nope SET last_value = 1 WHERE name = 's'")
        assert (caught.value.code, caught.value.http_status) == (4041, 404)
        # Each host once, since one that is just back does not know the tables, and the last again once it is up.
        assert len(crate.writes()) == 3
        with pytest.raises(StoreRefused, match="ColumnUnknownException"):
            await http.write("UPDATE sequences SET nocol = 1 WHERE name = 's'")
        assert len(crate.writes()) == 4

    async def test_the_code_and_status_of_a_failure_are_told(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        crate.inject(Fault("error", status=503, code=5031))
        with pytest.raises(StoreOutcomeUnknown, match="ClusterBlockException") as caught:
            await make_http(crate.host).write(ADD, 1, "s")
        assert (caught.value.code, caught.value.http_status) == (5031, 503)
        assert crate.host in str(caught.value)

    async def test_a_kept_connection_that_the_server_has_closed_is_not_used(self, make_http: MakeHttp) -> None:
        """In the moment between its closing and our noticing the outcome would be unknown; after it nothing is."""
        posts: list[bytes] = []

        async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            posts.append(await reader.readexactly(length))
            content = b'{"cols": ["last_value"], "rows": [[%d]], "rowcount": 1}' % len(posts)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
            writer.close()

        async with await asyncio.start_server(answer_once, "127.0.0.1") as server:
            http = make_http("{}:{}".format(*server.sockets[0].getsockname()))
            for number in (1, 2, 3):
                assert await http.write(ADD, 1, "s") == [[number]]
                await asyncio.sleep(0.02)
            assert len(posts) == 3

    async def test_many_at_once_are_each_applied_once(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        http = make_http(crate.host, max_connections=7)
        rows = await asyncio.gather(*(http.write(ADD, 1, "s") for _ in range(100)))
        assert sorted(row[0][0] for row in rows) == list(range(1, 101))
        assert len(crate.writes()) == 100

    async def test_integers_are_exact(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        http = make_http(crate.host)
        assert await http.write(ADD, 2**63 - 2, "s") == [[2**63 - 2]]
        assert await http.write(ADD, -(2**63) + 3, "s") == [[1]]


class TestFailover:
    async def test_where_no_connection_can_be_made_the_next_host_is_asked(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        http = make_http(closed_port(), crate.host)
        assert await http.write(ADD, 5, "s") == [[5]]
        assert await http.read(READ, "s") == [[5]]
        assert await http.version() == "6.4.3"

    async def test_where_no_host_can_be_reached_nothing_was_sent(self, make_http: MakeHttp) -> None:
        with pytest.raises(StoreUnreachable, match="cannot connect"):
            await make_http(closed_port(), closed_port()).write(ADD, 5, "s")

    async def test_a_host_that_does_not_take_the_connection_is_given_up(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        """TLS is spoken to a server that says nothing: connected by TCP, never ready to be sent to."""

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with await asyncio.start_server(say_nothing, "127.0.0.1") as server:
            silent = "{}:{}".format(*server.sockets[0].getsockname())
            http = make_http(silent, tls=ssl.create_default_context(), connect_timeout=0.1)
            with pytest.raises(StoreUnreachable, match="cannot connect"):
                await http.write(ADD, 5, "s")

    @pytest.mark.parametrize(
        "fault", [Fault("drop"), Fault("reset"), Fault("hang"), Fault("error")], ids=lambda fault: fault.kind
    )
    async def test_a_host_that_failed_is_not_the_first_choice(
        self, crate: CrateEmulator, make_http: MakeHttp, fault: Fault
    ) -> None:
        """P10: the next write goes to the host that answers, and stays there."""
        hosts = await two_hosts(crate)
        ports = [int(host.rpartition(":")[2]) for host in hosts]
        http = make_http(*hosts)
        crate.inject(Fault(**vars(fault)))
        with pytest.raises(StoreOutcomeUnknown):
            await http.write(ADD, 1, "s")
        await http.write(ADD, 1, "s")
        await http.write(ADD, 1, "s")
        assert [port for port, _ in crate.requests] == [ports[0], ports[1], ports[1]]

    async def test_nor_is_one_that_was_silent_until_the_caller_gave_up(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        hosts = await two_hosts(crate)
        http = make_http(*hosts, timeout=60.0)
        crate.inject(Fault("hang"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http.write(ADD, 1, "s"), 0.05)
        await http.write(ADD, 1, "s")
        assert [port for port, _ in crate.requests] == [int(host.rpartition(":")[2]) for host in hosts]

    async def test_calls_under_way_do_not_push_others_to_the_next_host(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        http = make_http(*await two_hosts(crate))
        crate.inject(Fault("delay", seconds=0.05, times=-1))
        await asyncio.gather(*(http.write(ADD, 1, "s") for _ in range(5)))
        assert len({port for port, _ in crate.requests}) == 1

    async def test_the_only_host_is_asked_again(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        http = make_http(crate.host)
        crate.inject(Fault("drop"))
        with pytest.raises(StoreOutcomeUnknown):
            await http.write(ADD, 1, "s")
        assert await http.write(ADD, 1, "s") == [[2]]


class TestReads:
    @pytest.mark.parametrize(
        "fault",
        [
            Fault("drop"),
            Fault("reset"),
            Fault("hang"),
            Fault("garbage"),
            Fault("error", status=500, code=5000, message="NodeNotConnectedException[…]"),
            Fault("error", status=503, code=5031),
        ],
        ids=lambda fault: f"{fault.kind} {fault.status}",
    )
    async def test_a_read_goes_on_to_the_next_host(
        self, crate: CrateEmulator, make_http: MakeHttp, fault: Fault
    ) -> None:
        http = make_http(*await two_hosts(crate))
        crate.inject(Fault(**vars(fault)))
        assert await http.read(READ, "s") == [[0]]
        assert len(crate.requests) == 2

    async def test_when_all_fail_there_is_no_outcome_to_be_unsure_of(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        http = make_http(*await two_hosts(crate))
        crate.inject(Fault("drop", times=2))
        with pytest.raises(StoreUnreachable, match="did not answer"):
            await http.read(READ, "s")
        crate.inject(Fault("error", status=500, code=5005, times=2))
        with pytest.raises(StoreRejected) as caught:
            await http.read(READ, "s")
        assert (caught.value.code, caught.value.http_status) == (5005, 500)

    async def test_a_rejection_is_not_asked_for_twice(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        with pytest.raises(StoreRefused):
            await make_http(*await two_hosts(crate)).read("SELECT nocol FROM sequences WHERE name = 's'")
        assert len(crate.requests) == 1


class Connections:
    """A server that counts its connections, and answers each request by ``answer``."""

    def __init__(self, answer: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> None:
        self.opened = 0
        self.closed = asyncio.Semaphore(0)
        self._answer = answer

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._serve, "127.0.0.1") as server:
            yield "{}:{}".format(*server.sockets[0].getsockname())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"POST"):
                    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
                await self._answer(writer)
        writer.close()
        self.closed.release()


def answering(status: int, content: bytes) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))

    return answer


class TestConnections:
    async def test_one_is_used_again_and_again(self, make_http: MakeHttp) -> None:
        connections = Connections(answering(200, b'{"rows": [[1]]}'))
        async with connections.serve() as host:
            http = make_http(host)
            for _ in range(5):
                assert await http.write(ADD, 1, "s") == [[1]]
            assert connections.opened == 1
            await http.close()
            await asyncio.wait_for(connections.closed.acquire(), 1)

    @pytest.mark.parametrize("status", [400, 401, 404, 409, 500, 503])
    async def test_after_any_error_it_is_dropped(self, make_http: MakeHttp, status: int) -> None:
        """After 400/4004 CrateDB still has the statement queued, and would run it with the next one there."""
        connections = Connections(answering(status, b'{"error": {"code": 4004, "message": "no"}}'))
        async with connections.serve() as host:
            http = make_http(host)
            for number in (1, 2, 3):
                with pytest.raises(StoreFailure):
                    await http.write(ADD, 1, "s")
                await asyncio.wait_for(connections.closed.acquire(), 1)
                assert connections.opened == number

    async def test_cancelling_a_call_closes_its_own_only(self, make_http: MakeHttp) -> None:
        arrived = asyncio.Semaphore(0)
        go_on = asyncio.Event()

        async def wait(writer: asyncio.StreamWriter) -> None:
            arrived.release()
            await go_on.wait()
            await answering(200, b'{"rows": [[1]]}')(writer)

        connections = Connections(wait)
        async with connections.serve() as host:
            http = make_http(host, timeout=60.0)
            calls = [asyncio.create_task(http.write(ADD, 1, "s")) for _ in range(2)]
            for _ in calls:
                await arrived.acquire()
            calls[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await calls[0]
            go_on.set()
            assert await calls[1] == [[1]]
            await asyncio.wait_for(connections.closed.acquire(), 1)
            assert connections.closed.locked()
            assert await http.write(ADD, 1, "s") == [[1]]
            assert connections.opened == 2

    async def test_a_closed_one_takes_no_more(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        http = make_http(crate.host)
        await http.close()
        with pytest.raises(StoreUnreachable, match="closed"):
            await http.write(ADD, 1, "s")
        assert crate.requests == []


class TestCredentials:
    async def test_the_header_is_sent_and_a_wrong_one_is_a_rejection(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        crate.demand("alice", "pässword")
        assert crate.authorization is not None
        assert await make_http(crate.host, authorization=crate.authorization).write(ADD, 1, "s") == [[1]]
        for wrong in (None, "Bearer x"):
            with pytest.raises(StoreRejected, match="password authentication failed") as caught:
                await make_http(crate.host, authorization=wrong).write(ADD, 1, "s")
            assert (caught.value.code, caught.value.http_status) == (None, 401)
        assert last_value(crate) == 1


async def test_rows_that_were_not_removed_are_not_counted(make_http: MakeHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pruner that counted them would find them again at once, for ever."""
    answer = {"cols": [], "results": [{"rowcount": 1}, {"rowcount": 0}, {"rowcount": -2, "error": {"code": 4000}}]}
    async with CrateEmulator() as crate:
        monkeypatch.setattr(crate, "_delete_each", lambda _statement, _arguments: answer)
        http = make_http(crate.host)
        assert await http.write_each("DELETE FROM doc.allocations WHERE request_id = ?", [["a"], ["b"], ["c"]]) == 1
