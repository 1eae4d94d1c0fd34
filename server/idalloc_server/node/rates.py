"""How fast all processes of a server issue ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.domain.clock import Clock
from idalloc_server.node.change import Workers

# The longest wait for the other processes, and how long their rates are used.
ANSWER_SECONDS = 0.5
FRESH_SECONDS = 1.0


@dataclass(eq=False)
class ServerRates:
    """The rates of all processes.

    It asks the others for a counter at most once in ``FRESH_SECONDS``.
    """

    allocator: Allocator  # of this process
    clock: Clock  # measures how old the rates of others are
    workers: Workers | None  # all workers of the server; None for a single process
    _others: dict[str, float] = field(init=False, default_factory=dict)  # the rates of others
    _since: float = field(init=False, default=0.0)  # when they were empty

    async def __call__(self, counters: list[str]) -> Mapping[str, float]:
        """Return the rates in ids a second, by the names of counters; see ``Allocator.rates``.

        Processes that do not answer in time are left out.
        """
        own = self.allocator.rates(counters)
        if self.workers is None:
            return own
        if self.clock.boot() - self._since >= FRESH_SECONDS:
            self._others = {}
            self._since = self.clock.boot()
        others = self._others  # another call may replace it during the wait
        if unknown := [name for name in counters if name not in others]:
            others |= {**dict.fromkeys(unknown, 0.0), **await self.workers.other_rates(unknown)}
        return {name: own.get(name, 0.0) + others.get(name, 0.0) for name in counters}
