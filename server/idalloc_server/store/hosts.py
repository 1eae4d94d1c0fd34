"""Which host of a CrateDB cluster a statement goes to.

Nothing here sends a statement: ``CrateHttp`` does, and reports what became of it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from idalloc_server.domain.errors import StoreUnreachable


@dataclass(eq=False)
class Host:
    """One of the cluster's nodes, or a load balancer in front of them.

    Attributes:
        name: ``host:port``.
        idle: Sessions of one connection each, free to use.
    """

    name: str
    idle: list[aiohttp.ClientSession] = field(default_factory=list)


class Hosts:
    """The hosts in the order of preference: the one that answered last comes first, the one that failed last is last.

    Only the first host gets writes, and only while it is ``ready``. A host that returns accepts connections seconds
    before it serves, so any other host must pass a probe before its first write. The first configured host needs
    none: opening the store reads from it before anything is written.

    Args:
        names: ``host:port`` of each, in the order of preference at the start.

    Attributes:
        ready: Whether the first host may get a write without a probe.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._order = [Host(name) for name in names]
        self.ready = True

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Host]:
        """Iterates over the present order, whatever changes it meanwhile."""
        return iter(tuple(self._order))

    @property
    def first(self) -> Host:
        """The preferred host."""
        return self._order[0]

    def answered(self, host: Host, *, ready: bool) -> None:
        """Prefers a host from now on.

        Args:
            host: The host that answered.
            ready: Whether its answer shows that it serves writes.
        """
        if host is not self._order[0]:
            self._order.remove(host)
            self._order.insert(0, host)
            self.ready = False
        self.ready |= ready

    def failed(self, host: Host) -> None:
        """Moves a host to the end; if it was the first, the next one needs a probe."""
        if host is self._order[0]:
            self.ready = False
        self._order.remove(host)
        self._order.append(host)

    async def choose(self, probe: Callable[[Host], Coroutine[Any, Any, None]], pause: float) -> Host:
        """Returns the first host that passes a probe; it is then the preferred host, and ready.

        The next host is probed when one fails, and also when one has not answered for a while: that one may still win.

        Args:
            probe: Raises ``StoreFailure`` if a host cannot serve.
            pause: How long to wait before the next host is probed too, in seconds.

        Raises:
            StoreFailure: All failed; this is the last failure.
        """
        left = list(self._order)
        running: dict[asyncio.Task[None], Host] = {}
        failure: BaseException = StoreUnreachable("there is no CrateDB host to send a statement to")
        try:
            while left or running:
                if left:
                    host = left.pop(0)
                    running[asyncio.create_task(probe(host))] = host
                done, _ = await asyncio.wait(
                    running, timeout=pause if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                ended = {running.pop(task): task.exception() for task in done}
                for host, error in ended.items():
                    if error is None:
                        self.answered(host, ready=True)
                        return host
                    failure = error
            raise failure
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
