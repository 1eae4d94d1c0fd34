"""How fast all processes of a server issue ids."""

from collections import Counter
from collections.abc import Mapping

from idalloc_server.domain.allocation.allocator import Allocator
from idalloc_server.node.change import Workers

# The question to a process, see ``NodeAnswers``; the most counters in one, and the longest wait for the answers.
RATES, MAX_COUNTERS, ANSWER_SECONDS = "rates", 250, 1.0


async def server_rates(allocator: Allocator, workers: Workers | None, counters: list[str]) -> Mapping[str, float]:
    """Return the rates of all processes in ids a second, by the names of counters; none that is 0.

    Processes that do not answer in time are left out.

    Args:
        allocator: The allocator of this process.
        workers: All workers of the server; None if it is a single process.
        counters: The names, see ``Allocator.rates``.
    """
    rates = Counter[str](allocator.rates(counters))
    if workers is not None:
        for start in range(0, len(counters), MAX_COUNTERS):
            asked = {"counters": counters[start : start + MAX_COUNTERS]}
            for answer in await workers.ask_others(RATES, asked, ANSWER_SECONDS):
                rates.update(answer)
    return rates
