"""Hosts of a CrateDB cluster that are paused, slow, lost or just back: who gets a write, and that one alone."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, Self

import pytest

from idalloc_server.domain.errors import StoreOutcomeUnknown, StoreRefused, StoreUnavailable, StoreUnreachable
from idalloc_server.domain.records import Revision
from idalloc_server.domain.sequences.model import Sequence
from idalloc_server.store.cratedb.http import CrateHttp, HostTimeouts
from idalloc_server.store.cratedb.store import CrateStore
from tests.support.cratedb.emulator import CrateEmulator

ADD = "UPDATE sequences SET last_value = last_value + ? WHERE name = ? RETURNING last_value"
READ = "SELECT last_value FROM sequences WHERE name = ?"
KNOWN = "SELECT column_name FROM information_schema.key_column_usage"
# A silent host is noticed at once; what answers has all the time that a busy machine takes.
QUICK = HostTimeouts(connect=5.0, silence=0.02, probe=0.1, read=0.1)
PATIENT = HostTimeouts(connect=30.0, silence=0.02, probe=30.0, read=30.0)

State = Literal["serves", "is silent", "has no master", "knows no table", "drops"]


class Node:
    """The HTTP endpoint of a CrateDB node, on a real socket.

    Attributes:
        state: What it does with a request.
        requests: What arrived, in order: ``version``, ``known``, ``read`` or ``write``.
        arrived: Released once for each of them.
        writes_wait: While it is clear, writes wait: CrateDB waits for another node.
        reads_wait: The same for reads by key.
    """

    def __init__(self) -> None:
        self.state: State = "serves"
        self.requests: list[str] = []
        self.arrived = asyncio.Semaphore(0)
        self.writes_wait = asyncio.Event()
        self.reads_wait = asyncio.Event()
        self.writes_wait.set()
        self.reads_wait.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def writes(self) -> int:
        return self.requests.count("write")

    async def start(self) -> Self:
        """Listens, where it listened before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Refuses connections, and resets those that there are; returns when clients on this loop have seen it."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.transport.abort()
        for _ in range(20):
            await asyncio.sleep(0)

    async def wait_for(self, count: int, request: str) -> None:
        """Waits until so many requests of a kind arrived."""
        async with asyncio.timeout(30):
            while self.requests.count(request) < count:
                await self.arrived.acquire()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].split()
                body = await reader.readexactly(int(length[0]) if length else 0)
                status, answer = await self._answer(_kind(body))
                content = json.dumps(answer).encode()
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(content), content))
        self._connections.discard(writer)
        writer.close()

    async def _answer(self, kind: str) -> tuple[int, object]:
        self.requests.append(kind)
        self.arrived.release()
        match self.state:
            case "is silent":
                await asyncio.Event().wait()
            case "drops":
                raise ConnectionError
            case "has no master":
                return 503, {"error": {"code": 5031, "message": "MasterNotDiscoveredException"}}
            case "knows no table" if kind in ("read", "write"):
                return 404, {"error": {"code": 4045, "message": "SchemaUnknownException[Schema 'doc' unknown]"}}
        if kind == "version":
            return 200, {"version": {"number": "6.4.3"}}
        await {"read": self.reads_wait, "write": self.writes_wait}.get(kind, self.reads_wait).wait()
        return 200, {"rows": [] if kind == "known" and self.state == "knows no table" else [[self.writes]]}


def _kind(body: bytes) -> str:
    if not body:
        return "version"
    statement = json.loads(body)["stmt"]
    if statement.startswith(KNOWN):
        return "known"
    return "read" if statement.startswith("SELECT") else "write"


@pytest.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    """Three nodes that serve."""
    made = [await Node().start() for _ in range(3)]
    yield made
    for node in made:
        await node.stop()


@pytest.fixture
async def paused() -> AsyncIterator[str]:
    """The host of a process that was stopped by SIGSTOP: the kernel takes connections for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


MakeHttp = Callable[..., CrateHttp]


@pytest.fixture
async def make_http() -> AsyncIterator[MakeHttp]:
    made: list[CrateHttp] = []

    def make(*hosts: str | Node, **options: object) -> CrateHttp:
        names = [host.host if isinstance(host, Node) else host for host in hosts]
        made.append(CrateHttp(names, **{"timeout": 60.0, "host_timeouts": QUICK, **options}))  # type: ignore[arg-type]
        made[-1].set_probe(f"{KNOWN} WHERE table_schema = ? AND table_name = ?", "doc", "sequences")
        return made[-1]

    yield make
    for http in made:
        await http.close()


async def soon(call: Awaitable[object]) -> object:
    """Awaits what must not take until the call's own timeout of a minute."""
    return await asyncio.wait_for(call, 20)


