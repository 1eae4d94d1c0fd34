"""A proxy of an HTTP store that mixes up answers: it crosses them, or repeats an earlier one."""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import aiohttp
from aiohttp import web
from yarl import URL

Mix = Literal["", "crossed", "repeated"]


@dataclass(eq=False)
class Mixer:
    """Exchanges answers of one store."""

    # How long an answer waits for another one, in seconds, before it goes to its own request.
    patience: float | None = None
    _kept: web.Response | None = None
    _waiting: tuple[web.Response, asyncio.Future[web.Response]] | None = None

    @property
    def kept(self) -> web.Response | None:
        """A copy of the answer that was kept last."""
        kept = self._kept
        return kept and web.Response(status=kept.status, body=kept.body, content_type=kept.content_type)

    def keep(self, answer: web.Response) -> web.Response:
        """Keep an answer, and return it."""
        self._kept = answer
        return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)

    async def cross(self, answer: web.Response) -> tuple[web.Response, bool]:
        """Exchange an answer with the next one; return the other, and whether there was one."""
        if self._waiting is not None:
            (other, theirs), self._waiting = self._waiting, None
            theirs.set_result(answer)
            return other, True
        mine: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        self._waiting = (answer, mine)
        try:
            async with asyncio.timeout(self.patience):
                return await mine, True
        except TimeoutError:
            self._waiting = None
            return answer, False


class MixingProxy:
    """Forwards each request once, and mixes up the answers to chosen ones."""

    def __init__(self, to: str) -> None:
        # What happens to chosen requests. ``crossed``: two that wait get each other's answers;
        # ``repeated``: one gets the first answer that a chosen request got, and is not forwarded.
        self.mix: Mix = ""
        self.chosen: Callable[[str, bytes], bool] = lambda path, body: True
        self.mixed = 0  # how many requests got another one's answer
        self.host = ""
        self._to = to  # HOST:PORT of the store
        self._mixer = Mixer()
        self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        await self._runner.setup()
        listening = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(self._runner, listening).start()
        self.host = f"127.0.0.1:{listening.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    def forget(self) -> None:
        """Forget the answer that is repeated."""
        self._mixer = Mixer()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        if not self.mix or not self.chosen(request.raw_path, body):
            return await self._forward(request, body)
        if self.mix == "repeated" and (earlier := self._mixer.kept) is not None:
            self.mixed += 1
            return earlier
        answer = await self._forward(request, body)
        if self.mix == "repeated":
            return self._mixer.keep(answer)
        other, is_crossed = await self._mixer.cross(answer)
        self.mixed += is_crossed
        return other

    async def _forward(self, request: web.BaseRequest, body: bytes) -> web.Response:
        headers = {name: value for name in ("Authorization", "Content-Type") if (value := request.headers.get(name))}
        url = URL(f"http://{self._to}{request.raw_path}", encoded=True)
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            content, kind = await answer.read(), answer.content_type
        return web.Response(status=answer.status, body=content, content_type=kind)
