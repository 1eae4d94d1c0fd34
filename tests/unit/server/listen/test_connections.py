"""Connections of HTTP and the X Protocol count from accept, for all and for their address."""

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import ClassVar

import pytest
import structlog

from idalloc_server.domain.errors import StartRefused
from idalloc_server.files import descriptors
from idalloc_server.listen import connections, open_files
from idalloc_server.listen.connections import Accepted, ConnectionLimits, Listener
from idalloc_server.settings.model import Settings
from tests.support.waiting import until


class Served:
    """Serves connections until their clients leave; one that sends ``b`` is busy from then on."""

    def __init__(self) -> None:
        self.open: list[str] = []

    async def __call__(self, accepted: Accepted) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted.socket)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        self.open.append(accepted.peer)
        writer.write(b"hello")
        try:
            while data := await reader.read(1):
                accepted.is_silent = False
                accepted.set_waiting(data != b"b")
                writer.write(data)
        finally:
            self.open.remove(accepted.peer)
            writer.transport.abort()


@asynccontextmanager
async def listening(limits: ConnectionLimits, refusal: bytes = b"") -> AsyncIterator[Listener]:
    listener = Listener("http_listen", "127.0.0.1:0", limits, Served(), refusal=refusal)
    listener.start()
    try:
        yield listener
    finally:
        await listener.close()


class Client:
    """A client at an address of loopback."""

    opened: ClassVar[list["Client"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.opened.append(self)

    @classmethod
    async def connect(cls, listener: Listener, source: str = "127.0.0.1") -> "Client":
        host, _, port = listener.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), local_addr=(source, 0)))

    async def ask(self, data: bytes) -> bytes:
        """Send a byte after the greeting; return the reply, or nothing if the connection ended."""
        try:
            self.writer.write(data)
            return await asyncio.wait_for(self.reader.readexactly(1), 30)
        except (OSError, asyncio.IncompleteReadError):
            return b""

    async def greeting(self) -> bytes:
        """Return up to five bytes that the server sends first."""
        try:
            return await asyncio.wait_for(self.reader.readexactly(5), 30)
        except asyncio.IncompleteReadError as error:
            return error.partial
        except OSError:
            return b""


@pytest.fixture(autouse=True)
async def no_client_is_left() -> AsyncIterator[None]:
    """Close all clients of a test."""
    yield
    for client in Client.opened:
        client.writer.transport.abort()
    Client.opened.clear()


async def connected(listener: Listener, *sources: str) -> list[Client]:
    clients = [await Client.connect(listener, source) for source in sources]
    assert [await client.greeting() for client in clients] == [b"hello"] * len(clients)
    return clients


@pytest.mark.parametrize(
    ("limits", "sources"),
    [(ConnectionLimits(2, 2), ["127.0.0.2", "127.0.0.3", "127.0.0.4"]), (ConnectionLimits(9, 2), ["127.0.0.2"] * 3)],
    ids=["all", "of an address"],
)
async def test_the_connection_that_waits_longest_makes_room(limits: ConnectionLimits, sources: list[str]) -> None:
    """At a limit a new client is served, and the one that waits longest is ended."""
    async with listening(limits) as listener:
        first, second, third = await connected(listener, *sources)
        assert await first.reader.read() == b""
        assert [await each.ask(b"x") for each in (second, third)] == [b"x", b"x"]
        await until(lambda: listener.connection_count == 2)


@pytest.mark.parametrize("limits", [ConnectionLimits(2, 2), ConnectionLimits(9, 2)], ids=["all", "of an address"])
async def test_a_silent_connection_makes_room_first(limits: ConnectionLimits) -> None:
    """A client that has sent something stays while others at its address send nothing."""
    async with listening(limits) as listener:
        first, silent = await connected(listener, "127.0.0.2", "127.0.0.2")
        assert await first.ask(b"a") == b"a"
        for _ in range(5):
            [new] = await connected(listener, "127.0.0.2")
            assert await silent.ask(b"a") == b""
            silent = new
        assert await first.ask(b"a") == b"a"


