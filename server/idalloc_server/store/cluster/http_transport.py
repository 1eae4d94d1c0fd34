"""The HTTP transport to a cluster: chooses hosts, repeats no write that may have been applied."""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import aiohttp

from idalloc_server.domain.errors import (
    StoreAnsweredError,
    StoreFailure,
    StoreOutcomeUnknown,
    StoreRefused,
    StoreUnreachable,
)
from idalloc_server.store.cluster.hosts import Host, Hosts
from idalloc_server.store.cluster.http_connections import Connections, Request, close_idle, read_failure

_HTTP_UNAUTHORIZED = 401
_HTTP_UNAVAILABLE = 503

_T = TypeVar("_T")


class HostTimeouts(NamedTuple):
    """Timeouts of ``Transport`` for one of several hosts, in seconds."""

    # For a connection. Less than ``silence``: a write that was not sent goes to the next host.
    connect: float = 1.5
    # How long a write waits for its answer before the host is checked for being alive.
    silence: float = 2.0
    # For the answer to that check; also how long a probe runs before the next host is probed too.
    probe: float = 1.0
    read: float = 3.0  # for the answer to a read, before the next host is asked
    # How long a 401 may be the answer of a starting host; a later 401 is refused.
    start: float = 60.0


_HOST_TIMEOUTS = HostTimeouts()


