"""Steady callers, also of the X Protocol; a program like ``tests/floods/callers.py``.

Its further option is ``x``, the address of the port.
"""

import asyncio
from typing import Any, Self

from tests.floods.callers import Callers, run
from tests.xproto.support.client import XClient


class XCallers(Callers):
    """The callers, one of which adds documents."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self._x_turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._client = await self._new_client()
        await self._client.sql("CREATE SCHEMA IF NOT EXISTS s")
        await self._client.create_collection()
        self.calls["x"] = self._call_x
        return self

    async def _new_client(self) -> XClient:
        client = await XClient.connect(self._options["x"])
        self._stack.callback(client.close)
        await client.read()
        assert self._tls
        await client.start_tls(self._tls)
        reply = await client.log_in_plain("steady", self._options["token"])
        assert reply.code == 0, reply.text
        return client

    async def _call_x(self, is_new: bool) -> None:
        if is_new:
            client = await self._new_client()
            await self._add(client)
            client.close()
        else:
            async with self._x_turn:  # a session has one statement at a time
                await self._add(self._client)

    async def _add(self, client: XClient) -> None:
        reply = await client.add('{"a": 1}')
        assert reply.code == 0, reply.text


if __name__ == "__main__":
    run(XCallers)
