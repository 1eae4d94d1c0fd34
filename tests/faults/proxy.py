"""A proxy in front of CrateDB's HTTP endpoint, or of its emulator, that harms what passes as it is told.

python -m tests.faults.proxy --to 127.0.0.1:4200 --hosts 3

It prints as JSON where each of its hosts listens, where it takes commands, and the seed of its dice. A command is a
`Weather` as JSON, at `POST /` of its own port; the answer says what was harmed so far, by kind.
"""

import argparse
import asyncio
import contextlib
import json
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

# SO_LINGER on, 0 seconds: closing sends RST instead of FIN.
_RST = struct.pack("ii", 1, 0)
_NO_MASTER = "ClusterBlockException[blocked by: [MASTER_NOT_DISCOVERED/2/no master];]"
_NOT_CONNECTED = "NodeNotConnectedException[Node not connected]"

# What may happen to a statement; "refused" is about connections.
KINDS = {
    "late": "the answer comes late",
    "hang": "neither statement nor answer passes until the weather changes",
    "stuck": "a write hangs, and what only reads passes: the node lives and waits for another one",
    "reset": "the connection is reset, and nothing was passed on",
    "lost": "it is passed on, and the connection is reset in place of the answer",
    "dropped": "it is passed on, and the connection is closed in place of the answer",
    "cut": "it is passed on, and half of the answer comes back",
    "twice": "it is passed on twice, one after the other, and the second answer comes back",
    "unavailable": "503, and it was passed on, or not",
    "disconnected": "what only reads fails with 500, as while a primary is replaced",
    "refused": "no connection can be made, and those that there were are reset",
}


@dataclass
class Weather:
    """What the proxy does from now on.

    Attributes:
        kinds: What may happen: keys of ``KINDS``; nothing where there are none.
        share: To how many of the statements, 0 to 1; any of the kinds, by dice.
        late: How late an answer comes at most, in seconds.
        twice: How many of the statements that hung or stuck are then passed on twice, 0 to 1.
        host: To which of the hosts; None for all.
    """

    kinds: list[str] = field(default_factory=list)
    share: float = 1.0
    late: float = 0.0
    twice: float = 0.0
    host: int | None = None


class _Host:
    """One of the addresses that the proxy listens on."""

    def __init__(self, proxy: "_Proxy") -> None:
        self._proxy = proxy
        self._server = web.Server(self._handle)
        # Bound, and never listening: so the port stays ours while nobody listens on it.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = int(self._held.getsockname()[1])
        self._listening: asyncio.Server | None = None
        self._weather = Weather()
        self._over = asyncio.Event()

    async def change(self, weather: Weather) -> None:
        """Lets what hangs go on, and does otherwise from now on."""
        self._weather, over, self._over = weather, self._over, asyncio.Event()
        over.set()
        if "refused" in weather.kinds:
            self._refuse()
        elif self._listening is None:
            # One socket a host: a listener that was closed may not be opened again.
            listening = socket.create_server(("127.0.0.1", self.port))
            self._listening = await asyncio.get_running_loop().create_server(self._server, sock=listening)

    def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in list(self._server.connections):
            self._proxy.harmed["refused"] += 1
            _reset(connection.transport)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        weather, over = self._weather, self._over
        if not weather.kinds or self._proxy.dice.random() >= weather.share:
            return await self._pass_on(request, body)
        kind = self._proxy.dice.choice(weather.kinds)
        if (kind == "disconnected" and not _only_reads(body)) or (kind == "stuck" and _only_reads(body)):
            return await self._pass_on(request, body)
        self._proxy.harmed[kind] += 1
        match kind:
            case "late":
                answer = await self._pass_on(request, body)
                await asyncio.sleep(self._proxy.dice.uniform(0, weather.late))
                return answer
            case "hang" | "stuck":
                await over.wait()
                if self._proxy.dice.random() < weather.twice:
                    self._proxy.harmed["twice"] += 1
                    await self._pass_on(request, body)
                return await self._pass_on(request, body)
            case "reset" | "refused":  # refused: a connection of the last moment
                return _reset(request.transport)
            case "lost":
                await self._pass_on(request, body)
                return _reset(request.transport)
            case "dropped":
                await self._pass_on(request, body)
                if request.transport is not None:
                    request.transport.close()
                return web.Response()
            case "cut":
                return await _cut(request, await self._pass_on(request, body))
            case "twice":
                await self._pass_on(request, body)
                return await self._pass_on(request, body)
            case "unavailable":
                if self._proxy.dice.random() < 0.5:
                    await self._pass_on(request, body)
                return _error(503, 5031, _NO_MASTER)
            case "disconnected":
                return _error(500, self._proxy.dice.choice([5000, 5005]), _NOT_CONNECTED)
        raise AssertionError(kind)

    async def _pass_on(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """Sends it on once, also where the one who asked is no longer there."""
        headers = {name: value for name in ("Authorization", "Content-Type") if (value := request.headers.get(name))}
        try:
            async with self._proxy.session.request(
                request.method, f"http://{self._proxy.to}{request.rel_url}", data=body, headers=headers
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, OSError):
            return _reset(request.transport)
        kind = answer.headers.get("Content-Type", "application/json").partition(";")[0]
        return web.Response(status=answer.status, body=content, content_type=kind)


class _Proxy:
    """All hosts, and the port for commands."""

    def __init__(self, to: str, seed: int) -> None:
        self.to = to
        self.dice = random.Random(seed)
        self.harmed: Counter[str] = Counter()
        self.session: aiohttp.ClientSession
        self._hosts: list[_Host] = []

    async def run(self, hosts: int, seed: int) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as self.session:
            self._hosts = [_Host(self) for _ in range(hosts)]
            for host in self._hosts:
                await host.change(Weather())
            app = web.Application()
            app.router.add_post("/", self._take_command)
            runner = web.AppRunner(app)
            await runner.setup()
            listening = socket.create_server(("127.0.0.1", 0))
            await web.SockSite(runner, listening).start()
            ports = [host.port for host in self._hosts]
            print(json.dumps({"hosts": ports, "commands": listening.getsockname()[1], "seed": seed}), flush=True)
            await asyncio.Event().wait()

    async def _take_command(self, request: web.Request) -> web.Response:
        if (command := await request.json()) is not None:
            weather = Weather(**command)
            assert set(weather.kinds) <= KINDS.keys(), weather
            for host in self._hosts if weather.host is None else [self._hosts[weather.host]]:
                await host.change(weather)
        return web.json_response(self.harmed)


async def _cut(request: web.BaseRequest, whole: web.Response) -> web.StreamResponse:
    """Sends half of an answer, then nothing more."""
    assert isinstance(whole.body, bytes)
    half = web.StreamResponse(status=whole.status, headers={"Content-Type": whole.content_type})
    half.content_length = len(whole.body)
    with contextlib.suppress(ConnectionError):  # who asked may have left
        await half.prepare(request)
        await half.write(whole.body[: len(whole.body) // 2])
    _reset(request.transport)
    return half


def _reset(transport: Any) -> web.Response:
    if transport is not None and not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        transport.abort()
    return web.Response()


def _error(status: int, code: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=status)


def _only_reads(body: bytes) -> bool:
    return not body or json.loads(body)["stmt"].lstrip().upper().startswith("SELECT")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="what is behind it")
    parser.add_argument("--hosts", type=int, default=1, help="how many addresses it listens on")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of its dice")
    chosen = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Proxy(chosen.to, chosen.seed).run(chosen.hosts, chosen.seed))
