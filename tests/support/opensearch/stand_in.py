"""A stand-in for OpenSearch's HTTP endpoint. It fails as a real OpenSearch does, on request.

In a test::

    async with OpenSearchStandIn() as opensearch:
        store = open_store(f"opensearch://{opensearch.host}/", clock)
        opensearch.inject(Fault("drop", match="GRANT"))

As a process, which prints its URL::

    python -m tests.support.opensearch.stand_in
"""

import asyncio
import base64
import contextlib
import copy
import json
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import Any, Literal, Self

from aiohttp import web

from tests.support.opensearch.endpoints import Cluster, Request
from tests.support.opensearch.refusals import Refusal, UnknownRequest
from tests.support.waiting import hold_for_async

# SO_LINGER on, 0 seconds: closing sends RST instead of FIN.
_RST = struct.pack("ii", 1, 0)


@dataclass
class Fault:
    """A fault in the next requests."""

    # ``drop``: the connection is closed without an answer; ``reset``: the same by RST; ``hang``:
    # there is no answer; ``delay``: the answer is late; ``duplicate``: the request is applied
    # twice, and the second answer is sent; ``error``: the answer is an error; ``garbage``: the
    # answer is the HTML of a proxy; ``cut``: the answer lacks a field.
    kind: Literal["drop", "reset", "hang", "delay", "duplicate", "error", "garbage", "cut"]
    times: int = 1  # the number of requests with the fault; -1 for all
    match: str = ""  # only requests whose ``Request.text`` contains this
    port: int | None = None  # only requests on this port
    # Whether the request is applied, for all kinds but ``delay`` and ``duplicate``; by default not
    # for ``error``.
    applied: bool | None = None
    seconds: float = 0.0  # the delay
    status: int = 503  # the HTTP status of the error
    type: str = "unavailable_shards_exception"  # the type of the error
    path: tuple[str | int, ...] = ()  # the keys and places of the field that is cut


class OpenSearchStandIn:
    """A cluster of one node with any number of ports.

    Attributes:
        cluster: The indices, the clock and the versions.
        answers: The JSON of every answer.
        requests: The ``Request.text`` of every request, with its port.
        unknown: The requests that it does not know; a test must check that there are none.
        authorization: The required value of the Authorization header, if any.

    Args:
        tls: The TLS context of the server; None for plain HTTP.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.cluster = Cluster(lambda: round(time.time() * 1000))
        self.requests: list[tuple[int, str]] = []
        self.answers: list[Any] = []
        self.unknown: list[str] = []
        self.authorization: str | None = None
        self._faults: list[Fault] = []
        self._tls = tls
        self._ports: list[int] = []
        # Without a router, which would interpret the path: a document's id may be `..`.
        self._runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)

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

    def inject(self, *faults: Fault) -> None:
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

    async def _answer(self, received: web.BaseRequest) -> web.StreamResponse:
        request = Request(received.method, received.raw_path, await received.text())
        assert received.transport is not None
        port = int(received.transport.get_extra_info("sockname")[1])
        self.requests.append((port, request.text))
        if self.authorization not in (None, received.headers.get("Authorization")):
            return web.Response(status=401, text="Unauthorized")
        fault = self._pop_fault(port, request.text)
        if fault is None:
            return self._execute(request)
        if fault.kind == "delay":
            await hold_for_async(fault.seconds, "the fault's delay")
            return self._execute(request)
        if fault.kind == "cut":
            return self._execute(request, fault.path)
        if fault.kind == "duplicate" or (fault.kind != "error" if fault.applied is None else fault.applied):
            self._execute(request)
        return self._execute(request) if fault.kind == "duplicate" else await self._fail(fault, received)

    def _execute(self, request: Request, cut: tuple[str | int, ...] = ()) -> web.Response:
        try:
            status, answer = self.cluster.execute(request)
        except Refusal as refusal:
            status, answer = refusal.status, refusal.body()
        except UnknownRequest as error:
            self.unknown.append(f"{request.text}: {error}")
            return web.Response(status=500, text=f"the stand-in does not know this request: {error}")
        self.answers.append(json.loads(json.dumps(answer)))
        return web.json_response(_without(self.answers[-1], cut), status=status, content_type="application/json")

    async def _fail(self, fault: Fault, received: web.BaseRequest) -> web.Response:
        if fault.kind == "error":
            refusal = Refusal(fault.status, fault.type, "an injected fault")
            return web.json_response(refusal.body(), status=fault.status)
        if fault.kind == "garbage":
            return web.Response(text="<html>\n<h1>502 Bad Gateway</h1>\n</html>", content_type="text/html")
        if fault.kind == "hang":
            await asyncio.Event().wait()
        if (transport := received.transport) is not None:
            if fault.kind == "reset":
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
                transport.abort()
            else:
                transport.close()
        return web.Response()

    def _pop_fault(self, port: int, text: str) -> Fault | None:
        for fault in self._faults:
            if fault.match in text and fault.port in (None, port):
                fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                return fault
        return None


def _without(answer: Any, path: tuple[str | int, ...]) -> Any:
    if not path:
        return answer
    changed = inner = copy.deepcopy(answer)
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


async def _serve() -> None:
    async with OpenSearchStandIn() as stand_in:
        print(f"opensearch://{stand_in.host}/", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve())
