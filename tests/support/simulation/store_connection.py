"""A simulated node's connection to the store, which injects faults."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from idalloc_server.domain.errors import Refusal, StoreUnreachable
from idalloc_server.domain.store.protocol import Store
from tests.support.forwarding_store import call_store
from tests.support.promises.ledger import RecordedConnection
from tests.support.simulation.loop import SimulatedLoop

if TYPE_CHECKING:
    from tests.support.simulation.world import World

# Seconds from a node to the store, and back.
LATENCY = 0.001


class StoreFault(NamedTuple):
    """A fault of one call to the store."""

    applied: int = 1  # how many times the call is applied in a row; the last result is the answer
    error: type[Refusal] | None = None  # the error that replaces the answer
    before: float = 0.0  # seconds until the call is applied
    after: float = 0.0  # seconds from then on until it is answered
    again: float = 0.0  # seconds after which the call is applied once more; 0 for never


class StoreConnection(RecordedConnection):
    """A connection that forwards calls to the simulated store, with the next faults of methods."""

    def __init__(self, world: "World", store: Store, loop: SimulatedLoop) -> None:
        super().__init__(lambda: world.now, world.problems.append)
        self._world = world
        self._store = store
        self._loop = loop

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self.cut or self._world.down:
            raise StoreUnreachable("the store cannot be reached")
        answer = self._loop.create_future()
        apply = lambda: call_store(self._store, method, arguments)  # noqa: E731
        self._world.store_loop.create_task(self._forward(method, apply, answer))
        self.pending += 1
        try:
            return await answer
        finally:
            self.pending -= 1

    async def _forward(self, method: str, apply: Callable[[], Awaitable[Any]], answer: asyncio.Future[Any]) -> None:
        waiting = self._world.faults[method]
        fault = waiting.popleft() if waiting else StoreFault()
        await asyncio.sleep(LATENCY + fault.before)
        result: Any = None
        refusal: Refusal | None = None
        try:
            for _ in range(fault.applied):
                result = await self._world.checked(method, apply)
        except Refusal as error:
            refusal = error
        if fault.again:
            asyncio.get_running_loop().create_task(self._apply_again(method, apply, fault.again))
        if fault.error is not None:
            refusal = fault.error("injected")
        await asyncio.sleep(LATENCY + fault.after)
        if answer.done() or self.cut:
            return
        if refusal is not None:
            answer.set_exception(refusal)
        else:
            answer.set_result(result)

    async def _apply_again(self, method: str, apply: Callable[[], Awaitable[Any]], seconds: float) -> None:
        await asyncio.sleep(seconds)
        with suppress(Refusal):
            await self._world.checked(method, apply)
