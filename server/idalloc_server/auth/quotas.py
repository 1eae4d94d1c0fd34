"""Quotas: token buckets of ids and calls per second, and counts of open streams, in memory.

``limits.py`` charges each call to them.
"""

from heapq import nlargest
from typing import Any

from idalloc_server.auth.access import AccessPolicy, Identity
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import QuotaExceeded
from idalloc_server.domain.sequences.sequence import MAX_NAME_BYTES

# A bucket holds the tokens of one second, which a call may take at once.
BURST_SECONDS = 1.0
# The shortest time until a retry that an error names.
MIN_WAIT_SECONDS = 0.001
# When to retry beyond the quota of streams: the server cannot know when one ends.
STREAM_RETRY_SECONDS = 1.0
# The most sequences whose budgets are kept in memory.
MAX_SEQUENCES = 10_000


class Bucket:
    """A token bucket that may go negative: if it is not empty, it admits the whole request.

    The debt must be repaid before the bucket admits another request. So in any time the bucket
    gives at most the rate times that time, plus the burst, plus one request.

    Its only state is the time at which it will be full (generic cell rate algorithm, ITU-T I.371).

    Args:
        rate: Tokens added per second.
        now: The time, in seconds on the clock that all methods use.
        burst: The capacity in tokens; None for the tokens of ``BURST_SECONDS``.
    """

    __slots__ = ("burst_seconds", "full_at", "rate")

    def __init__(self, rate: int, now: float, burst: float | None = None) -> None:
        self.rate = rate
        self.burst_seconds = BURST_SECONDS if burst is None else burst / rate
        self.full_at = now

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds until the bucket is not empty; 0 if it is not empty now."""
        seconds = self.full_at - now - self.burst_seconds
        return 0.0 if seconds < 0 else max(seconds, MIN_WAIT_SECONDS)

    def take(self, amount: float, now: float) -> None:
        """Take tokens, even if the bucket has fewer."""
        full_at = self.full_at
        # A call of max() costs more than the rest of this method.
        self.full_at = (full_at if full_at > now else now) + amount / self.rate  # noqa: FURB136

    def seconds_to_full(self, now: float) -> float:
        """Return the seconds until the bucket is full."""
        return max(0.0, self.full_at - now)


class Budget:
    """The quota of one identity, or of all callers of one sequence, and its use.

    A limit that is None does not apply.

    Args:
        subject: The subject of ``QuotaFailure``: ``identity:billing``, ``sequence:orders``.
        ids_per_second, calls_per_second: The rates.
        now: The time, in seconds.
        streams: The most open streams.
    """

    __slots__ = ("calls", "ids", "open_streams", "streams", "subject")

    def __init__(
        self,
        subject: str,
        ids_per_second: int | None,
        calls_per_second: int | None,
        *,
        now: float,
        streams: int | None = None,
    ) -> None:
        self.subject = subject
        self.ids = Bucket(ids_per_second, now) if ids_per_second else None
        self.calls = Bucket(calls_per_second, now) if calls_per_second else None
        self.streams = streams
        self.open_streams = 0

    def check(self, now: float, ids: int, *, has_call: bool = True) -> None:
        """Check that ids, and one more call, are within the quota. No ids ignore a debt of ids.

        Raises:
            QuotaExceeded: It is not.
        """
        calls = self.calls
        bucket = self.ids
        # This repeats ``seconds_to_wait``: its call costs more than the rest of this method.
        if has_call and calls is not None and calls.full_at - now >= calls.burst_seconds:
            raise QuotaExceeded(self.subject, "calls_per_second", calls.rate, calls.seconds_to_wait(now))
        if ids and bucket is not None and bucket.full_at - now >= bucket.burst_seconds:
            raise QuotaExceeded(self.subject, "ids_per_second", bucket.rate, bucket.seconds_to_wait(now))

    def change_limits(self, other: "Budget", now: float) -> None:
        """Adopt the limits of another budget, and keep the present use."""
        self.ids = _transfer(self.ids, other.ids, now)
        self.calls = _transfer(self.calls, other.calls, now)
        self.streams = other.streams

    def seconds_to_full(self, now: float) -> float:
        """Return the seconds until all buckets are full: the budget can be forgotten then."""
        return max(bucket.seconds_to_full(now) for bucket in (self.ids, self.calls) if bucket is not None)


def _transfer(old: Bucket | None, new: Bucket | None, now: float) -> Bucket | None:
    """Return a bucket with the new rate and the old one's use."""
    if old is None or new is None:
        return new
    if old.rate == new.rate:
        return old
    # A level is the tokens in a bucket; it is negative in debt.
    new_level, old_level = ((each.burst_seconds - each.seconds_to_full(now)) * each.rate for each in (new, old))
    new.take(max(0.0, new_level - old_level), now)
    return new


