"""Limits of callers: charge each call to the quotas, and limit the rate of rejected callers.

``quotas.py`` has the token buckets behind ``charge``, ``rejected_callers.py`` the rates by caller.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from idalloc_server.auth.access import ANONYMOUS, AccessPolicy, Identity
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.quotas import Budget, Quotas
from idalloc_server.auth.rejected_callers import CallerRates, host_of
from idalloc_server.auth.turns import Shares
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import QuotaExceeded, Refusal, Unauthenticated

# The most sequences a second that the first uses by one identity create, and the most at once.
CREATIONS_PER_SECOND = 100
CREATIONS_AT_ONCE = 1_000


class Limits:
    """The limits of all callers of this process.

    A call that exceeds one raises ``QuotaExceeded`` and is audited. Its ``wait`` is set if the
    identity calls again before it fits.
    """

    def __init__(self, clock: Clock, policy: AccessPolicy, audit: Audit) -> None:
        self.quotas = Quotas(clock, policy)
        self._audit = audit
        self._unauthenticated_hosts = CallerRates(clock)
        self._denied_identities = CallerRates(clock)
        self._over_quota = CallerRates(clock)
        self._creations = CallerRates(clock, CREATIONS_PER_SECOND, CREATIONS_AT_ONCE)
        self._now = clock.boot
        self._retry_at: dict[str, float] = {}  # when a call of an identity fits, by its last refusal
        self.shares = Shares()

    def charge(
        self, method: str, identity: Identity, budgets: tuple[Budget, ...], ids: int, *, more_calls: int | None = None
    ) -> None:
        """Charge one call and its ids to all budgets, or to none; see ``Quotas.charge``."""
        try:
            self.quotas.charge(budgets, ids, more_calls=more_calls)
        except QuotaExceeded as refusal:
            raise self._counted(method, identity, refusal) from None

    def charge_call(self, method: str, identity: Identity) -> None:
        """Charge a call that takes no ids to the budget of its identity."""
        self.charge(method, identity, self.quotas.budgets_of(identity, None), 0)

    def charge_creation(self, method: str, identity: Identity) -> None:
        """Charge a sequence that its first use by an identity creates; limit identities only."""
        if identity is not ANONYMOUS and (seconds := self._creations.count(identity.name)):
            subject = f"identity:{identity.name}"
            refusal = QuotaExceeded(subject, "creations_per_second", CREATIONS_PER_SECOND, seconds)
            raise self._counted(method, identity, refusal)

    @contextmanager
    def stream_slot(self, method: str, identity: Identity) -> Iterator[None]:
        """Hold one of the streams of an identity while this block runs."""
        try:
            budget = self.quotas.open_stream(identity)
        except QuotaExceeded as refusal:
            raise self._counted(method, identity, refusal) from None
        try:
            yield
        finally:
            if budget is not None:
                budget.open_streams -= 1

    def record_unauthenticated(self, method: str, peer: str, refusal: Unauthenticated) -> None:
        """Record an unauthenticated call.

        Beyond the rate of its host, only count it, and set ``refusal.wait``.
        """
        host = host_of(peer)
        refusal.wait = self._unauthenticated_hosts.count(host)
        if refusal.wait:
            self._audit.count_rejected(refusal, identity=None, method=method, subject=f"host:{host}")
        else:
            self._audit.record_rejected(refusal, identity=None, peer=peer, method=method)

    def record_denied(self, method: str, identity: Identity, refusal: Refusal, peer: str, **target: str) -> None:
        """Record a call that was denied to an identity, with its target; beyond a rate count it."""
        name = identity.name
        if self._denied_identities.count(name):
            self._audit.count_rejected(refusal, identity=name, method=method, subject=f"identity:{name}")
        else:
            self._audit.record_rejected(refusal, identity=name, peer=peer, method=method, **target)

    def _counted(self, method: str, identity: Identity, refusal: QuotaExceeded) -> QuotaExceeded:
        now = self._now()
        if now < self._retry_at.get(identity.name, 0.0):  # a caller that waits as it should is not delayed
            refusal.wait = self._over_quota.count(identity.name)
        self._retry_at[identity.name] = now + refusal.retry_after
        self._audit.count_rejected(refusal, identity=identity.name, method=method, subject=refusal.subject)
        return refusal
