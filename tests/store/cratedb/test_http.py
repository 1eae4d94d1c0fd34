"""The HTTP transport to CrateDB: every write is sent once."""

import asyncio
import json
import socket
import ssl

import pytest

from idalloc_server.domain.errors import StoreAnsweredError, StoreOutcomeUnknown, StoreRefused, StoreUnreachable
from tests.store.cratedb.conftest import ADD, READ, MakeHttp, last_value
from tests.support.cratedb.emulator import CrateEmulator, Fault
from tests.support.cratedb.statements import without_ties
from tests.support.waiting import hold_for_async, settle


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def two_hosts(crate: CrateEmulator) -> list[str]:
    return [crate.host, f"127.0.0.1:{await crate.listen()}"]


class TestWrites:
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
    async def test_a_lost_answer_is_unknown_and_never_retried(
        self, crate: CrateEmulator, make_http: MakeHttp, fault: Fault, moved: int, hosts: int, warm: bool
    ) -> None:
        """P1: a write without a clear answer is sent once, and its outcome is unknown."""
        http = make_http(*(await two_hosts(crate))[:hosts])
        if warm:
            await http.write(ADD, 100, "s")
        before, sent = last_value(crate), len(crate.writes())
        # A copy: the fault counts down.
        crate.inject(Fault(**vars(fault)))
        with pytest.raises(StoreOutcomeUnknown):
            await http.write(ADD, 5, "s")
        await settle()
        assert len(crate.writes()) - sent == 1
        assert last_value(crate) - before == moved
        assert await http.write(ADD, 1, "s") == [[before + moved + 1]]

    async def test_a_port_without_http_is_named(self, make_http: MakeHttp) -> None:
        """The error of a port that does not speak HTTP names CrateDB's port."""

        async def speak_postgresql(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"E\x00\x00\x00\x10Cerror\x00\n\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(speak_postgresql, "127.0.0.1", 0) as server:
            host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(StoreOutcomeUnknown, match="is not CrateDB's HTTP endpoint"):
                await make_http(host).write(ADD, 5, "s")

    async def test_a_refusal_has_the_code_and_the_status(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """STORE_REFUSED: the error has CrateDB's message, code and HTTP status."""
        http = make_http(*await two_hosts(crate))
        with pytest.raises(StoreRefused, match=r"RelationUnknown\[Relation 'doc.nope' unknown\]") as caught:
            await http.write("UPDATE nope SET last_value = 1 WHERE name = 's'")
        assert (caught.value.code, caught.value.http_status) == (4041, 404)
        # To each host, as a starting one knows no tables, and to the last one after its probe.
        assert len(crate.writes()) == 3
        with pytest.raises(StoreRefused, match="ColumnUnknownException"):
            await http.write("UPDATE sequences SET nocol = 1 WHERE name = 's'")
        assert len(crate.writes()) == 4

    async def test_an_unknown_outcome_has_the_code_and_the_status(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        """STORE_UNAVAILABLE: the error has the host and CrateDB's message, code and HTTP status."""
        crate.inject(Fault("error", status=503, code=5031))
        with pytest.raises(StoreOutcomeUnknown, match="ClusterBlockException") as caught:
            await make_http(crate.host).write(ADD, 1, "s")
        assert (caught.value.code, caught.value.http_status) == (5031, 503)
        assert crate.host in str(caught.value)

    async def test_a_connection_that_the_server_closed_is_not_used(self, make_http: MakeHttp) -> None:
        """P9: a write over a closed connection would have an unknown outcome."""
        posts: list[bytes] = []

        async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            posts.append(await reader.readexactly(length))
            nonce = without_ties(json.loads(posts[-1])["stmt"])[1]
            answer = {"cols": [f"'{nonce}'", "last_value"], "rows": [[nonce, len(posts)]], "rowcount": 1}
            content = json.dumps(answer).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content))
            writer.close()

        async with await asyncio.start_server(answer_once, "127.0.0.1") as server:
            http = make_http("{}:{}".format(*server.sockets[0].getsockname()))
            for number in (1, 2, 3):
                assert await http.write(ADD, 1, "s") == [[number]]
                await hold_for_async(0.02, "the connection ends")
            assert len(posts) == 3

    async def test_concurrent_writes_are_each_applied_once(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """P1: 100 concurrent writes over 7 connections are each sent and applied once."""
        http = make_http(crate.host, max_connections=7)
        rows = await asyncio.gather(*(http.write(ADD, 1, "s") for _ in range(100)))
        assert sorted(row[0][0] for row in rows) == list(range(1, 101))
        assert len(crate.writes()) == 100

    async def test_64_bit_integers_are_exact(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """P1: integers of 64 bits are sent and received without rounding."""
        http = make_http(crate.host)
        assert await http.write(ADD, 2**63 - 2, "s") == [[2**63 - 2]]
        assert await http.write(ADD, -(2**63) + 3, "s") == [[1]]


class TestFailover:
    async def test_an_unreachable_host_is_skipped(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """P10: if a connection fails, the statement goes to the next host."""
        http = make_http(closed_port(), crate.host)
        assert await http.write(ADD, 5, "s") == [[5]]
        assert await http.read(READ, "s") == [[5]]
        assert await http.send_read(http.ALIVE) == "6.4.3"

    async def test_no_reachable_host_is_unreachable(self, make_http: MakeHttp) -> None:
        """P9: if no host can be reached, nothing was sent and nothing is burned."""
        with pytest.raises(StoreUnreachable, match="cannot connect"):
            await make_http(closed_port(), closed_port()).write(ADD, 5, "s")

    async def test_a_tls_handshake_has_a_timeout(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """P10: a host that accepts TCP but never answers the TLS handshake is unreachable."""

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
    async def test_a_failed_host_is_demoted(self, crate: CrateEmulator, make_http: MakeHttp, fault: Fault) -> None:
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

    async def test_a_host_is_demoted_when_its_write_is_cancelled(
        self, crate: CrateEmulator, make_http: MakeHttp
    ) -> None:
        """P10: a host that was silent until the caller's timeout is not the preferred host."""
        hosts = await two_hosts(crate)
        http = make_http(*hosts, timeout=60.0)
        crate.inject(Fault("hang"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http.write(ADD, 1, "s"), 0.05)
        await http.write(ADD, 1, "s")
        assert [port for port, _ in crate.requests] == [int(host.rpartition(":")[2]) for host in hosts]

    async def test_concurrent_writes_stay_on_one_host(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """P10: slow concurrent writes do not demote a host."""
        http = make_http(*await two_hosts(crate))
        crate.inject(Fault("delay", seconds=0.05, times=-1))
        await asyncio.gather(*(http.write(ADD, 1, "s") for _ in range(5)))
        assert len({port for port, _ in crate.requests}) == 1

    async def test_the_only_host_is_used_after_a_failure(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """P10: the only host gets the next write after a failure."""
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
    async def test_a_read_fails_over(self, crate: CrateEmulator, make_http: MakeHttp, fault: Fault) -> None:
        """P10: a read that fails on one host goes to the next one."""
        http = make_http(*await two_hosts(crate))
        crate.inject(Fault(**vars(fault)))
        assert await http.read(READ, "s") == [[0]]
        assert len(crate.requests) == 2

    async def test_a_failed_read_is_never_unknown(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """A read changes nothing: it is unreachable or rejected, never of unknown outcome."""
        http = make_http(*await two_hosts(crate))
        crate.inject(Fault("drop", times=2))
        with pytest.raises(StoreUnreachable, match="did not answer"):
            await http.read(READ, "s")
        crate.inject(Fault("error", status=500, code=5005, times=2))
        with pytest.raises(StoreAnsweredError) as caught:
            await http.read(READ, "s")
        assert (caught.value.code, caught.value.http_status) == (5005, 500)

    async def test_a_refused_read_does_not_fail_over(self, crate: CrateEmulator, make_http: MakeHttp) -> None:
        """A read that CrateDB refuses is sent to one host only."""
        with pytest.raises(StoreRefused):
            await make_http(*await two_hosts(crate)).read("SELECT nocol FROM sequences WHERE name = 's'")
        assert len(crate.requests) == 1


async def test_only_changed_rows_are_counted(make_http: MakeHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: write_each counts rows that it changed; failed ones would be found again for ever."""
    answer = {"cols": [], "results": [{"rowcount": 1}, {"rowcount": 0}, {"rowcount": -2, "error": {"code": 4000}}]}
    async with CrateEmulator() as crate:
        monkeypatch.setattr(crate, "_delete_each", lambda _statement, _arguments: answer)
        http = make_http(crate.host)
        assert await http.write_each("DELETE FROM doc.allocations WHERE request_id = ?", [["a"], ["b"], ["c"]]) == 1
