"""The rates of all processes of a server."""

from collections.abc import Mapping
from unittest.mock import Mock

from idalloc_server.node.rates import FRESH_SECONDS, ServerRates
from idalloc_server.rpc.sequences import MAX_PAGE_SIZE
from idalloc_server.workers.messages import Answered, encode
from idalloc_server.workers.pipe import _MAX_MESSAGE_BYTES
from tests.support.fake_store import FakeClock


class Others:
    """The other workers: each counter that begins with ``o`` has a rate of 10 there."""

    count, other_lease_count = 3, 0

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def other_rates(self, counters: list[str]) -> Mapping[str, float]:
        self.asked.append(counters)
        return {name: 10.0 for name in counters if name.startswith("o")}


def rates_of(workers: Others | None, clock: FakeClock) -> ServerRates:
    """Return the rates of a process in which ``orders`` has a rate of 5."""
    own = Mock(rates=lambda counters: {"orders": 5.0} if "orders" in counters else {})
    return ServerRates(own, clock, workers)  # type: ignore[arg-type] # it changes nothing


async def test_rates_of_all_processes_are_added(clock: FakeClock) -> None:
    """The rate of a counter is the sum of this process's and the others'."""
    rates = rates_of(Others(), clock)
    assert await rates(["orders", "others", "bills"]) == {"orders": 15.0, "others": 10.0, "bills": 0.0}
    assert await rates_of(None, clock)(["orders", "others"]) == {"orders": 5.0}


async def test_others_are_asked_once_a_second(clock: FakeClock) -> None:
    """The others are asked for a rate once in FRESH_SECONDS, however often it is read."""
    workers = Others()
    rates = rates_of(workers, clock)
    for _ in range(3):
        await rates(["orders"])
        await rates(["bills", "orders"])
    assert workers.asked == [["orders"], ["bills"]]
    clock.advance(FRESH_SECONDS)
    await rates(["bills", "orders"])
    assert workers.asked[2:] == [["bills", "orders"]]


def test_an_answer_fits_into_a_message() -> None:
    """The rates of the largest page, with the longest names of any letters, fit into a message."""
    names = [
        f"{number:03}" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 126 + "\x1f2026-11-21"
        for number in range(MAX_PAGE_SIZE)
    ]
    assert len(encode(Answered(1, "", dict.fromkeys(names, 1 / 3)))) < _MAX_MESSAGE_BYTES