class Transport(ABC):
    """Sends requests to one of several hosts; ``Hosts`` has the order of preference.

    Safe for concurrent calls, of which ``max_connections`` run at once. Cancelling a call closes
    its connection; a write that was sent may still be applied.

    While a write waits, and in a probe, a host must answer ``ALIVE``. Neither may depend on another
    node. A read by key would: it goes to a random copy of the table, and a live host seems dead
    while the node with that copy is paused.

    Args:
        hosts: ``host:port`` of each host, in the order of preference.
        authorization: The value of the Authorization header, if any.
        tls: None for plain HTTP.
        timeout: The timeout of an answer, in seconds.
        connect_timeout: The timeout of a connection if there is only one host, in seconds.
        host_timeouts: When to try another host, if there are several.
        max_connections: The most requests at once.
    """

    PRODUCT: ClassVar[str]  # the name of the database, for errors
    PORT: ClassVar[int]  # its usual HTTP port
    # The request that shows that a host is alive and can reach the cluster's master.
    ALIVE: ClassVar[Request[Any]]

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        authorization: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float = 40.0,
        connect_timeout: float = 5.0,
        host_timeouts: HostTimeouts = _HOST_TIMEOUTS,
        max_connections: int = 64,
    ) -> None:
        self._hosts = Hosts(hosts)
        headers = {"Content-Type": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        self._host_timeouts = host_timeouts
        self._timeout = timeout
        connect = min(connect_timeout, host_timeouts.connect) if len(hosts) > 1 else connect_timeout
        timeouts = aiohttp.ClientTimeout(total=connect + timeout, connect=connect, sock_read=timeout)
        self.connections = Connections(
            product=self.PRODUCT, port=self.PORT, alive=self.ALIVE, headers=headers, tls=tls, timeouts=timeouts
        )
        self._unauthorized_since: float | None = None
        self._slots = asyncio.Semaphore(max_connections)

    @abstractmethod
    def may_be_starting(self, error: StoreFailure) -> bool:
        """Whether this may be the answer of a node that has not loaded the cluster's state yet."""

    @abstractmethod
    def refused(self, error: StoreFailure, subject: str) -> StoreRefused:
        """Return the error as one that needs an operator, with the next step."""

    async def check_serves(self, host: Host) -> None:  # noqa: B027 - optional
        """Raise ``StoreFailure`` if a host that is alive cannot serve; part of a probe."""

    async def close(self) -> None:
        """Close the idle connections; a connection in use is closed when its call ends."""
        self.connections.is_closed = True
        for host in tuple(self._hosts.order):
            await close_idle(host)

    def _check_open(self) -> None:
        if self.connections.is_closed:
            raise StoreUnreachable("the store is closed, since this server stops; use another server")

    async def send_write(self, request: Request[_T], *, may_fail_over: bool = True) -> _T:
        """Send a write to one host; to the next one only if this host certainly did not apply it.

        That is: no connection could be made, or the host may be starting. If the last host may be
        starting but passes a probe, it gets the write once more. Without ``may_fail_over`` only one
        host gets the write.

        Returns:
            What ``request.read`` returns.

        Raises:
            StoreUnreachable: The write was sent to no host.
            StoreAnsweredError: The write was not applied, and a retry may succeed.
            StoreRefused: The write was not applied, and fails again until an operator acts.
            StoreOutcomeUnknown: The write was sent and may have been applied.
        """
        self._check_open()
        async with self._slots:
            for hosts_left in reversed(range(len(self._hosts.order) if may_fail_over else 1)):
                host = self._hosts.order[0] if self._hosts.ready else await self._choose()
                try:
                    answer = await self._send_watched(host, request)
                except StoreUnreachable:
                    if not hosts_left:
                        raise
                except StoreAnsweredError as error:
                    if not self.may_be_starting(error):
                        raise
                    if not hosts_left:
                        return await self._retry_after_start(host, request, error)
                else:
                    self._prefer(host, ready=True)
                    return answer
        raise AssertionError("the last host returns or raises")

    async def send_read(self, request: Request[_T]) -> _T:
        """Send a request that changes nothing; if a host fails, to the next one.

        Raises:
            StoreUnreachable: No host answered.
            StoreAnsweredError: A host answered with an error, and a retry may succeed.
            StoreRefused: A host answered with an error that lasts until an operator acts.
        """
        self._check_open()
        hosts = tuple(self._hosts.order)
        limit = min(self._host_timeouts.read, self._timeout / (len(hosts) + 1)) if len(hosts) > 1 else None
        failure: StoreFailure = StoreUnreachable(f"no {self.PRODUCT} host is configured; name one in the setting store")
        silent: list[Host] = []
        failed: list[tuple[Host, StoreFailure]] = []
        async with self._slots:
            for host in hosts:
                try:
                    async with asyncio.timeout(limit):
                        return await self._read_from(host, request)
                except TimeoutError:
                    silent.append(host)
                except StoreFailure as error:
                    if isinstance(error, StoreAnsweredError | StoreRefused) and not self.may_be_starting(error):
                        raise
                    failed.append((host, error))
            # The read may be slow: the most preferred silent host gets it again, without a limit.
            try:
                if silent:
                    return await self._read_from(silent[0], request)
                if failed:  # the error of a live host counts, of several the last one
                    host, failure = max(reversed(failed), key=lambda each: each[1].http_status is not None)
                    if self.may_be_starting(failure):
                        return await self._retry_after_start(host, request, failure)
            except StoreFailure as error:
                failure = error
        raise read_failure(failure)

    async def _read_from(self, host: Host, request: Request[_T]) -> _T:
        answer = await self._send(host, request, is_read=True)
        self._prefer(host, ready=False)
        return answer

    async def _retry_after_start(self, host: Host, request: Request[_T], error: StoreFailure) -> _T:
        """Handle a 401, or an unknown table: is the host starting, or must an operator act?

        Only time distinguishes a wrong password from a user that the host has not loaded yet. For
        an unknown table, a host that passes a probe gets the statement again, which it did not
        apply: its first answer may have been early.
        """
        if is_unauthorized(error):
            raise self._refused_if_lasting(error, request.subject) from error
        try:
            await self._probe(host)
            answer = await self._send(host, request)
        except (StoreAnsweredError, StoreRefused) as again:
            if is_unauthorized(again):  # the host restarted again
                raise (
                    again if isinstance(again, StoreRefused) else self._refused_if_lasting(again, request.subject)
                ) from error
            is_settled = isinstance(again, StoreRefused) or self.may_be_starting(again)
            raise self.refused(error, request.subject) if is_settled else again from error
        self._prefer(host, ready=True)
        return answer

    def _refused_if_lasting(self, error: StoreFailure, subject: str) -> StoreFailure:
        now = asyncio.get_running_loop().time()
        if self._unauthorized_since is None:
            self._unauthorized_since = now
        has_lasted = now - self._unauthorized_since >= self._host_timeouts.start
        return self.refused(error, subject) if has_lasted else error

    def _prefer(self, host: Host, *, ready: bool) -> None:
        self._unauthorized_since = None
        self._hosts.prefer(host, ready=ready)

    async def _choose(self) -> Host:
        """Return a host that passed a probe, within half of the timeout of a write."""
        try:
            async with asyncio.timeout(self._timeout / 2):
                return await self._hosts.choose(self._probe, self._host_timeouts.probe)
        except TimeoutError:
            names = ", ".join(host.name for host in self._hosts.order)
            raise StoreUnreachable(
                f"{self.PRODUCT} at {names} did not answer a probe within {self._timeout / 2:g} s; repair the cluster"
            ) from None

    async def _probe(self, host: Host) -> None:
        """Raise ``StoreFailure`` if a host cannot serve. Use a new connection, and keep it."""
        try:
            await self.connections.exchange(host, self.ALIVE, is_fresh=True)
            await self.check_serves(host)
        except StoreFailure as error:
            await self._demote(host)
            raise (self._refused_if_lasting(error, "") if is_unauthorized(error) else read_failure(error)) from error

    async def _send_watched(self, host: Host, request: Request[_T]) -> _T:
        """Send a write. If there are other hosts, end it when its host is no longer alive."""
        if len(self._hosts.order) == 1:
            return await self._send(host, request)
        loop = asyncio.get_running_loop()
        end = asyncio.timeout(None)
        watches: list[asyncio.Task[None]] = []
        timer = loop.call_later(
            self._host_timeouts.silence, lambda: watches.append(loop.create_task(self._end_if_silent(host, end)))
        )
        try:
            async with end:
                return await self._send(host, request)
        except TimeoutError:
            raise StoreOutcomeUnknown(
                f"{self.PRODUCT} at {host.name} was sent a statement and did not answer, nor did it answer "
                f"{self.ALIVE.method} {self.ALIVE.path.partition('?')[0]}; repair that node"
            ) from None
        finally:
            timer.cancel()
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _end_if_silent(self, host: Host, end: asyncio.Timeout) -> None:
        """Check a host repeatedly; end the write on it when the host is not alive."""
        try:
            while True:
                async with asyncio.timeout(self._host_timeouts.probe):
                    await self.connections.exchange(host, self.ALIVE, is_fresh=True)
                await asyncio.sleep(self._host_timeouts.silence)
        except (StoreFailure, TimeoutError):
            end.reschedule(asyncio.get_running_loop().time())

    async def _send(self, host: Host, request: Request[_T], *, is_read: bool = False) -> _T:
        """Send one request, and demote the host if it failed.

        A write that ends without an answer demotes its host. A read does not: its caller may have
        run out of time, or another node with the copy that it went to may be silent.
        """
        serves = is_read
        try:
            answer = await self.connections.exchange(host, request)
            serves = True
            return answer
        except StoreFailure as error:
            serves = error.http_status not in (None, _HTTP_UNAVAILABLE) and not self.may_be_starting(error)
            raise
        finally:
            if not serves:
                await self._demote(host)

    async def _demote(self, host: Host) -> None:
        """Prefer other hosts, and close this host's idle connections, which may be dead."""
        self._hosts.demote(host)
        await close_idle(host)


def raise_if_server_failed(error: StoreFailure) -> None:
    """Raise an error with a status of 5xx again: unlike another one, it may end by itself."""
    if error.http_status is not None and error.http_status >= 500:
        raise error


def is_unauthorized(error: StoreFailure) -> bool:
    """Whether the user, password or token is wrong.

    For a missing privilege CrateDB answers 401 with a code.
    """
    return error.http_status == _HTTP_UNAUTHORIZED and error.code is None
