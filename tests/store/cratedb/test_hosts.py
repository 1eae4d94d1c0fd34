"""Failover between the hosts of a CrateDB cluster that are paused, slow, lost or restarted."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable

import pytest

from idalloc_server.domain.errors import StoreOutcomeUnknown, StoreRefused, StoreUnavailable, StoreUnreachable
from idalloc_server.domain.sequences.sequence import Sequence
from idalloc_server.domain.store.records import RowChange
from idalloc_server.store.cluster.http_transport import HostTimeouts
from idalloc_server.store.cratedb.http import CrateHttp
from idalloc_server.store.cratedb.store import CrateStore
from tests.store.cratedb.conftest import ADD, READ, MakeHttp
from tests.support.cratedb.emulator import CrateEmulator
from tests.support.cratedb.fake_node import PROBE, FakeNode, State
from tests.support.waiting import hold_for_async

# A silent host is noticed at once. A busy machine has enough time to answer.
QUICK = HostTimeouts(connect=5.0, silence=0.02, probe=0.1, read=0.1)
PATIENT = HostTimeouts(connect=30.0, silence=0.02, probe=30.0, read=30.0)


@pytest.fixture
async def nodes() -> AsyncIterator[list[FakeNode]]:
    """Three nodes that serve."""
    made = [await FakeNode().start() for _ in range(3)]
    yield made
    for node in made:
        await node.stop()


@pytest.fixture
async def paused() -> AsyncIterator[str]:
    """A host whose process is stopped by SIGSTOP: the kernel still accepts its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


@pytest.fixture
async def make_http() -> AsyncIterator[MakeHttp]:
    made: list[CrateHttp] = []

    def make(*hosts: str | FakeNode, **options: object) -> CrateHttp:
        names = [host.host if isinstance(host, FakeNode) else host for host in hosts]
        made.append(CrateHttp(names, **{"timeout": 60.0, "host_timeouts": QUICK, **options}))  # type: ignore[arg-type]
        made[-1].serving = (f"{PROBE} WHERE table_schema = ? AND table_name = ?", ("doc", "sequences"))
        return made[-1]

    yield make
    for http in made:
        await http.close()


async def soon(call: Awaitable[object]) -> object:
    """Await a call that must end long before its own timeout of a minute."""
    return await asyncio.wait_for(call, 20)