class Quotas:
    """The quotas of all identities and sequences, of ``max_sequences`` sequences at most."""

    def __init__(self, clock: Clock, policy: AccessPolicy, max_sequences: int = MAX_SEQUENCES) -> None:
        self._now = clock.boot
        self._max_sequences = max_sequences
        self._identities: dict[str, Budget] = {}
        self._sequences: dict[str, Budget | None] = {}
        self.apply_policy(policy)

    def apply_policy(self, policy: AccessPolicy) -> None:
        """Apply the limits of a policy, and keep the present use."""
        now = self._now()
        self._policy = policy
        old = self._identities
        self._identities = {}
        for each in policy.identities:
            if each.ids_per_second or each.calls_per_second or each.streams:
                subject = f"identity:{each.name}"
                wanted = Budget(subject, each.ids_per_second, each.calls_per_second, now=now, streams=each.streams)
                budget = old.get(each.name, wanted)
                budget.change_limits(wanted, now)
                self._identities[each.name] = budget
        for name, known in list(self._sequences.items()):
            fresh = self._new_budget(name, now)
            if known is None or fresh is None:
                self._sequences[name] = fresh
            else:
                known.change_limits(fresh, now)

    def budgets_of(self, identity: Identity, sequence: str | None) -> tuple[Budget, ...]:
        """Return the budgets of a call; ``sequence`` is None for ids of no sequence."""
        own = self._identities.get(identity.name)
        shared = None
        if sequence is not None and self._policy.quotas:
            try:
                shared = self._sequences[sequence]
            except KeyError:
                if len(sequence) <= MAX_NAME_BYTES:  # No sequence has a longer name, and it is too long to keep.
                    now = self._now()
                    if len(self._sequences) >= self._max_sequences:
                        self._sequences = most_in_debt(self._sequences, self._max_sequences // 2, now)
                    shared = self._sequences[sequence] = self._new_budget(sequence, now)
        if shared is None:
            return () if own is None else (own,)
        return (shared,) if own is None else (own, shared)

    def charge(self, budgets: tuple[Budget, ...], ids: int, *, more_calls: int | None = None) -> None:
        """Charge one call and its ids.

        With ``more_calls``, the call was charged before: it takes ids, and counts as so many calls
        more, even beyond the quota of calls.

        Raises:
            QuotaExceeded: A budget is exhausted. Nothing was charged.
        """
        now = self._now()
        calls = 1 if more_calls is None else more_calls
        for budget in budgets:
            budget.check(now, ids, has_call=more_calls is None)
        for budget in budgets:
            if budget.calls is not None:
                budget.calls.take(calls, now)
            if budget.ids is not None:
                budget.ids.take(ids, now)

    def seconds_to_wait(self, budgets: tuple[Budget, ...], ids: int, *, has_call: bool) -> float:
        """Return the seconds until all budgets admit ids, and a call; 0 if they do now."""
        now = self._now()
        buckets = [
            each for budget in budgets for each in (budget.ids if ids else None, budget.calls if has_call else None)
        ]
        return max([each.seconds_to_wait(now) for each in buckets if each is not None], default=0.0)

    def refund(self, budgets: tuple[Budget, ...], ids: int) -> None:
        """Refund ids that a call did not get."""
        for budget in budgets:
            if budget.ids is not None:
                budget.ids.full_at -= ids / budget.ids.rate

    def open_stream(self, identity: Identity) -> Budget | None:
        """Count an open stream in the identity's budget, and return that; None without a quota.

        Raises:
            QuotaExceeded: The identity has as many open streams as its quota allows.
        """
        budget = self._identities.get(identity.name)
        if budget is not None:
            if budget.streams is not None and budget.open_streams >= budget.streams:
                raise QuotaExceeded(budget.subject, "streams", budget.streams, STREAM_RETRY_SECONDS)
            budget.open_streams += 1
        return budget

    def _new_budget(self, name: str, now: float) -> Budget | None:
        for quota in self._policy.quotas:
            if quota.sequence.match(name):
                return Budget(f"sequence:{name}", quota.ids_per_second, quota.calls_per_second, now=now)
        return None


def most_in_debt(known: dict[str, Any], count: int, now: float) -> dict[str, Any]:
    """Keep the ``count`` buckets or budgets that take longest to be full."""
    debts = ((each.seconds_to_full(now), name) for name, each in known.items() if each)
    kept = nlargest(count, (debt for debt in debts if debt[0] > 0))
    return {name: known[name] for _, name in kept}
