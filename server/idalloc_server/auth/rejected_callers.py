"""Rates by caller: rejections of hosts and identities, and the sequences that identities create."""

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Network, ip_address
from urllib.parse import unquote

from idalloc_server.auth.quotas import Bucket, most_in_debt
from idalloc_server.domain.clock import Clock

# The rejections allowed at once, such as of a service whose token was just replaced, and those
# allowed per second.
BURST = 10
ATTEMPTS_PER_SECOND = 1
# The most callers that are kept in memory.
MAX_CALLERS = 10_000
# How long the server delays an answer to a host beyond these, in seconds, at random: answers at the
# same time bring further calls at the same time. A delayed call counts as one of its connection, so
# a flood makes no more calls than it has answers.
MIN_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 3.0
# The most answers that a process delays. Each takes 15 kB.
MAX_DELAYED = 5_000
# The smallest network that a provider assigns to one customer.
IPV6_PREFIX = 64
_PORT = re.compile(r"(?<![:\[]):\d+$")


@dataclass(eq=False)
class CallerRates:
    """Limits the events of each caller; by default rejections."""

    clock: Clock
    rate: int = ATTEMPTS_PER_SECOND  # the most events of a caller a second
    burst: int = BURST  # the most at once
    max_callers: int = MAX_CALLERS  # the most callers in memory
    _callers: dict[str, Bucket] = field(default_factory=dict, init=False)

    def count(self, caller: str) -> float:
        """Count an event; return 0, or beyond the limit the seconds until one is allowed."""
        now = self.clock.boot()
        bucket = self._callers.get(caller)
        if bucket is None:
            if len(self._callers) >= self.max_callers:
                self._callers = most_in_debt(self._callers, self.max_callers // 2, now)
            bucket = self._callers[caller] = Bucket(self.rate, now, burst=self.burst)
        seconds = bucket.seconds_to_wait(now)
        if not seconds:
            bucket.take(1, now)
        return seconds


@dataclass(eq=False)
class DelayedAnswers:
    """Delays the answers to hosts whose calls are rejected too often."""

    uniform: Callable[[float, float], float] = random.uniform  # returns a random number between two
    _waiting: int = field(default=0, init=False)

    async def wait(self, seconds_left: float | None) -> None:
        """Wait before an answer, unless too many wait.

        Args:
            seconds_left: The time until the call's deadline, of which at most half is used; None
                without a deadline.
        """
        if self._waiting >= MAX_DELAYED:
            return
        delay = self.uniform(MIN_DELAY_SECONDS, MAX_DELAY_SECONDS)
        self._waiting += 1
        try:
            await asyncio.sleep(delay if seconds_left is None else min(delay, seconds_left / 2))
        finally:
            self._waiting -= 1


def host_of(peer: str) -> str:
    """Return the host of a peer such as ``ipv4:10.0.0.7:51234``; of IPv6 the /64 network.

    A peer whose address a proxy named has no port.
    """
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    host = _PORT.sub("", unquote(address)).strip("[]")
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if parsed.version == 6:
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Network((int(parsed), IPV6_PREFIX), strict=False))
    return str(parsed)
