"""Logins for a session: authenticate once, and check each later statement against the current access policy."""

from hashlib import sha256
from typing import NamedTuple

from idalloc_server.auth.access import ANONYMOUS, AccessPolicy, Identity
from idalloc_server.auth.authenticate import Authenticator
from idalloc_server.auth.limits import Limits
from idalloc_server.domain.errors import PermissionDenied, Unauthenticated


class Peer(NamedTuple):
    """The other end of a connection, in the form that the audit knows from gRPC.

    Attributes:
        address: The address, such as ``ipv4:10.0.0.7:51234``.
    """

    address: str

    def peer(self) -> str:
        """Return the address."""
        return self.address


class Credential(NamedTuple):
    """What a session logged in with.

    Attributes:
        name: The name of the identity.
        digest: The SHA-256 of its token; empty without authentication.
    """

    name: str
    digest: bytes


class Logins:
    """Authenticates sessions, and authorizes and charges what they do.

    Args:
        authenticator: Has the current policy.
        limits: Charges quotas, and limits rejected callers.
    """

    def __init__(self, authenticator: Authenticator, limits: Limits) -> None:
        self._authenticator = authenticator
        self._limits = limits

    def log_in(self, method: str, name: str, token: str | None, peer: Peer) -> Credential | None:
        """Return what the session logs in with; None if the name and the token match no identity.

        Raises:
            QuotaExceeded: They match none, and this host sent such logins too often.
        """
        if not self._authenticator.required:
            return Credential(ANONYMOUS.name, b"")
        policy: AccessPolicy = self._authenticator.policy
        identity = None if token is None else policy.find_by_token(token)
        if token is None or identity is None or identity.name != name:
            refusal = Unauthenticated("the name and the token match no identity of the access file")
            if token is not None:  # A proof is expected to fail: clients try it before they send the token.
                exceeded = self._limits.record_unauthenticated(method, peer, refusal)  # type: ignore[arg-type]
                if exceeded:
                    raise exceeded
            return None
        return Credential(name, sha256(token.encode("utf-8", "surrogatepass")).digest())

    def identity(self, credential: Credential) -> Identity:
        """Return the identity of a session under the current policy.

        Raises:
            Unauthenticated: The policy no longer has it, or has no longer its token.
        """
        if not self._authenticator.required:
            return ANONYMOUS
        for identity in self._authenticator.policy.identities:
            if identity.name == credential.name and credential.digest in identity.tokens:
                return identity
        raise Unauthenticated("the access file no longer has this identity or its token")

    def charge(self, method: str, identity: Identity, ids: int) -> None:
        """Charge one call and its ids to the quota of an identity.

        Raises:
            QuotaExceeded: The quota is exhausted.
        """
        self._limits.charge(method, identity, self._limits.quotas.budgets_of(identity, None), ids)

    def refund(self, identity: Identity, ids: int) -> None:
        """Refund ids that were charged and not made."""
        self._limits.quotas.refund(self._limits.quotas.budgets_of(identity, None), ids)

    def record_denied(
        self, method: str, identity: Identity, refusal: PermissionDenied, peer: Peer, **target: str
    ) -> None:
        """Record a call that was denied to an identity, with what it named."""
        self._limits.record_denied(method, peer, identity, refusal, **target)  # type: ignore[arg-type]
