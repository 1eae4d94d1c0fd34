"""Limits of callers: charge each call to the quotas, and limit the rate of rejected callers.

``quotas.py`` has the token buckets behind ``charge``, ``rejected_callers.py`` those of rejected
callers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from idalloc_server.auth.access import AccessPolicy, Identity
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.quotas import Budget, Quotas
from idalloc_server.auth.rejected_callers import RejectedCallers, host_of
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import QuotaExceeded, Refusal, Unauthenticated


class Limits:
    """The limits of all callers of this process.

    A call that exceeds one raises ``QuotaExceeded`` and is audited.
    """

    def __init__(self, clock: Clock, policy: AccessPolicy, audit: Audit) -> None:
        self.quotas = Quotas(clock, policy)
        self._audit = audit
        self._unauthenticated_hosts = RejectedCallers(clock)
        self._denied_identities = RejectedCallers(clock)

    def charge(self, method: str, identity: Identity, budgets: tuple[Budget, ...], ids: int) -> None:
        """Charge one call and its ids to all budgets, or to none if one is exhausted."""
        try:
            self.quotas.charge(budgets, ids)
        except QuotaExceeded as refusal:
            self._count(method, identity, refusal)
            raise

    def charge_call(self, method: str, identity: Identity) -> None:
        """Charge a call that takes no ids to the budget of its identity."""
        self.charge(method, identity, self.quotas.budgets_of(identity, None), 0)

    def charge_more(self, method: str, identity: Identity, calls: int, ids: int) -> None:
        """Charge further calls and ids to the budget of an identity whose call is admitted."""
        try:
            self.quotas.charge_more(self.quotas.budgets_of(identity, None), calls, ids)
        except QuotaExceeded as refusal:
            self._count(method, identity, refusal)
            raise

    @contextmanager
    def stream_slot(self, method: str, identity: Identity) -> Iterator[None]:
        """Hold one of the streams of an identity while this block runs."""
        try:
            close = self.quotas.open_stream(identity)
        except QuotaExceeded as refusal:
            self._count(method, identity, refusal)
            raise
        try:
            yield
        finally:
            close()

    def record_unauthenticated(self, method: str, peer: str, refusal: Unauthenticated) -> None:
        """Record an unauthenticated call.

        Beyond the rate of its host, only count it, and set ``refusal.wait``.
        """
        host = host_of(peer)
        refusal.wait = self._unauthenticated_hosts.count_rejection(host)
        if refusal.wait:
            self._audit.count_rejected(refusal, identity=None, method=method, subject=f"host:{host}")
        else:
            self._audit.record_rejected(refusal, identity=None, peer=peer, method=method)

    def record_denied(self, method: str, identity: Identity, refusal: Refusal, peer: str, **target: str) -> None:
        """Record a call that was denied to an identity, with its target; beyond a rate count it."""
        name = identity.name
        if self._denied_identities.count_rejection(name):
            self._audit.count_rejected(refusal, identity=name, method=method, subject=f"identity:{name}")
        else:
            self._audit.record_rejected(refusal, identity=name, peer=peer, method=method, **target)

    def _count(self, method: str, identity: Identity, refusal: QuotaExceeded) -> None:
        self._audit.count_rejected(refusal, identity=identity.name, method=method, subject=refusal.subject)
