"""Callers whose credentials nobody has: how often they may try, by the host that they come from."""

from ipaddress import IPv6Network, ip_address
from urllib.parse import unquote

from idalloc_server.domain.clock import Clock
from idalloc_server.domain.quota import Bucket

# So many tries at once, as of a service whose token was just replaced, and so many more a second.
BURST = 10
TRIES_PER_SECOND = 1
# The most hosts that are remembered.
MAX_HOSTS = 10_000
# What one IPv6 customer has at least, and so can call from.
IPV6_PREFIX = 64


class Strangers:
    """Counts failures by host.

    Args:
        clock: Tells how much time has passed.
        most: How many hosts are remembered.
    """

    def __init__(self, clock: Clock, most: int = MAX_HOSTS) -> None:
        self._now = clock.boot
        self._most = most
        self._hosts: dict[str, Bucket] = {}

    def seconds_to_wait(self, host: str) -> float:
        """Counts a failure; returns 0, or where there were too many, when the host may try again."""
        now = self._now()
        bucket = self._hosts.get(host)
        if bucket is None:
            if len(self._hosts) >= self._most:
                self._forget_some(now)
            bucket = self._hosts[host] = Bucket(TRIES_PER_SECOND, now, burst=BURST)
        seconds = bucket.wait(now)
        if not seconds:
            bucket.take(1)
        return seconds

    def _forget_some(self, now: float) -> None:
        kept = {host: bucket for host, bucket in self._hosts.items() if not bucket.is_full(now)}
        while len(kept) > self._most // 2:
            del kept[next(iter(kept))]
        self._hosts = kept


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
