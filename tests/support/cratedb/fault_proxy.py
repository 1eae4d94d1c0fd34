"""A proxy in front of the HTTP endpoint of CrateDB, or of its emulator, that injects faults on
command.

python -m tests.support.cratedb.fault_proxy --to 127.0.0.1:4200 --hosts 3

It prints the ports of its hosts, its command port and its random seed as JSON. A command is a
`ProxyFaults` as JSON, sent by `POST /` to the command port. The answer is the number of faults
injected so far, by kind.
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

from tests.support.mixing_proxy import Mixer
from tests.support.waiting import hold_for_async

# SO_LINGER on, 0 seconds: closing sends RST instead of FIN.
_RST = struct.pack("ii", 1, 0)
_NO_MASTER = "ClusterBlockException[blocked by: [MASTER_NOT_DISCOVERED/2/no master];]"
_NOT_CONNECTED = "NodeNotConnectedException[Node not connected]"

# Faults of a statement; "refused" is a fault of connections.
FAULT_KINDS = {
    "late": "the answer is delayed",
    "hang": "the statement is held until the next command",
    "stuck": "a write is held until the next command, a read is forwarded, as by a node that waits for another one",
    "reset": "the connection is reset, the statement is not forwarded",
    "lost": "the statement is forwarded, then the connection is reset without an answer",
    "dropped": "the statement is forwarded, then the connection is closed without an answer",
    "cut": "the statement is forwarded, half of the answer comes back",
    "twice": "the statement is forwarded twice in a row, the second answer comes back",
    "crossed": "two statements get each other's answers",
    "repeated": "the statement is not forwarded, an earlier answer comes back",
    "unavailable": "503, the statement is forwarded or not",
    "disconnected": "a read fails with 500, as while a primary is replaced",
    "refused": "new connections are refused, open ones are reset",
}


@dataclass
class ProxyFaults:
    """The faults that the proxy injects from now on."""

    # Of ``FAULT_KINDS``; each faulty statement gets a random one; empty for no faults.
    kinds: list[str] = field(default_factory=list)
    share: float = 1.0  # share of the statements that are faulty, 0 to 1
    late: float = 0.0  # longest delay of an answer, in seconds
    # Share of the held statements that are forwarded twice when they are released, 0 to 1.
    twice: float = 0.0
    host: int | None = None  # index of the affected host; None for all


class _Host:
    """One of the addresses that the proxy listens on."""

    def __init__(self, proxy: "_Proxy", to: str) -> None:
        self._proxy = proxy
        self._to = to
        self._server = web.Server(self._handle)
        # Bound, but not listening: it reserves the port while the host refuses connections.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = int(self._held.getsockname()[1])
        self._listening: asyncio.Server | None = None
        self._mixer = Mixer(patience=0.5)
        self._faults = ProxyFaults()
        self._released = asyncio.Event()

    async def change(self, faults: ProxyFaults) -> None:
        """Replace the faults, and release held statements."""
        self._faults, released, self._released = faults, self._released, asyncio.Event()
        released.set()
        if "refused" in faults.kinds:
            self._refuse()
        elif self._listening is None:
            # A closed listener cannot be opened again.
            listening = socket.create_server(("127.0.0.1", self.port))
            self._listening = await asyncio.get_running_loop().create_server(self._server, sock=listening)

    def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in list(self._server.connections):
            self._proxy.injected["refused"] += 1
            _reset(connection.transport)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        faults, released = self._faults, self._released
        if not faults.kinds or self._proxy.rng.random() >= faults.share:
            return await self._forward(request, body)
        kind = self._proxy.rng.choice(faults.kinds)
        if (kind == "disconnected" and not _is_read(body)) or (kind == "stuck" and _is_read(body)):
            return await self._forward(request, body)
        self._proxy.injected[kind] += 1
        match kind:
            case "late":
                answer = await self._forward(request, body)
                await hold_for_async(self._proxy.rng.uniform(0, faults.late), "the fault's delay")
                return answer
            case "hang" | "stuck":
                await released.wait()
                if self._proxy.rng.random() < faults.twice:
                    self._proxy.injected["twice"] += 1
                    await self._forward(request, body)
                return await self._forward(request, body)
            case "reset" | "refused":  # refused: a connection accepted just before the listener was closed
                return _reset(request.transport)
            case "lost":
                await self._forward(request, body)
                return _reset(request.transport)
            case "dropped":
                await self._forward(request, body)
                if request.transport is not None:
                    request.transport.close()
                return web.Response()
            case "cut":
                return await _cut(request, await self._forward(request, body))
            case "twice":
                await self._forward(request, body)
                return await self._forward(request, body)
            case "crossed":
                answer, _ = await self._mixer.cross(await self._forward(request, body))
                return answer
            case "repeated":
                return self._mixer.kept or self._mixer.keep(await self._forward(request, body))
            case "unavailable":
                if self._proxy.rng.random() < 0.5:
                    await self._forward(request, body)
                return _error(503, 5031, _NO_MASTER)
            case "disconnected":
                return _error(500, self._proxy.rng.choice([5000, 5005]), _NOT_CONNECTED)
        raise AssertionError(kind)

    async def _forward(self, request: web.BaseRequest, body: bytes) -> web.Response:
        """Forward a statement once, also after its client has disconnected."""
        headers = {name: value for name in ("Authorization", "Content-Type") if (value := request.headers.get(name))}
        try:
            async with self._proxy.session.request(
                request.method, f"http://{self._to}{request.rel_url}", data=body, headers=headers
            ) as answer:
                content = await answer.read()
        except (aiohttp.ClientError, OSError):
            return _reset(request.transport)
        kind = answer.headers.get("Content-Type", "application/json").partition(";")[0]
        return web.Response(status=answer.status, body=content, content_type=kind)


class _Proxy:
    """All hosts, and the command port."""

    def __init__(self, to: list[str], seed: int) -> None:
        self._to = to
        self.rng = random.Random(seed)
        self.injected: Counter[str] = Counter()
        self.session: aiohttp.ClientSession
        self._hosts: list[_Host] = []

    async def run(self, hosts: int, seed: int) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as self.session:
            self._hosts = [_Host(self, self._to[number % len(self._to)]) for number in range(hosts)]
            for host in self._hosts:
                await host.change(ProxyFaults())
            app = web.Application()
            app.router.add_post("/", self._handle_command)
            runner = web.AppRunner(app)
            await runner.setup()
            listening = socket.create_server(("127.0.0.1", 0))
            await web.SockSite(runner, listening).start()
            ports = [host.port for host in self._hosts]
            print(json.dumps({"hosts": ports, "commands": listening.getsockname()[1], "seed": seed}), flush=True)
            await asyncio.Event().wait()

    async def _handle_command(self, request: web.Request) -> web.Response:
        if (command := await request.json()) is not None:
            faults = ProxyFaults(**command)
            assert set(faults.kinds) <= FAULT_KINDS.keys(), faults
            for host in self._hosts if faults.host is None else [self._hosts[faults.host]]:
                await host.change(faults)
        return web.json_response(self.injected)


async def _cut(request: web.BaseRequest, whole: web.Response) -> web.StreamResponse:
    """Send half of an answer, then reset the connection."""
    assert isinstance(whole.body, bytes)
    half = web.StreamResponse(status=whole.status, headers={"Content-Type": whole.content_type})
    half.content_length = len(whole.body)
    with contextlib.suppress(ConnectionError):  # the client may have disconnected
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


def _is_read(body: bytes) -> bool:
    return not body or json.loads(body)["stmt"].lstrip().upper().startswith("SELECT")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT,…", help="the hosts of the CrateDB, which take turns")
    parser.add_argument("--hosts", type=int, default=1, help="number of addresses to listen on")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="seed of the random faults")
    chosen = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Proxy(chosen.to.split(","), chosen.seed).run(chosen.hosts, chosen.seed))
