"""Quotas: so many ids and calls a second, so many streams at a time. Counted in this process's memory."""

from collections.abc import Callable
from heapq import nlargest

from idalloc_server.auth.access import AccessPolicy, Identity
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import QuotaExceeded
from idalloc_server.domain.sequences.model import MAX_NAME_BYTES

# A bucket holds what a second gives: so much may be taken at once after a pause.
BURST_SECONDS = 1.0
# Nobody is told to come again sooner, however little is missing.
LEAST_WAIT_SECONDS = 0.001
# When to look again for a stream that has ended: nobody knows when one does.
STREAMS_RETRY_SECONDS = 1.0
# The most sequences whose buckets are in memory.
MAX_SEQUENCES = 10_000


class Bucket:
    """Fills at a rate, up to what ``BURST_SECONDS`` give. Whoever finds something in it takes all they want.

    So it may be in debt afterwards, which has to be filled before the next one finds something: in any time, no more is
    taken than the rate times that time, plus the burst, plus one call's.

    All that it remembers is when it will be full (the generic cell rate algorithm of ITU-T I.371): what is in it
    follows from the time.

    Args:
        rate: How much a second.
        now: The time on the clock that it is asked with.
        burst: The most that it holds; None for that of ``BURST_SECONDS``.
    """

    __slots__ = ("burst_seconds", "full_at", "rate")

    def __init__(self, rate: float, now: float, burst: float | None = None) -> None:
        self.rate = rate
        self.burst_seconds = BURST_SECONDS if burst is None else burst / rate
        self.full_at = now

    def wait(self, now: float) -> float:
        """Returns in how many seconds there is something in it; 0 where there is."""
        seconds = self.full_at - now - self.burst_seconds
        return 0.0 if seconds < 0 else max(seconds, LEAST_WAIT_SECONDS)

    def take(self, amount: float, now: float) -> None:
        """Takes it, also where there is less."""
        full_at = self.full_at
        # A call of max() would cost more than all else here.
        self.full_at = (full_at if full_at > now else now) + amount / self.rate  # noqa: FURB136

    def give(self, amount: float) -> None:
        """Gives back what was taken and not used."""
        self.full_at -= amount / self.rate

    def level(self, now: float) -> float:
        """Returns how much is in it; less than 0 in debt."""
        return (self.burst_seconds - self.seconds_to_full(now)) * self.rate

    def seconds_to_full(self, now: float) -> float:
        """Returns when forgetting it changes nothing."""
        return max(0.0, self.full_at - now)


class Budget:
    """What an identity, or all callers of a sequence, may take.

    Args:
        subject: Whose it is, as ``QuotaFailure`` says it: ``identity:billing``, ``sequence:orders``.
        ids_per_second: How many ids, None for any number.
        calls_per_second: How many calls.
        streams: How many streams at a time.
        now: The time.
    """

    __slots__ = ("calls", "ids", "open_streams", "streams", "subject")

    def __init__(
        self,
        subject: str,
        ids_per_second: int | None,
        calls_per_second: int | None,
        now: float,
        streams: int | None = None,
    ) -> None:
        self.subject = subject
        self.ids = Bucket(ids_per_second, now) if ids_per_second else None
        self.calls = Bucket(calls_per_second, now) if calls_per_second else None
        self.streams = streams
        self.open_streams = 0

    def check(self, now: float, ids: int) -> None:
        """Sees that one more call may be made. One that takes no ids does not wait for a debt of them.

        Raises:
            QuotaExceeded: It may not yet.
        """
        calls, bucket = self.calls, self.ids
        # As ``wait``, whose call would cost more than all else here.
        if calls is not None and calls.full_at - now >= calls.burst_seconds:
            raise QuotaExceeded(self.subject, "calls_per_second", calls.rate, calls.wait(now))
        if ids and bucket is not None and bucket.full_at - now >= bucket.burst_seconds:
            raise QuotaExceeded(self.subject, "ids_per_second", bucket.rate, bucket.wait(now))

    def change(self, other: "Budget", now: float) -> None:
        """Takes on the limits of another one; what was taken lately goes on counting."""
        self.ids = _changed(self.ids, other.ids, now)
        self.calls = _changed(self.calls, other.calls, now)
        self.streams = other.streams

    def end_stream(self) -> None:
        """Counts a stream less."""
        self.open_streams -= 1

    def seconds_to_full(self, now: float) -> float:
        """Returns when forgetting it changes nothing."""
        return max(bucket.seconds_to_full(now) for bucket in (self.ids, self.calls) if bucket is not None)