class TestPausedHosts:
    async def test_a_write_to_a_paused_host_ends_after_3_s(
        self, nodes: list[Node], paused: str, make_http: MakeHttp
    ) -> None:
        """P10: with the default timeouts a paused host costs a refill about 3 seconds and not ``store_timeout``."""
        http = make_http(paused, nodes[0], timeout=40.0, host_timeouts=HostTimeouts())
        begun = asyncio.get_running_loop().time()
        with pytest.raises(StoreOutcomeUnknown, match="did not answer, nor did it answer GET /"):
            await soon(http.write(ADD, 1, "s"))
        assert 2.9 < asyncio.get_running_loop().time() - begun < 20

    async def test_the_next_write_goes_to_a_host_that_serves(
        self, nodes: list[Node], paused: str, make_http: MakeHttp
    ) -> None:
        """P10: after a paused host was left, no write goes there, also where the other one failed once."""
        http = make_http(paused, nodes[0])
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        nodes[0].state = "drops"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        nodes[0].state = "serves"
        assert await soon(http.write(ADD, 1, "s")) == [[3]]

    async def test_a_host_paused_while_it_waits_is_left_too(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P10: the host is asked again for as long as a write has no answer."""
        http = make_http(*nodes, host_timeouts=QUICK._replace(probe=1.0))
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(2, "version")
        nodes[0].state = "is silent"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(write)
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        assert (nodes[0].writes, nodes[1].writes) == (1, 1)

    async def test_a_live_host_keeps_a_write_that_takes_long(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P9: a write that CrateDB holds up until it replaced another node is not given up."""
        http = make_http(*nodes, host_timeouts=PATIENT)
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(5, "version")
        nodes[0].writes_wait.set()
        assert await soon(write) == [[1]]
        assert [node.writes for node in nodes] == [1, 0, 0]

    async def test_a_host_without_a_master_is_left(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P10: a node cut off from the others holds writes for a minute, and answers 503 to ``GET /``."""
        http = make_http(*nodes)
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(1, "write")
        nodes[0].state = "has no master"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(write)
        assert await soon(http.write(ADD, 1, "s")) == [[1]]

    async def test_the_only_host_keeps_its_write(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P9: with nowhere else to go, a silent host keeps the write for all of its time."""
        http = make_http(nodes[0])
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(1, "write")
        nodes[0].state = "is silent"
        await asyncio.sleep(0.3)  # many times ``silence`` and ``probe``
        nodes[0].writes_wait.set()
        assert await soon(write) == [[1]]

    async def test_a_read_goes_on_to_the_next_host(self, nodes: list[Node], paused: str, make_http: MakeHttp) -> None:
        """P10: a read does not wait for ``store_timeout`` at a paused host."""
        http = make_http(paused, nodes[0])
        assert await soon(http.read(READ, "s")) == [[0]]
        assert await soon(http.version()) == "6.4.3"

    async def test_a_read_that_takes_long_is_answered(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """A scan that takes longer than a host's share of the time still ends."""
        http = make_http(*nodes)
        for node in nodes:
            node.reads_wait.clear()
        read = asyncio.create_task(http.read(READ, "s"))
        await nodes[0].wait_for(2, "read")
        nodes[0].reads_wait.set()
        assert await soon(read) == [[0]]
        assert [node.requests.count("read") for node in nodes] == [2, 1, 1]


class TestReturningHosts:
    @pytest.mark.parametrize("state", ["knows no table", "has no master", "is silent"])
    async def test_it_gets_no_write_before_it_serves(
        self, nodes: list[Node], make_http: MakeHttp, state: State
    ) -> None:
        """P9: a node that is back accepts HTTP before it serves; a write there would be burned or wrongly refused."""
        back, other, _ = nodes
        http = make_http(back, other, timeout=1.0)
        await back.stop()
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        await back.start()
        back.state = state
        await other.stop()
        with pytest.raises(StoreUnavailable) as caught:
            await soon(http.write(ADD, 1, "s"))
        assert not isinstance(caught.value, StoreOutcomeUnknown)
        assert back.writes == 0
        back.state = "serves"
        assert await soon(http.write(ADD, 1, "s")) == [[1]]

    async def test_one_that_answers_late_gets_the_write(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """A node that stalls for seconds after its return is waited for where no other one serves."""
        back, other, _ = nodes
        http = make_http(back, other)
        await back.stop()
        await soon(http.write(ADD, 1, "s"))
        await back.start()
        await other.stop()
        back.reads_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await back.wait_for(1, "known")
        await asyncio.sleep(0.3)  # longer than ``probe``
        assert back.writes == 0
        back.reads_wait.set()
        assert await soon(write) == [[1]]

    async def test_a_silent_one_does_not_hold_up_the_next(
        self, nodes: list[Node], paused: str, make_http: MakeHttp
    ) -> None:
        """P10: the host that has never been asked is probed first, and it is paused."""
        http = make_http(nodes[0], paused, nodes[1])
        await soon(http.write(ADD, 1, "s"))
        await nodes[0].stop()
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        assert nodes[0].writes == 1

    async def test_the_only_host_is_probed_when_it_is_back(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P9: nothing is burned at a single host that is not ready, and the error says what is wrong."""
        http = make_http(nodes[0])
        await nodes[0].stop()
        with pytest.raises(StoreUnreachable, match="cannot connect"):
            await soon(http.write(ADD, 1, "s"))
        await nodes[0].start()
        nodes[0].state = "knows no table"
        with pytest.raises(StoreRefused, match="does not know idalloc's tables; restore them"):
            await soon(http.write(ADD, 1, "s"))
        nodes[0].state = "serves"
        assert await soon(http.write(ADD, 1, "s")) == [[1]]

    async def test_an_unknown_table_is_looked_for_elsewhere(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P9: a node that was restarted unnoticed says that the table is unknown; the others know it."""
        http = make_http(*nodes)
        nodes[0].state = "knows no table"
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        assert [node.writes for node in nodes] == [1, 1, 0]

    async def test_a_read_of_an_unknown_table_goes_on(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """The same for a read; where all hosts say so and are up, it is refused."""
        http = make_http(*nodes)
        nodes[0].state = "knows no table"
        assert await soon(http.read(READ, "s")) == [[0]]
        for node in nodes:
            node.state = "knows no table"
        with pytest.raises(StoreRefused, match=r"SchemaUnknownException.*; restore the table"):
            await soon(http.read(READ, "s"))


class TestPreference:
    async def test_a_host_that_serves_is_sent_the_write_alone(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P10: the healthy path costs one request."""
        http = make_http(*nodes)
        for _ in range(5):
            await soon(http.write(ADD, 1, "s"))
        assert [node.requests for node in nodes] == [["write"] * 5, [], []]

    async def test_the_host_that_answered_last_is_preferred(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P10: a host that is back is not tried again while another one serves."""
        http = make_http(*nodes[:2])
        await nodes[0].stop()
        await soon(http.write(ADD, 1, "s"))
        await nodes[0].start()
        for _ in range(5):
            await soon(http.write(ADD, 1, "s"))
        assert nodes[0].requests == []
        assert nodes[1].writes == 6

    async def test_connections_of_a_lost_host_are_not_kept(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P9: a write over a connection from before the loss would be burned once the host is back."""
        http = make_http(*nodes[:2])
        nodes[0].writes_wait.clear()
        writes = [asyncio.create_task(http.write(ADD, 1, "s")) for _ in range(3)]
        await nodes[0].wait_for(3, "write")
        nodes[0].writes_wait.set()
        await asyncio.gather(*writes)
        nodes[0].state = "drops"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        assert not any(host.idle for host in http._hosts)


class TestConditionalWrites:
    @pytest.mark.parametrize("what", ["give_back", "revise"])
    async def test_they_never_go_to_a_second_host(self, nodes: list[Node], make_http: MakeHttp, what: str) -> None:
        """P2, P5: what depends on the row's state is sent to the first choice, or to nobody."""
        store = CrateStore(make_http(*nodes[:2]), "doc", "crate://")
        change = Revision(Sequence(), at_least=0, by="token", at=0.0, deleted=True)  # this kind needs no read first
        calls = {
            "give_back": store.give_back("s", 5, (1, 1, 1)),
            "revise": store.revise("s", 0, change),
        }
        await nodes[0].stop()
        with pytest.raises(StoreUnreachable, match="cannot connect"):
            await soon(calls.pop(what))
        for call in calls.values():
            call.close()
        assert nodes[1].requests == []

    async def test_a_silent_host_does_not_hold_them_up(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """P9: before anything is sent, all hosts are probed; the write goes to one that serves, and to no other."""
        http = make_http(*nodes[:2])
        nodes[0].state = "drops"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        await soon(http.read(READ, "s"))
        nodes[1].state = "is silent"  # the preferred one, which was not probed yet
        nodes[0].state = "serves"
        for _ in range(3):
            await soon(http.write(ADD, 1, "s", may_fail_over=False))
        assert nodes[0].writes == 4
        assert nodes[1].writes == 0

    async def test_a_read_that_is_cancelled_leaves_its_host(self, nodes: list[Node], make_http: MakeHttp) -> None:
        """A caller whose time is over says nothing of the host: writes still go there, without a probe."""
        http = make_http(*nodes[:2], host_timeouts=PATIENT)
        await soon(http.write(ADD, 1, "s"))
        nodes[0].reads_wait.clear()
        read = asyncio.create_task(http.read(READ, "s"))
        await nodes[0].wait_for(1, "read")
        read.cancel()
        await asyncio.gather(read, return_exceptions=True)
        nodes[0].reads_wait.set()
        await soon(http.write(ADD, 1, "s"))
        assert nodes[0].requests == ["write", "read", "write"]
        assert nodes[1].requests == []

    async def test_a_grant_goes_to_the_next_host(self, emulator: CrateEmulator, nodes: list[Node]) -> None:
        """P10: what is relative, and was sent to nobody, goes on."""
        store = CrateStore(CrateHttp([nodes[0].host, emulator.host], timeout=60.0), "doc", "crate://")
        await nodes[0].stop()
        await store.open()
        assert await soon(store.grant("s", 5, 1000)) is None
        await store.close()
