"""Chooses the host of a cluster that gets the next request; ``Transport`` sends it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from idalloc_server.domain.errors import StoreAnsweredError, StoreUnreachable


@dataclass(eq=False)
class Connection:
    """A session of one connection."""

    session: aiohttp.ClientSession
    is_checked: bool = False  # whether it was seen to reach the opened store


@dataclass(eq=False)
class Host:
    """A node of the cluster, or a load balancer in front of the nodes."""

    name: str  # ``host:port``
    idle: list[Connection] = field(default_factory=list)  # connections, free for use


class Hosts:
    """The hosts in order of preference: first the one that answered last, last the one that failed.

    Only the preferred host gets writes, and only while it is ``ready``. A restarted host accepts
    connections seconds before it serves, so every new preferred host must pass a probe before its
    first write. The first configured host needs no probe: opening the store reads from it before
    anything is written.

    Args:
        names: ``host:port`` of each host, in the initial order of preference.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.order = [Host(name) for name in names]
        self.ready = True  # whether the preferred host may get a write without a probe

    def prefer(self, host: Host, *, ready: bool) -> None:
        """Move a host that answered to the front; ``ready`` if it showed that it serves writes."""
        if host is not self.order[0]:
            self.order.remove(host)
            self.order.insert(0, host)
            self.ready = False
        self.ready |= ready

    def demote(self, host: Host) -> None:
        """Move a host that failed to the end; a new preferred host needs a probe."""
        if host is self.order[0]:
            self.ready = False
        self.order.remove(host)
        self.order.append(host)

    async def choose(self, probe: Callable[[Host], Coroutine[Any, Any, None]], pause: float) -> Host:
        """Return the first host that passes a probe. It becomes the preferred host, and ready.

        Probes start one by one: the next one when a probe fails, or after ``pause``. Slow probes
        may still win.

        Args:
            probe: Raises ``StoreFailure`` if a host cannot serve.
            pause: How long a probe runs before the next one starts, in seconds.

        Raises:
            StoreFailure: All probes failed; this is the failure of a host that answered, or else
                the last one.
        """
        left = list(self.order)
        running: dict[asyncio.Task[None], Host] = {}
        failure: BaseException = StoreUnreachable("no host is configured; name one in the setting store")
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
                        self.prefer(host, ready=True)
                        return host
                    if isinstance(error, StoreAnsweredError) or not isinstance(failure, StoreAnsweredError):
                        failure = error
            raise failure
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
