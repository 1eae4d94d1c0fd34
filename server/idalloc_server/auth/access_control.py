"""Access control of one process: authentication, authorization, limits and audit of its calls."""

import asyncio
from typing import Any, NoReturn

from idalloc_server.auth.access import ADMIN, AccessPolicy, Identity
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.authenticate import Authenticator
from idalloc_server.auth.authorize import RULES, Authorizer
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.limits import Limits
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import Refusal
from idalloc_server.grpc_types import Context, MetadataReader, invocation_metadata


class AccessControl:
    """Checks calls before their handlers.

    Args:
        clock: The clock of the limits.
        max_ids_per_call: The largest number of ids per message.
        policy: Identities and quotas; None if every caller may do everything.
        requires_authentication: Whether authentication is required even if the policy has no identity.
        metadata_of: Reads the metadata of a call.
        certificates: Checks client certificates; None if clients present none.

    Attributes:
        audit: The audit log.
    """

    def __init__(
        self,
        clock: Clock,
        max_ids_per_call: int,
        policy: AccessPolicy | None = None,
        *,
        requires_authentication: bool = False,
        metadata_of: MetadataReader = invocation_metadata,
        certificates: ClientCertificates | None = None,
    ) -> None:
        current = AccessPolicy() if policy is None else policy
        self.audit = Audit()
        self.certificates = certificates
        self._limits = Limits(clock, current, self.audit)
        self._authenticator = Authenticator(current, self._limits, requires_authentication, metadata_of, certificates)
        enabled = policy is not None or certificates is not None
        self._authorizer = Authorizer(self._authenticator, self._limits, self.audit, max_ids_per_call, enabled=enabled)

    @property
    def requires_authentication(self) -> bool:
        """Whether callers must authenticate."""
        return self._authenticator.required

    def require_authentication(self) -> None:
        """Require authentication from now on, including on open streams."""
        self._authenticator.require()

    def use(self, policy: AccessPolicy) -> None:
        """Apply another policy. Open streams that it does not allow end before their next message."""
        self._authenticator.use(policy)
        self._limits.quotas.use(policy)

    def wrap(self, method: str, handler: Any, *, streams: bool) -> Any:
        """Return a handler that checks calls before another one; see ``Authorizer.wrap``."""
        return self._authorizer.wrap(method, handler, streams=streams)

    def authenticate(self, method: str, context: Context) -> Identity:
        """Return the identity that calls; see ``Authenticator.authenticate``."""
        return self._authenticator.authenticate(method, context)

    def charge_call(self, method: str, context: Context) -> Identity:
        """Authenticate and charge a call that requires no role, and return its identity."""
        identity = self.authenticate(method, context)
        self._limits.charge_call(method, identity)
        return identity

    def reject(self, method: str, context: Context, refusal: Refusal) -> NoReturn:
        """Reject a call without a look at its request, such as on a server that drains.

        Raises:
            Refusal: The given one; or Unauthenticated or QuotaExceeded, which take precedence.
        """
        identity = self.charge_call(method, context)
        if RULES[method].role == ADMIN:
            self._limits.record_denied(method, context, identity, refusal, None)
        raise refusal

    def end_streams(self) -> None:
        """End streams that wait for their quota."""
        self._authorizer.end_streams()

    async def log_totals(self) -> None:
        """Write the audit's counts each second until cancelled."""
        while True:
            await asyncio.sleep(1)
            self.audit.log_totals()