class TestPausedHosts:
    async def test_a_write_to_a_paused_host_ends_after_3_s(
        self, nodes: list[FakeNode], paused: str, make_http: MakeHttp
    ) -> None:
        """P10: by default a paused host costs a refill about 3 s, not ``store_timeout``."""
        http = make_http(paused, nodes[0], timeout=40.0, host_timeouts=HostTimeouts())
        begun = asyncio.get_running_loop().time()
        with pytest.raises(StoreOutcomeUnknown, match="did not answer, nor did it answer GET /"):
            await soon(http.write(ADD, 1, "s"))
        assert 2.9 < asyncio.get_running_loop().time() - begun < 20

    async def test_the_next_write_goes_to_a_host_that_serves(
        self, nodes: list[FakeNode], paused: str, make_http: MakeHttp
    ) -> None:
        """P10: no write returns to a demoted host while another serves, even if it failed once."""
        http = make_http(paused, nodes[0])
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        nodes[0].state = "drops"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        nodes[0].state = "serves"
        assert await soon(http.write(ADD, 1, "s")) == [[3]]

    async def test_a_host_that_pauses_during_a_write_is_demoted(
        self, nodes: list[FakeNode], make_http: MakeHttp
    ) -> None:
        """P10: a host is checked for as long as a write has no answer."""
        http = make_http(*nodes, host_timeouts=QUICK._replace(probe=1.0))
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(2, "version")
        nodes[0].state = "is silent"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(write)
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        assert (nodes[0].writes, nodes[1].writes) == (1, 1)

    async def test_a_slow_write_on_a_live_host_completes(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P9: a write that CrateDB delays until it replaced another node is not abandoned."""
        http = make_http(*nodes, host_timeouts=PATIENT)
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(5, "version")
        nodes[0].writes_wait.set()
        assert await soon(write) == [[1]]
        assert [node.writes for node in nodes] == [1, 0, 0]

    async def test_a_host_without_a_master_is_demoted(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P10: a node that is cut off delays writes for a minute, and answers 503 to ``GET /``."""
        http = make_http(*nodes)
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(1, "write")
        nodes[0].state = "has no master"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(write)
        assert await soon(http.write(ADD, 1, "s")) == [[1]]

    async def test_the_only_host_gets_the_full_timeout(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P9: a write on the only host is not abandoned before its timeout."""
        http = make_http(nodes[0])
        nodes[0].writes_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await nodes[0].wait_for(1, "write")
        nodes[0].state = "is silent"
        await hold_for_async(0.3, "many times ``silence`` and ``probe``")
        nodes[0].writes_wait.set()
        assert await soon(write) == [[1]]

    async def test_a_read_fails_over(self, nodes: list[FakeNode], paused: str, make_http: MakeHttp) -> None:
        """P10: a read does not wait for ``store_timeout`` at a paused host."""
        http = make_http(paused, nodes[0], host_timeouts=QUICK._replace(read=1.0))
        assert await soon(http.read(READ, "s")) == [[0]]
        assert await soon(http.send_read(http.ALIVE)) == "6.4.3"

    async def test_a_slow_read_completes(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """A scan that takes longer than the timeout of one host still completes."""
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
    async def test_a_restarted_host_gets_no_write_before_it_serves(
        self, nodes: list[FakeNode], make_http: MakeHttp, state: State
    ) -> None:
        """P9: a restarted node accepts HTTP before it serves; a write would burn or be refused."""
        back, other, _ = nodes
        http = make_http(back, other, timeout=4.0)  # a busy machine answers a probe within 2 s
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

    async def test_a_slow_probe_may_win(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """A restarted node that stalls for seconds gets the write if no other host serves."""
        back, other, _ = nodes
        http = make_http(back, other)
        await back.stop()
        await soon(http.write(ADD, 1, "s"))
        await back.start()
        await other.stop()
        back.reads_wait.clear()
        write = asyncio.create_task(http.write(ADD, 1, "s"))
        await back.wait_for(1, "probe")
        await hold_for_async(0.3, "longer than ``probe``")
        assert back.writes == 0
        back.reads_wait.set()
        assert await soon(write) == [[1]]

    async def test_a_silent_host_does_not_delay_the_next_probe(
        self, nodes: list[FakeNode], paused: str, make_http: MakeHttp
    ) -> None:
        """P10: a paused host that is probed first does not delay the other hosts."""
        http = make_http(nodes[0], paused, nodes[1])
        await soon(http.write(ADD, 1, "s"))
        await nodes[0].stop()
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        assert nodes[0].writes == 1

    async def test_the_only_host_is_probed_after_a_restart(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P9: nothing is burned on a single host that is not ready; the error gives the reason."""
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

    async def test_a_write_to_an_unknown_table_fails_over(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P9: a restarted node does not know the table yet; the write goes to the next host."""
        http = make_http(*nodes, host_timeouts=PATIENT)
        nodes[0].state = "knows no table"
        assert await soon(http.write(ADD, 1, "s")) == [[1]]
        assert [node.writes for node in nodes] == [1, 1, 0]

    async def test_a_read_of_an_unknown_table_fails_over(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """A read of an unknown table goes to the next host; it is refused if no host knows it."""
        http = make_http(*nodes, host_timeouts=PATIENT)
        nodes[0].state = "knows no table"
        assert await soon(http.read(READ, "s")) == [[0]]
        for node in nodes:
            node.state = "knows no table"
        with pytest.raises(StoreRefused, match=r"SchemaUnknownException.*; restore the table"):
            await soon(http.read(READ, "s"))


class TestPreference:
    async def test_a_healthy_host_gets_one_request_a_write(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P10: a write to a healthy host costs one request."""
        http = make_http(*nodes)
        for _ in range(5):
            await soon(http.write(ADD, 1, "s"))
        assert [node.requests for node in nodes] == [["write"] * 5, [], []]

    async def test_the_host_that_answered_last_is_preferred(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P10: a restarted host gets no request while another host serves."""
        http = make_http(*nodes[:2])
        await nodes[0].stop()
        await soon(http.write(ADD, 1, "s"))
        await nodes[0].start()
        for _ in range(5):
            await soon(http.write(ADD, 1, "s"))
        assert nodes[0].requests == []
        assert nodes[1].writes == 6

    async def test_connections_of_a_failed_host_are_closed(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """P9: a write over a connection from before the failure would be burned."""
        http = make_http(*nodes[:2])
        nodes[0].writes_wait.clear()
        writes = [asyncio.create_task(http.write(ADD, 1, "s")) for _ in range(3)]
        await nodes[0].wait_for(3, "write")
        nodes[0].writes_wait.set()
        await asyncio.gather(*writes)
        nodes[0].state = "drops"
        with pytest.raises(StoreOutcomeUnknown):
            await soon(http.write(ADD, 1, "s"))
        assert not any(host.idle for host in http._hosts.order)


class TestConditionalWrites:
    @pytest.mark.parametrize("what", ["give_back", "revise"])
    async def test_a_conditional_write_never_fails_over(
        self, nodes: list[FakeNode], make_http: MakeHttp, what: str
    ) -> None:
        """P2, P5: a write that depends on the state of the row is sent to one host at most."""
        store = CrateStore("crate://", make_http(*nodes[:2]), "doc")
        change = RowChange(Sequence(), at_least=0, by="token", at=0.0, deleted=True)  # this kind needs no read first
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

    async def test_a_conditional_write_goes_to_a_host_that_serves(
        self, nodes: list[FakeNode], make_http: MakeHttp
    ) -> None:
        """P9: a conditional write is sent only to a host that passed a probe."""
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

    async def test_a_cancelled_read_does_not_demote_its_host(self, nodes: list[FakeNode], make_http: MakeHttp) -> None:
        """A cancelled read does not change the preferred host, and causes no probe."""
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

    async def test_a_grant_fails_over(self, emulator: CrateEmulator, nodes: list[FakeNode]) -> None:
        """P10: a grant that was not sent goes to the next host."""
        store = CrateStore("crate://", CrateHttp([nodes[0].host, emulator.host], timeout=60.0), "doc")
        await nodes[0].stop()
        await store.open()
        assert await soon(store.grant("s", 5, 1000)) is None
        await store.close()
