"""Calls that are refused for who makes them: how many of each caller, or host, are looked at one by one."""

from heapq import nlargest
from ipaddress import IPv6Network, ip_address
from urllib.parse import unquote

from idalloc_server.auth.quotas import Bucket
from idalloc_server.domain.clock import Clock

# So many tries at once, as of a service whose token was just replaced, and so many more a second.
BURST = 10
TRIES_PER_SECOND = 1
# The most callers that are remembered.
MAX_CALLERS = 10_000
# What one IPv6 customer has at least, and so can call from.
IPV6_PREFIX = 64


class RejectedCallers:
    """Counts failures by who calls.

    Args:
        clock: Tells how much time has passed.
        most: How many of them are remembered.
    """

    def __init__(self, clock: Clock, most: int = MAX_CALLERS) -> None:
        self._now = clock.boot
        self._most = most
        self._callers: dict[str, Bucket] = {}

    def seconds_to_wait(self, caller: str) -> float:
        """Counts a failure; returns 0, or where there were too many, when there may be more."""
        now = self._now()
        bucket = self._callers.get(caller)
        if bucket is None:
            if len(self._callers) >= self._most:
                self._forget_some(now)
            bucket = self._callers[caller] = Bucket(TRIES_PER_SECOND, now, burst=BURST)
        seconds = bucket.wait(now)
        if not seconds:
            bucket.take(1, now)
        return seconds

    def _forget_some(self, now: float) -> None:
        kept = ((bucket.seconds_to_full(now), caller) for caller, bucket in self._callers.items())
        longest = nlargest(self._most // 2, (each for each in kept if each[0] > 0))
        self._callers = {caller: self._callers[caller] for _, caller in longest}


def host_of(peer: str) -> str:
    """Returns the host of a peer as gRPC names it, such as ``ipv4:10.0.0.7:51234``; of an IPv6 address its network."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    host = unquote(address).rpartition(":")[0].strip("[]")
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if parsed.version == 6:
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Network((int(parsed), IPV6_PREFIX), strict=False))
    return str(parsed)
