"""What the emulators of CrateDB and OpenSearch share: ports, the password, and faults."""

import asyncio
import base64
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from aiohttp import web

# SO_LINGER on, 0 seconds: closing sends RST instead of FIN.
_RST = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class HttpFault:
    """A fault in the next requests."""

    kind: str
    times: int = 1  # the number of requests with the fault; -1 for all
    skip: int = 0  # how many such requests pass before them
    match: str = ""  # only requests whose text contains this
    port: int | None = None  # only requests on this port
    seconds: float = 0.0  # the delay
    status: int = 503  # the HTTP status of the error


_F = TypeVar("_F", bound=HttpFault)


class HttpEmulator(Generic[_F]):
    """A database's HTTP endpoint with any number of ports.

    Args:
        runner: Answers the requests.
        tls: The TLS context of the server; None for plain HTTP.
    """

    def __init__(self, runner: web.BaseRunner, tls: ssl.SSLContext | None) -> None:
        self.requests: list[tuple[int, str]] = []  # the text of every request, with its port
        # The requests that it does not know; a test must check that there are none.
        self.unknown: list[str] = []
        self.authorization: str | None = None  # the required value of the Authorization header
        self._faults: list[_F] = []
        self._runner = runner
        self._tls = tls
        self._ports: list[int] = []

    @property
    def host(self) -> str:
        """The first port's ``host:port``."""
        return f"127.0.0.1:{self._ports[0]}"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def listen(self, port: int = 0) -> int:
        """Open one more port and return it."""
        listening = socket.create_server(("127.0.0.1", port))
        await web.SockSite(self._runner, listening, ssl_context=self._tls).start()
        self._ports.append(int(listening.getsockname()[1]))
        return self._ports[-1]

    def inject(self, *faults: _F) -> None:
        """Add faults, in this order."""
        self._faults.extend(faults)

    def clear_faults(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def require_password(self, user: str, password: str) -> None:
        """Require this user and password from now on."""
        self.authorization = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    def texts(self) -> list[str]:
        """Return the text of every request."""
        return [text for _, text in self.requests]

    def _is_authorized(self, received: web.BaseRequest) -> bool:
        return self.authorization in (None, received.headers.get("Authorization"))

    def _keep(self, received: web.BaseRequest, text: str) -> None:
        """Add a request to ``requests``."""
        self.requests.append((_port(received), text))

    def _pop_fault(self, received: web.BaseRequest, text: str) -> _F | None:
        for fault in self._faults:
            if fault.match in text and fault.port in (None, _port(received)):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                return fault
        return None

    async def _end(self, received: web.BaseRequest, fault: _F) -> web.Response:
        """Give no answer: ``hang``, or close the connection by ``reset`` or ``drop``."""
        if fault.kind == "hang":
            await asyncio.Event().wait()
        if (transport := received.transport) is not None:
            if fault.kind == "reset":
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
                transport.abort()
            else:
                transport.close()
        return web.Response()


def _port(received: web.BaseRequest) -> int:
    assert received.transport is not None
    return int(received.transport.get_extra_info("sockname")[1])
