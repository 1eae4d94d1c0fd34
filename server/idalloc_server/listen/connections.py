"""Accepts, counts and limits the connections of the HTTP and X Protocol ports.

grpcio and native accept the connections of gRPC themselves.
"""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import structlog

from idalloc_server.auth.rejected_callers import host_of
from idalloc_server.files.descriptors import spare
from idalloc_server.listen.held_address import cannot_bind
from idalloc_server.telemetry.logs import failure_fields

# The most connections of the HTTP port, and of the port of probes.
MAX_HTTP_CONNECTIONS = 200
MAX_PROBE_CONNECTIONS = 16
# How long a TLS handshake may take, and how long the server waits for a client's first message or
# for the headers of a request.
HANDSHAKE_SECONDS = HEADER_SECONDS = 5.0
# How many connections the kernel holds until they are accepted. Of 5,000 at once a queue of 100
# lost 21.
_BACKLOG = 1_024
# How many connections are accepted before other tasks of the event loop run.
_ACCEPTS_AT_ONCE = 16
# The pause after an accept that failed, and how often the log counts the refused connections.
_PAUSE_SECONDS = 0.1
_LOG_SECONDS = 1.0
_AT_LIMIT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger("idalloc.listen")


class ConnectionLimits(NamedTuple):
    """The limits of a port."""

    connections: int
    of_address: int = 0  # of one address, of IPv6 a /64; 0 for a quarter of all
    uses_spare: bool = False  # whether connections may have spare descriptors
    age: float = 0.0  # when a connection must end, in seconds after it began; 0 for never


class Accepted:
    """An accepted connection."""

    def __init__(self, accepted: socket.socket, address: Any, waiting: "dict[Accepted, None]") -> None:
        self.address, port = address[:2]  # the client's IP address
        self.socket = accepted
        is_ipv6 = ":" in self.address
        # The client's address as gRPC names it.
        self.peer = f"ipv6:%5B{self.address}%5D:{port}" if is_ipv6 else f"ipv4:{self.address}:{port}"
        # The key by which connections are counted; empty once this one is not counted any more.
        self.host = host_of(self.peer)
        self.counts_for_host = True  # if not, it counts for the limit of all only
        # Whether the client has sent nothing yet. At a limit such a connection is ended first.
        self.is_silent = True
        self._waiting = waiting
        self.set_waiting(True)

    def set_waiting(self, waits: bool) -> None:
        """Set whether the server waits for the client: only then may a limit end the connection."""
        if not waits:
            self._waiting.pop(self, None)
        elif self.host:
            self._waiting.setdefault(self)


Serve = Callable[[Accepted], Awaitable[None]]