async def test_at_the_limit_of_all_the_largest_address_makes_room() -> None:
    """Strangers that connect often end their own connections, none of an address with fewer."""
    async with listening(ConnectionLimits(5, 4)) as listener:
        [honest] = await connected(listener, "127.0.0.2")
        for _ in range(10):
            await connected(listener, *["127.0.0.3", "127.0.0.4"])
        assert await honest.ask(b"x") == b"x"
        assert listener.connection_count <= 6  # an ended one ends soon


async def test_a_client_that_sends_keeps_its_place() -> None:
    """A client that sends keeps its place in the queue: it is ended before later ones."""
    async with listening(ConnectionLimits(2, 2)) as listener:
        first, second = await connected(listener, "127.0.0.2", "127.0.0.3")
        assert [await each.ask(b"x") for each in (second, first)] == [b"x", b"x"]
        [third] = await connected(listener, "127.0.0.4")
        assert await first.reader.read() == b""
        assert [await each.ask(b"x") for each in (second, third)] == [b"x", b"x"]


async def test_busy_connections_stay_and_new_ones_are_refused() -> None:
    """If no connection waits, a new one gets the refusal; it is served once one has ended."""
    async with listening(ConnectionLimits(2, 2), refusal=b"full!") as listener:
        clients = await connected(listener, "127.0.0.1", "127.0.0.1")
        assert [await client.ask(b"b") for client in clients] == [b"b", b"b"]
        assert await (await Client.connect(listener)).greeting() == b"full!"
        clients[0].writer.close()
        await until(lambda: listener.connection_count == 1)
        await connected(listener, "127.0.0.1")


async def test_an_address_at_its_limit_leaves_others_alone() -> None:
    """A flood of one address ends none of another's connections, although those wait longer."""
    async with listening(ConnectionLimits(9, 3)) as listener:
        [honest] = await connected(listener, "127.0.0.2")
        await connected(listener, *["127.0.0.3"] * 20)
        assert await honest.ask(b"x") == b"x"
        await until(lambda: listener.connection_count == 4)


async def test_a_trusted_connection_does_not_count_for_its_address() -> None:
    """Logged-in clients may share an address: its limit is for the others."""
    async with listening(ConnectionLimits(9, 2), refusal=b"full!") as listener:
        await connected(listener, *["127.0.0.2"] * 2)
        for each in list(listener._tasks):
            each.set_waiting(False)
        assert await (await Client.connect(listener, "127.0.0.2")).greeting() == b"full!"
        for each in list(listener._tasks):
            listener.set_trusted(each, True)
        await connected(listener, *["127.0.0.2"] * 2)
        assert listener.connection_count == 4
        listener.set_trusted(next(iter(listener._tasks)), False)
        await connected(listener, "127.0.0.2")
        await until(lambda: listener.connection_count == 4)


async def test_a_flood_keeps_the_count_right() -> None:
    """Clients that leave at any time, and many at once, leave no count and no task behind."""
    async with listening(ConnectionLimits(5, 3)) as listener:
        for _ in range(10):
            clients = [await Client.connect(listener, f"127.0.0.{number}") for number in range(2, 9)]
            for client in clients:
                client.writer.transport.abort()
        await until(lambda: listener.connection_count == 0)
        await connected(listener, *["127.0.0.1"] * 3)
        assert listener.connection_count == 3


