"""Authentication: find the identity of a caller by its bearer token or its client certificate."""

from dataclasses import dataclass, field
from typing import NoReturn

from idalloc_server.auth.access import ANONYMOUS, AccessPolicy, Identity
from idalloc_server.auth.call_types import Context, MetadataReader, PeerReader
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.limits import Limits
from idalloc_server.domain.errors import Unauthenticated


@dataclass(eq=False)
class Authenticator:
    """Authenticates calls.

    Once authentication is required it stays required. A policy without identities then rejects
    every call.
    """

    policy: AccessPolicy  # a new object means that open streams must authenticate again
    limits: Limits  # counts rejected calls by host
    required: bool  # whether authentication is required; if not, every caller is ``ANONYMOUS``
    # See ``AccessControl``.
    metadata_of: MetadataReader
    peer_of: PeerReader
    certificates: ClientCertificates | None
    # By the value of the metadata: hashing a token costs more than the rest of the authentication.
    authenticated: dict[str, Identity] = field(default_factory=dict, init=False, repr=False)

    def apply_policy(self, policy: AccessPolicy) -> None:
        """Apply another policy."""
        self.policy = policy
        self.authenticated = {}
        self.required = self.required or bool(policy.identities) or policy.is_empty

    def require_authentication(self) -> None:
        """Require authentication from now on, including on open streams."""
        self.required = True
        self.policy = AccessPolicy(self.policy.identities, self.policy.quotas)

    def authenticate(self, method: str, context: Context) -> Identity:
        """Return the identity that calls.

        Raises:
            Unauthenticated: The credentials are missing or invalid.
        """
        names = self.check_certificate(method, context)
        if not self.required:
            return ANONYMOUS
        authorization = None
        for key, value in self.metadata_of(context):
            if key == "authorization":
                if authorization is not None:
                    self._reject(method, context, "metadata 'authorization' was sent more than once; send one token")
                authorization = value
        if authorization is not None:
            # Python's hashes of strings are keyed: the time of this lookup reveals nothing about
            # other tokens.
            identity = self.authenticated.get(authorization)
            if identity is not None:
                return identity
            if authorization[:7].lower() != "bearer ":
                self._reject(method, context, "metadata 'authorization' must have the form: Bearer TOKEN")
            identity = self.policy.find_by_token(authorization[7:])
            if identity is None:
                self._reject(method, context, "the token matches no identity of the access file")
            self.authenticated[authorization] = identity
            return identity
        if names:
            identity = self.policy.find_by_certificate(names)
            if identity is None:
                self._reject(method, context, "the client certificate must match one identity of the access file")
            return identity
        return self._reject(method, context, "authentication is required: send a token or a client certificate")

    def name_of(self, context: Context) -> str | None:
        """Return the name of the identity that called, for the log; None if it was rejected."""
        if not self.required:
            return ANONYMOUS.name
        for key, value in self.metadata_of(context):
            if key == "authorization":
                known = self.authenticated.get(value)
                return known.name if known else None
        try:
            known = self.policy.find_by_certificate(self.certificates.check(context)) if self.certificates else None
        except Unauthenticated:
            return None
        return known.name if known else None

    def check_certificate(self, method: str, context: Context) -> tuple[str, ...]:
        """Return the names in the client certificate; none if clients present no certificates.

        Raises:
            Refusal: The certificate has expired or cannot be read; see ``authenticate``.
        """
        if self.certificates is None:
            return ()
        try:
            return self.certificates.check(context)
        except Unauthenticated as refusal:
            self._reject(method, context, str(refusal))

    def _reject(self, method: str, context: Context, why: str) -> NoReturn:
        refusal = Unauthenticated(why)
        self.limits.record_unauthenticated(method, self.peer_of(context), refusal)
        raise refusal
