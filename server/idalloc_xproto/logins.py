"""Logins of sessions: authenticate once, then check each statement against the current policy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from idalloc_server.auth.sessions import ANONYMOUS, AccessControl, Identity
from idalloc_server.domain.errors import Unauthenticated


class Peer(NamedTuple):
    """The other end of a connection, with the methods of a gRPC call's context for it."""

    address: str  # such as ``ipv4:10.0.0.7:51234``
    certificate: Mapping[str, Iterable[bytes]] = {}  # see ``auth_context_of``

    def peer(self) -> str:
        """Return the address."""
        return self.address

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the client certificate in gRPC's form; nothing without one."""
        return self.certificate


class Credential(NamedTuple):
    """What a session logged in with."""

    name: str  # of the identity
    digest: bytes  # the SHA-256 of its token; empty without authentication
    # When its client certificate expires, in seconds since 1970; None if clients present none.
    expires_at: float | None = None


@dataclass(eq=False)
class Logins:
    """Authenticates sessions, and charges the documents that they add."""

    access_control: AccessControl

    def __post_init__(self) -> None:
        self.authenticator = self.access_control.authenticator  # has the current policy
        self.limits = self.access_control.limits  # charges quotas, and limits rejected callers
        self.certificates = self.access_control.certificates  # None if clients present none

    def log_in(self, method: str, name: str, token: str | None, peer: Peer) -> Credential | None:
        """Return what the session logs in with; None if the name and the token match no identity.

        Raises:
            Unauthenticated: The client certificate has expired, or cannot be read; or the login is
                wrong, and this host must wait, since it sent such logins too often.
        """
        context: Any = peer
        self.authenticator.check_certificate(method, context)
        expires_at = self.certificates.find(context).expires_at if self.certificates else None
        if not self.authenticator.required:
            return Credential(ANONYMOUS.name, b"", expires_at)
        identity = None if token is None else self.authenticator.policy.find_by_token(token)
        if token is None or identity is None or identity.name != name:
            refusal = Unauthenticated("the name and the token match no identity of the access file")
            # A proof is expected to fail: clients try it before they send the token.
            if token is not None:
                self.limits.record_unauthenticated(method, peer.address, refusal)
            if refusal.wait:
                raise refusal
            return None
        return Credential(name, sha256(token.encode("utf-8", "surrogatepass")).digest(), expires_at)

    def seconds_left(self, credential: Credential) -> float:
        """Return the seconds until a session's client certificate expires; infinity without one.

        Raises:
            Unauthenticated: It has expired.
        """
        if self.certificates is None or credential.expires_at is None:
            return inf
        return self.certificates.seconds_to(credential.expires_at)

    def identity(self, credential: Credential) -> Identity:
        """Return the identity of a session under the current policy.

        Raises:
            Unauthenticated: The identity or its token was removed, or its client certificate has
                expired.
        """
        self.seconds_left(credential)
        if not self.authenticator.required:
            return ANONYMOUS
        for identity in self.authenticator.policy.identities:
            if identity.name == credential.name and credential.digest in identity.tokens:
                return identity
        raise Unauthenticated("the access file no longer has this identity or its token")

    def charge_documents(self, method: str, identity: Identity, given: int, generated: int) -> None:
        """Charge a call for each given id beyond the first one, and all generated ids.

        Raises:
            QuotaExceeded: The quota of ids is exhausted.
        """
        budgets = self.limits.quotas.budgets_of(identity, None)
        self.limits.charge(method, identity, budgets, generated, more_calls=max(0, given - 1))

    def refund(self, identity: Identity, ids: int) -> None:
        """Refund ids that were charged and not generated."""
        quotas = self.limits.quotas
        quotas.refund(quotas.budgets_of(identity, None), ids)