async def test_refusals_are_logged_once_a_second_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each reason has the number of connections."""
    monkeypatch.setattr(connections, "_LOG_SECONDS", 0.1)
    with structlog.testing.capture_logs() as lines:
        async with listening(ConnectionLimits(1, 1)) as listener:
            await connected(listener, *["127.0.0.1"] * 4)
            await until(lambda: lines)
    assert {(line["reason"], line["port"]) for line in lines} == {("ended", "http_listen")}
    assert sum(line["count"] for line in lines) == 3


async def test_a_fault_is_logged_without_the_text_of_its_error() -> None:
    """A fault of the server ends only its connection; the log shows nothing of the client."""

    async def fail(accepted: Accepted) -> None:
        raise ValueError("the client's secret")

    with structlog.testing.capture_logs() as lines:
        listener = Listener("http_listen", "127.0.0.1:0", ConnectionLimits(1, 1), fail)
        listener.start()
        assert await (await Client.connect(listener)).greeting() == b""
        await listener.close()
    [line] = lines
    assert (line["event"], line["error"], "secret" in str(line)) == ("connection_failed", "ValueError", False)
    assert any("in fail" in place or place.endswith(" fail") for place in line["places"])


async def test_all_addresses_of_a_name_are_served_at_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's addresses are all served; one that the machine lacks is skipped."""
    addresses = "127.0.0.1", "127.0.0.1", "127.0.0.9", "192.0.2.1"  # one twice, as by two lines of /etc/hosts
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    found.append((socket.AF_APPLETALK, socket.SOCK_STREAM, 6, "", ("::1", 0)))  # a family that the kernel lacks
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    listener = Listener("http_listen", "somewhere:0", ConnectionLimits(5, 5), Served())
    listener.start()
    monkeypatch.undo()
    port = int(listener.address.removeprefix("somewhere:"))
    for address in ("127.0.0.1", "127.0.0.9"):
        reader, writer = await asyncio.open_connection(address, port)
        assert await reader.readexactly(5) == b"hello"
        writer.close()
    await listener.close()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found[3:4])
    with pytest.raises(StartRefused, match="http_listen: cannot serve on nowhere:0"):
        Listener("http_listen", "nowhere:0", ConnectionLimits(5, 5), Served()).start()


@pytest.fixture
def exhausted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make accept fail for lack of a descriptor, unless one was lent."""
    state = {"full": False, "lent": False}
    accept = socket.socket.accept

    class Lending(descriptors.SpareDescriptors):
        @contextmanager
        def lend(self, count: int = 1) -> Iterator[None]:
            state["lent"] = True
            try:
                yield
            finally:
                state["lent"] = False

    def accept_or_fail(self: socket.socket) -> object:
        if state["full"] and not state["lent"]:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(connections, "spare", Lending())
    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
    return lambda: state.update(full=True)


@pytest.mark.parametrize(("uses_reserve", "greeting"), [(True, b"hello"), (False, b"full!")])
async def test_at_the_limit_of_open_files_only_probes_are_served(
    exhausted: Callable[[], None], uses_reserve: bool, greeting: bytes
) -> None:
    """Without descriptors a probe gets one of the reserve; any other connection is refused."""
    async with listening(ConnectionLimits(5, 5, uses_reserve), refusal=b"full!") as listener:
        exhausted()
        assert await (await Client.connect(listener)).greeting() == greeting


async def test_without_a_reserve_the_port_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """While accept fails the event loop is idle; later the waiting client is served."""
    attempts = 0
    accept = socket.socket.accept

    def fail_at_first(self: socket.socket) -> object:
        nonlocal attempts
        attempts += 1
        if attempts <= 4:  # each attempt is two: with the reserve, too
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(connections, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(socket.socket, "accept", fail_at_first)
    async with listening(ConnectionLimits(5, 5)) as listener:
        assert await (await Client.connect(listener)).greeting() == b"hello"
    assert 5 <= attempts <= 7


def test_the_reserve_lends_and_fills_again() -> None:
    """A lent descriptor is free for the block, and held again after it; none before ``fill``."""
    spare = descriptors.SpareDescriptors(4)
    with spare.lend():
        pass
    assert spare._held == []
    spare.fill()
    with spare.lend(3):
        assert len(spare._held) == 1
        spare.fill()
        assert len(spare._held) == 1
    assert len(spare._held) == 4
    spare.close()
    assert spare._held == []


class PortSettings(Settings):
    """The settings of a server with a port of another package."""

    other_listen: str = ""


def test_grpc_leaves_descriptors_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """grpcio gets the descriptors that all else leaves, but at least half of a low limit."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    plain = Settings()
    others = PortSettings(http_listen="127.0.0.1:0", other_listen="127.0.0.1:0", probe_listen="127.0.0.1:0")
    own = open_files.OWN + descriptors.SPARE
    assert open_files.most_grpc_connections(plain) == 1000 - own
    assert open_files.most_port_connections() == 250
    assert open_files.most_grpc_connections(others) == 500
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**20, 2**20))
    assert open_files.most_port_connections() == 4096
    assert open_files.most_grpc_connections(others) == 2**20 - own - 200 - 4096 - 16