def _changed(old: Bucket | None, new: Bucket | None, now: float) -> Bucket | None:
    if old is None or new is None:
        return new
    if old.rate == new.rate:
        return old
    new.take(max(0.0, new.level(now) - old.level(now)), now)
    return new


class Quotas:
    """The quotas of all identities and sequences.

    Args:
        clock: Tells how much time has passed.
        access: Who has which ones.
        most_sequences: How many sequences' buckets are kept.
    """

    def __init__(self, clock: Clock, access: AccessPolicy, most_sequences: int = MAX_SEQUENCES) -> None:
        self._now = clock.boot
        self._most = most_sequences
        self._identities: dict[str, Budget] = {}
        self._sequences: dict[str, Budget | None] = {}
        self._access = access
        self.use(access)

    def use(self, access: AccessPolicy) -> None:
        """Goes on with other limits. What was taken lately goes on counting."""
        now = self._now()
        self._access = access
        old = self._identities
        self._identities = {}
        for each in access.identities:
            if each.ids_per_second or each.calls_per_second or each.streams:
                subject = f"identity:{each.name}"
                wanted = Budget(subject, each.ids_per_second, each.calls_per_second, now, each.streams)
                budget = old.get(each.name, wanted)
                budget.change(wanted, now)
                self._identities[each.name] = budget
        for name, known in list(self._sequences.items()):
            fresh = self._made(name, now)
            if known is None or fresh is None:
                self._sequences[name] = fresh
            else:
                known.change(fresh, now)

    def of(self, identity: Identity, sequence: str | None) -> tuple[Budget, ...]:
        """Returns what a call counts in.

        Args:
            identity: Who calls.
            sequence: Of which sequence ids are taken; None for none.
        """
        whose = self._identities.get(identity.name)
        shared = self._of_sequence(sequence) if sequence is not None and self._access.quotas else None
        if shared is None:
            return () if whose is None else (whose,)
        return (shared,) if whose is None else (whose, shared)

    def take(self, budgets: tuple[Budget, ...], ids: int) -> None:
        """Lets a call in, and takes what it asks for.

        Raises:
            QuotaExceeded: A quota is used up. Nothing was taken.
        """
        now = self._now()
        for budget in budgets:
            budget.check(now, ids)
        for budget in budgets:
            if budget.calls is not None:
                budget.calls.take(1, now)
            if budget.ids is not None:
                budget.ids.take(ids, now)

    def take_more(self, budgets: tuple[Budget, ...], ids: int) -> float:
        """Takes ids for the next message of a stream.

        Returns:
            0 where they were taken; else nothing was, and it is the time in seconds until there may be some.
        """
        now = self._now()
        wait = max([budget.ids.wait(now) for budget in budgets if budget.ids is not None], default=0.0)
        if not wait:
            for budget in budgets:
                if budget.ids is not None:
                    budget.ids.take(ids, now)
        return wait

    def give_back(self, budgets: tuple[Budget, ...], ids: int) -> None:
        """Gives ids back that a call took, and did not get."""
        for budget in budgets:
            if budget.ids is not None:
                budget.ids.give(ids)

    def begin_stream(self, identity: Identity) -> Callable[[], None]:
        """Counts a stream.

        Returns:
            What has to be called when it has ended.

        Raises:
            QuotaExceeded: The identity has as many as it may.
        """
        budget = self._identities.get(identity.name)
        if budget is None:
            return _nothing
        if budget.streams is not None and budget.open_streams >= budget.streams:
            raise QuotaExceeded(budget.subject, "streams", budget.streams, STREAMS_RETRY_SECONDS)
        budget.open_streams += 1
        return budget.end_stream

    def _of_sequence(self, name: str) -> Budget | None:
        try:
            return self._sequences[name]
        except KeyError:
            pass
        if len(name) > MAX_NAME_BYTES:
            return None  # It is no sequence's, and too long to be kept.
        now = self._now()
        if len(self._sequences) >= self._most:
            self._forget_some(now)
        budget = self._sequences[name] = self._made(name, now)
        return budget

    def _made(self, name: str, now: float) -> Budget | None:
        for quota in self._access.quotas:
            if quota.sequence.match(name):
                return Budget(f"sequence:{name}", quota.ids_per_second, quota.calls_per_second, now)
        return None

    def _forget_some(self, now: float) -> None:
        """Makes room for names: those that owe longest are kept."""
        owing = ((budget.seconds_to_full(now), name) for name, budget in self._sequences.items() if budget)
        kept = nlargest(self._most // 2, (each for each in owing if each[0] > 0))
        self._sequences = {name: self._sequences[name] for _, name in kept}


def _nothing() -> None:
    pass
