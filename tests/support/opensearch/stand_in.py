"""A stand-in for OpenSearch's HTTP endpoint. It fails as a real OpenSearch does, on request.

In a test::

    async with OpenSearchStandIn() as opensearch:
        store = open_store(f"opensearch://{opensearch.host}/", clock)
        opensearch.inject(Fault("drop", match="GRANT"))

As a process, which prints its URL::

    python -m tests.support.opensearch.stand_in
"""

import asyncio
import contextlib
import copy
import json
import ssl
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from tests.support.http_emulator import HttpEmulator, HttpFault
from tests.support.opensearch.endpoints import Cluster, Request
from tests.support.opensearch.refusals import Refusal, UnknownRequest
from tests.support.waiting import hold_for_async


@dataclass
class Fault(HttpFault):
    """A fault in the next requests."""

    # ``drop``: the connection is closed without an answer; ``reset``: the same by RST; ``hang``:
    # there is no answer; ``delay``: the answer is late; ``duplicate``: the request is applied
    # twice, and the second answer is sent; ``error``: the answer is an error; ``garbage``: the
    # answer is the HTML of a proxy; ``cut``: the answer lacks a field; ``hold``: the request is
    # executed when ``until`` is set.
    kind: Literal["drop", "reset", "hang", "delay", "duplicate", "error", "garbage", "cut", "hold"]
    # Whether the request is applied, but for ``delay`` and ``duplicate``; None: unless ``error``.
    applied: bool | None = None
    type: str = "unavailable_shards_exception"  # the type of the error
    path: tuple[str | int, ...] = ()  # the keys and indices of the field that is cut
    until: asyncio.Event = field(default_factory=asyncio.Event)
    items: tuple[int, ...] = ()  # of a ``_bulk``, those whose answers are the error; all are executed


class OpenSearchStandIn(HttpEmulator[Fault]):
    """A cluster of one node with any number of ports. The text of a request is ``Request.text``.

    Args:
        tls: The TLS context of the server; None for plain HTTP.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.cluster = Cluster(lambda: round(time.time() * 1000))
        self.answers: list[Any] = []  # the JSON of every answer
        # Without a router, which would interpret the path: a document's id may be `..`.
        super().__init__(web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1), tls)

    async def _answer(self, received: web.BaseRequest) -> web.StreamResponse:
        request = Request(received.method, received.raw_path, await received.text())
        self._keep(received, request.text)
        if not self._is_authorized(received):
            return web.Response(status=401, text="Unauthorized")
        fault = self._pop_fault(received, request.text)
        if fault is None:
            return self._execute(request)
        if fault.kind == "delay":
            await hold_for_async(fault.seconds, "the fault's delay")
            return self._execute(request)
        if fault.kind == "hold":
            await fault.until.wait()
            return self._execute(request)
        if fault.kind == "cut" or fault.items:
            return self._execute(request, fault)
        if fault.kind == "duplicate" or (fault.kind != "error" if fault.applied is None else fault.applied):
            self._execute(request)
        return self._execute(request) if fault.kind == "duplicate" else await self._fail(fault, received)

    def _execute(self, request: Request, fault: Fault | None = None) -> web.Response:
        try:
            status, answer = self.cluster.execute(request)
        except Refusal as refusal:
            status, answer = refusal.status, refusal.body()
        except UnknownRequest as error:
            self.unknown.append(f"{request.text}: {error}")
            return web.Response(status=500, text=f"the stand-in does not know this request: {error}")
        self.answers.append(json.loads(json.dumps(answer)))
        sent = self.answers[-1] if fault is None else _changed(self.answers[-1], fault)
        return web.json_response(sent, status=status, content_type="application/json")

    async def _fail(self, fault: Fault, received: web.BaseRequest) -> web.Response:
        if fault.kind == "error":
            refusal = Refusal(fault.status, fault.type, "an injected fault")
            return web.json_response(refusal.body(), status=fault.status)
        if fault.kind == "garbage":
            return web.Response(text="<html>\n<h1>502 Bad Gateway</h1>\n</html>", content_type="text/html")
        return await self._end(received, fault)


def _changed(answer: Any, fault: Fault) -> Any:
    """Return an answer without a field, or with the errors of items."""
    changed = inner = copy.deepcopy(answer)
    for number in fault.items:
        ((action, item),) = changed["items"][number].items()
        error = {"type": fault.type, "reason": "an injected fault"}
        changed["items"][number] = {action: {"_id": item["_id"], "status": fault.status, "error": error}}
    if fault.items:
        return changed | {"errors": True}
    for key in fault.path[:-1]:
        inner = inner[key]
    del inner[fault.path[-1]]
    return changed


async def _serve() -> None:
    async with OpenSearchStandIn() as stand_in:
        print(f"opensearch://{stand_in.host}/", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve())