@dataclass(eq=False)
class Listener:
    """Accepts connections on an address, each in a task of its own.

    A connection counts from accept until ``serve`` returns. At a limit the listener ends the
    connection that waits longest for a new one, first of those whose client has sent nothing: so
    nobody holds the port by opening connections. At the limit of all it is one of the address with
    most connections. If none waits, the listener refuses the new one. It counts both, and logs the
    counts once a second.
    """

    setting: str  # the name of the setting of the address
    address: str  # HOST:PORT, with the port in use once started; port 0 selects a free one
    limits: ConnectionLimits
    serve: Serve  # must close the transport of a connection when it returns or is cancelled
    _: KW_ONLY
    refusal: bytes = b""  # what a refused client gets
    reuse_port: bool = False  # whether other processes may bind the port

    def __post_init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._tasks: dict[Accepted, asyncio.Task[None]] = {}
        self._hosts: Counter[str] = Counter()
        self._counted = 0
        self._waiting: dict[Accepted, None] = {}  # longest first
        self._refused: Counter[str] = Counter()  # by reason, since the last line of the log

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return len(self._tasks)

    def start(self) -> None:
        """Bind the address and accept connections.

        Raises:
            StartRefused: The address is in use, or cannot be bound.
        """
        try:
            self._bind()
        except OSError as error:
            self.stop_accepting()
            raise cannot_bind(self.address, error, self.setting) from None
        self.address = f"{self.address.rpartition(':')[0]}:{self._sockets[0].getsockname()[1]}"
        for each in self._sockets:
            asyncio.get_running_loop().add_reader(each, self._accept, each)

    def stop_accepting(self) -> None:
        """Close the address; open connections stay."""
        for each in self._sockets:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        self._sockets = []

    async def wait_until_empty(self, timeout: float) -> None:
        """Wait until all connections have ended, at most ``timeout`` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=timeout)

    async def close(self) -> None:
        """Close the address and all connections."""
        self.stop_accepting()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def count_refused(self, reason: str) -> None:
        """Count a refused connection, or a refused request on one, for the log."""
        if not self._refused:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log_refused)
        self._refused[reason] += 1

    def _bind(self) -> None:
        host, _, port = self.address.rpartition(":")
        # A name may lead to one address twice, as localhost does with two lines in /etc/hosts.
        found = list(dict.fromkeys(socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)))
        for family, kind, protocol, _, address in found:
            used = self._sockets[0].getsockname()[1] if self._sockets else address[1]
            try:
                with ExitStack() as unless_listening:
                    each = unless_listening.enter_context(socket.socket(family, kind, protocol))
                    each.setblocking(False)
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if self.reuse_port:
                        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    if family == socket.AF_INET6:
                        each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    each.bind((address[0], used, *address[2:]))
                    each.listen(_BACKLOG)
                    unless_listening.pop_all()
                self._sockets.append(each)
            except OSError as error:
                # Skip an address that this machine lacks, unless it is the only one.
                if error.errno == errno.EADDRINUSE or (not self._sockets and address is found[-1][4]):
                    raise

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                self._admit(*listening.accept())
            except OSError as error:
                if error.errno not in _AT_LIMIT:
                    return  # none is left, or the client has left
                if not self._accept_from_reserve(listening):
                    return

    def _accept_from_reserve(self, listening: socket.socket) -> bool:
        """Accept a connection with a spare descriptor; refuse it unless it may use one."""
        try:
            with spare.lend():
                accepted, address = listening.accept()
                if self.limits.uses_spare:
                    self._admit(accepted, address)
                    return True
                self._refuse(accepted, "open_files")
        except OSError as error:
            if error.errno in _AT_LIMIT:
                self.count_refused("open_files")
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)  # it stays readable
                loop.call_later(_PAUSE_SECONDS, self._go_on, listening)
            return False
        return True

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, address: Any) -> None:
        accepted.setblocking(False)
        connection = Accepted(accepted, address, self._waiting)
        if not self._make_room(connection):
            connection.set_waiting(False)
            self._refuse(accepted, "connections")
            return
        self._hosts[connection.host] += 1
        self._counted += 1
        task = self._tasks[connection] = asyncio.create_task(self._run(connection))
        task.add_done_callback(lambda _: self._release(connection))

    def _make_room(self, new: Accepted) -> bool:
        """Return whether there is room for a connection; end the one that waits longest for it."""
        if self._hosts[new.host] >= (self.limits.of_address or self.limits.connections // 4):
            of_host = (each for each in self._waiting if each.host == new.host and each is not new)
            longest = max(of_host, key=attrgetter("is_silent"), default=new)
        elif self._counted >= self.limits.connections:
            # Of the host with most connections, so that no stranger can end a client's login.
            longest = max(self._waiting, key=lambda each: (self._hosts[each.host], each.is_silent and each is not new))
        else:
            return True
        if longest is new:
            return False
        self.count_refused("ended")
        self._tasks[longest].cancel()
        self._forget(longest)
        return True

    async def _run(self, connection: Accepted) -> None:
        try:
            await self.serve(connection)
        except (OSError, TimeoutError):
            pass  # The client left, or took too long.
        except Exception as error:
            _log.error("connection_failed", port=self.setting, **failure_fields(error))

    def _release(self, connection: Accepted) -> None:
        del self._tasks[connection]
        self._forget(connection)
        connection.socket.close()

    def set_trusted(self, connection: Accepted, is_trusted: bool) -> None:
        """Set whether the client of a connection has logged in.

        While it has, the connection does not count for its address, and no limit ends it.
        """
        if connection.host and connection.counts_for_host == is_trusted:
            connection.counts_for_host = not is_trusted
            self._hosts[connection.host] += -1 if is_trusted else 1
            if not self._hosts[connection.host]:
                del self._hosts[connection.host]
        connection.set_waiting(not is_trusted)

    def _forget(self, connection: Accepted) -> None:
        """Stop counting a connection; a second call has no effect."""
        if connection.host:
            self._counted -= 1
            self.set_trusted(connection, True)
            connection.host = ""

    def _refuse(self, accepted: socket.socket, reason: str) -> None:
        self.count_refused(reason)
        with accepted:
            accepted.setblocking(False)
            if self.refusal:
                accepted.send(self.refusal)

    def _log_refused(self) -> None:
        refused = self._refused.copy()
        self._refused.clear()
        for reason, count in refused.items():
            _log.warning("connections_refused", port=self.setting, reason=reason, count=count)
