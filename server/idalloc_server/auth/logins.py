"""Logins for a session: authenticate once, and check each later statement against the current access policy."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from idalloc_server.auth.access import ANONYMOUS, AccessPolicy, Identity
from idalloc_server.auth.authenticate import Authenticator
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.limits import Limits
from idalloc_server.domain.errors import PermissionDenied, Unauthenticated


class Peer(NamedTuple):
    """The other end of a connection, as access control reads it of a gRPC call's context."""

    address: str  # the address, such as ``ipv4:10.0.0.7:51234``
    certificate: Mapping[str, Iterable[bytes]] = {}  # see ``auth_context_of``

    def peer(self) -> str:
        """Return the address."""
        return self.address

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the client certificate in gRPC's form; nothing without one."""
        return self.certificate


class Credential(NamedTuple):
    """What a session logged in with."""

    name: str  # the name of the identity
    digest: bytes  # the SHA-256 of its token; empty without authentication
    # When its client certificate expires, in seconds since 1970; None if clients present none.
    expires_at: float | None = None


class Logins:
    """Authenticates sessions, and authorizes and charges what they do.

    Args:
        authenticator: Has the current policy.
        limits: Charges quotas, and limits rejected callers.
        certificates: Checks client certificates; None if clients present none.
    """

    def __init__(
        self, authenticator: Authenticator, limits: Limits, certificates: ClientCertificates | None = None
    ) -> None:
        self._authenticator = authenticator
        self._limits = limits
        self._certificates = certificates

    def log_in(self, method: str, name: str, token: str | None, peer: Peer) -> Credential | None:
        """Return what the session logs in with; None if the name and the token match no identity.

        Raises:
            Unauthenticated: The client certificate has expired, or cannot be read; or the login is
                wrong, and this host must wait, since it sent such logins too often.
        """
        context: Any = peer
        self._authenticator.check_certificate(method, context)
        expires_at = self._certificates.expires_at(context) if self._certificates else None
        if not self._authenticator.required:
            return Credential(ANONYMOUS.name, b"", expires_at)
        policy: AccessPolicy = self._authenticator.policy
        identity = None if token is None else policy.find_by_token(token)
        if token is None or identity is None or identity.name != name:
            refusal = Unauthenticated("the name and the token match no identity of the access file")
            # A proof is expected to fail: clients try it before they send the token.
            if token is not None:
                self._limits.record_unauthenticated(method, context, refusal)
            if refusal.wait:
                raise refusal
            return None
        return Credential(name, sha256(token.encode("utf-8", "surrogatepass")).digest(), expires_at)

    def seconds_left(self, credential: Credential) -> float:
        """Return for how many seconds a session's client certificate is valid; infinity without one.

        Raises:
            Unauthenticated: It has expired.
        """
        if self._certificates is None or credential.expires_at is None:
            return inf
        return self._certificates.seconds_to(credential.expires_at)

    def identity(self, credential: Credential) -> Identity:
        """Return the identity of a session under the current policy.

        Raises:
            Unauthenticated: The policy no longer has it or its token, or its client certificate has
                expired.
        """
        self.seconds_left(credential)
        if not self._authenticator.required:
            return ANONYMOUS
        for identity in self._authenticator.policy.identities:
            if identity.name == credential.name and credential.digest in identity.tokens:
                return identity
        raise Unauthenticated("the access file no longer has this identity or its token")

    def charge_call(self, method: str, identity: Identity) -> None:
        """Charge a call to the quota of an identity.

        Raises:
            QuotaExceeded: The quota is exhausted.
        """
        self._limits.charge_call(method, identity)

    def charge_documents(self, method: str, identity: Identity, given: int, made: int) -> None:
        """Charge the documents of a call: a call for each given id beyond the first one, and the made ids.

        Raises:
            QuotaExceeded: The quota of ids is exhausted.
        """
        self._limits.charge_more(method, identity, max(0, given - 1), made)

    def refund(self, identity: Identity, ids: int) -> None:
        """Refund ids that were charged and not made."""
        self._limits.quotas.refund(self._limits.quotas.budgets_of(identity, None), ids)

    def record_denied(
        self, method: str, identity: Identity, refusal: PermissionDenied, peer: Peer, **target: str
    ) -> None:
        """Record a call that was denied to an identity, with what it named."""
        self._limits.record_denied(method, peer, identity, refusal, **target)  # type: ignore[arg-type]
