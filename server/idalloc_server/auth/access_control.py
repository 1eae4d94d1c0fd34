"""Access control of one process: the checks before a call's handler.

Each call is authenticated (``authenticate.py``), needs the role of its method's rule
(``authorize.py``), and is charged to quotas (``limits.py``). Rejected and administrative calls are
recorded (``audit.py``).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any, NoReturn

from idalloc_server.auth.access import ADMIN, READ, AccessPolicy, Identity
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.authenticate import Authenticator
from idalloc_server.auth.authorize import RULES, Rule
from idalloc_server.auth.call_types import (
    Admit,
    Context,
    MessageStream,
    MetadataReader,
    PeerReader,
    Refund,
    UnaryHandler,
    connection_peer,
    invocation_metadata,
)
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.limits import Limits
from idalloc_server.auth.quotas import Budget
from idalloc_server.auth.turns import StreamShare
from idalloc_server.domain.allocation.config import admit_creation
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import PermissionDenied, Refusal, RequestIdBurned, RequestIdReused
from idalloc_server.domain.sequences.sequence import MAX_NAME_BYTES

# How often a stream that waits for its quota checks whether it must end.
STREAM_POLL_SECONDS = 0.2

_READER = Rule(READ, all_sequences=True)


class AccessControl:
    """Checks calls before their handlers.

    Args:
        clock: The clock of the limits.
        max_ids_per_call: The largest number of ids per message. A call for more is not charged,
            since its handler rejects it.
        policy: Identities and quotas; None if every caller may do everything.
        requires_authentication: Whether authentication is required even if the policy has no
            identity.
        metadata_of: Reads the metadata of a call.
        certificates: Checks client certificates; None if clients present none.
        peer_of: Reads the address of a call's peer; by default the connection's.
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
        peer_of: PeerReader = connection_peer,
    ) -> None:
        current = AccessPolicy() if policy is None else policy
        self.audit = Audit()
        self.metadata_of = metadata_of
        self.certificates = certificates
        self.peer_of = peer_of
        self.limits = Limits(clock, current, self.audit)
        self.authenticator = Authenticator(
            current,
            self.limits,
            required=requires_authentication or bool(current.identities),
            metadata_of=metadata_of,
            peer_of=peer_of,
            certificates=certificates,
        )
        self.max_ids = max_ids_per_call
        # If not, only administrative calls are wrapped, for the audit.
        self.checks_calls = policy is not None or certificates is not None

    @property
    def requires_authentication(self) -> bool:
        """Whether callers must authenticate."""
        return self.authenticator.required

    def apply_policy(self, policy: AccessPolicy) -> None:
        """Apply another policy.

        Open streams that it does not allow end before their next message; those of AllocateStream,
        before their next answer.
        """
        self.authenticator.apply_policy(policy)
        self.limits.quotas.apply_policy(policy)

    def add_checks(self, method: str, handler: Any, *, streams: bool) -> Any:
        """Return a handler that checks calls of a method before ``handler``.

        If there is nothing to check, that is ``handler`` itself.

        Args:
            method: The full name of the method, such as ``/idalloc.v1.NodeService/GetNode``.
            handler: A ``StreamHandler``, a ``RequestsHandler``, a ``BatchHandler``, a
                ``ListHandler`` or a ``UnaryHandler``.
            streams: Whether the method sends a stream. Then the returned handler is a
                ``StreamHandler``, or it takes the ``MessageStream`` and the context. Any other
                returned handler is a ``UnaryHandler``.
        """
        rule = RULES[method]
        checked = _CheckedMethod(self, method, rule, handler)
        if rule.is_batch:
            return checked.call_with_requests if streams else checked.call_batch
        if rule.role == ADMIN:
            return checked.call_admin
        if not self.checks_calls:
            return handler
        if rule.role == READ:
            return checked.call_read
        return checked.stream if streams else checked.allocating()

    def share_of(self, context: Context) -> StreamShare:
        """Return the share of a stream: of its caller's identity, else of its connection."""
        known = self.authenticator
        return StreamShare(
            self.limits.shares, lambda: (known.required and known.name_of(context)) or self.peer_of(context)
        )

    def authorize_reader(self, method: str, context: Context) -> None:
        """Check that a caller may read everything, such as all metrics, and charge the call.

        ``method`` is what the audit names. The context needs only ``peer``, ``invocation_metadata``
        and ``auth_context``.

        Raises:
            Refusal: The caller is not authenticated, lacks the role read on all sequences, or
                exceeds a limit.
        """
        identity, _ = _CheckedMethod(self, method, _READER).authorize(None, context)
        self.limits.charge_call(method, identity)

    def refuse_unread(self, method: str, context: Context, refusal: Refusal) -> NoReturn:
        """Refuse a call without reading its request, as on a server that drains.

        Raises:
            Refusal: The given one; or Unauthenticated or QuotaExceeded, which take precedence.
        """
        identity = self.authenticator.authenticate(method, context)
        self.limits.charge_call(method, identity)
        if RULES[method].role == ADMIN:
            self.limits.record_denied(method, identity, refusal, self.peer_of(context))
        raise refusal


@dataclass(frozen=True)
class _CheckedMethod:
    """The checks of one method's calls before its handler."""

    access_control: AccessControl
    method: str  # the full name
    rule: Rule
    handler: Any = None  # see ``AccessControl.add_checks``; None if only ``authorize`` is called

    def authorize(self, request: Any, context: Context) -> tuple[Identity, str | None]:
        """Return the caller's identity, and the sequence that its request names.

        Raises:
            Refusal: The caller is not authenticated, lacks the required role, or exceeds a limit.
        """
        rule = self.rule
        identity = self.access_control.authenticator.authenticate(self.method, context)
        sequence = attrgetter(rule.sequence_field)(request) if rule.sequence_field else None
        if not (identity.roles[rule.role].any_name if rule.all_sequences else identity.has_role(rule.role, sequence)):
            self._deny(context, identity, sequence)
        admit_creation.set(partial(self.access_control.limits.charge_creation, self.method, identity))
        return identity, sequence

    def _deny(self, context: Context, identity: Identity, sequence: str | None) -> NoReturn:
        limits = self.access_control.limits
        limits.charge_call(self.method, identity)
        sequence = None if sequence is None else shorten(sequence)
        refusal = PermissionDenied(identity.name, self.rule.role, sequence)
        target = {} if sequence is None else {"sequence": sequence}
        limits.record_denied(self.method, identity, refusal, self.access_control.peer_of(context), **target)
        raise refusal

    def _admit(self, context: Context, identity: Identity, sequence: str | None, ids: int) -> Refund | None:
        """See ``AdmitRequest``."""
        if not identity.has_role(self.rule.role, sequence):
            self._deny(context, identity, sequence)
        limits = self.access_control.limits
        budgets = limits.quotas.budgets_of(identity, sequence)
        if not budgets:
            return None
        ids = (ids or 1) if 0 <= ids <= self.access_control.max_ids else 0
        limits.charge(self.method, identity, budgets, ids)
        return partial(limits.quotas.refund, budgets, ids)

    def allocating(self) -> UnaryHandler:
        """Return the handler of a unary method that takes ids."""
        method = self.method
        role = self.rule.role
        has_sequence = bool(self.rule.sequence_field)
        handler = self.handler
        most = self.access_control.max_ids
        limits = self.access_control.limits
        quotas = limits.quotas
        authenticate = self.access_control.authenticator.authenticate
        charge = limits.charge
        charge_creation = limits.charge_creation

        # The hot path: each Python call counts here.
        async def call(request: Any, context: Context) -> Any:
            identity = authenticate(method, context)
            sequence = request.sequence if has_sequence else None
            if not identity.has_role(role, sequence):
                self._deny(context, identity, sequence)
            if has_sequence:
                admit_creation.set(partial(charge_creation, method, identity))
            budgets = quotas.budgets_of(identity, sequence)
            if not budgets:
                return await handler(request, context)
            count = request.id_count or 1
            ids = count if 0 < count <= most else 0
            charge(method, identity, budgets, ids)
            try:
                return await handler(request, context)
            except (RequestIdReused, RequestIdBurned):
                raise  # The call may have burned as many ids.
            except Refusal:
                quotas.refund(budgets, ids)
                raise

        return call

    async def call_batch(self, request: Any, context: Context) -> Any:
        """Check a call, and let its handler (``BatchHandler``) check each of the requests in it."""
        if not self.access_control.checks_calls:
            return await self.handler(request, context, lambda sequence, ids: None)
        identity, _ = self.authorize(request, context)
        try:
            return await self.handler(request, context, partial(self._admit, context, identity))
        except Refusal:
            self.access_control.limits.charge_call(self.method, identity)  # An invalid request is a call, too.
            raise

    async def call_with_requests(self, messages: MessageStream, context: Context) -> None:
        """Check a stream, and let its handler (``RequestsHandler``) check each request in it."""
        if not self.access_control.checks_calls:
            await self.handler(messages, context, None)
            return
        caller = _StreamCaller(self, None, context)
        caller.check()
        limits = self.access_control.limits
        limits.charge_call(self.method, caller.identity)
        messages.check = caller.check

        async def admit(sequence: str | None, ids: int, seconds: float) -> Refund | None:
            await caller.wait_for_quota(ids, messages.pause, seconds, has_call=True)
            return self._admit(context, caller.identity, sequence, ids)

        with limits.stream_slot(self.method, caller.identity):
            await self.handler(messages, context, admit)

    async def stream(self, request: Any, context: Context, admit: Admit) -> AsyncGenerator[Any, None]:
        """Check a call, and charge the ids of each message that its handler sends."""
        limits = self.access_control.limits
        caller = _StreamCaller(self, request, context)
        caller.check()
        unsent: int | None = None  # charged ids of a message that is not sent yet

        async def pause(seconds: float) -> None:
            await asyncio.sleep(seconds)
            await admit(0)

        async def charge(ids: int) -> None:
            nonlocal unsent
            await admit(0)
            if unsent is None:
                limits.charge(self.method, caller.identity, caller.budgets, ids)
            else:
                await caller.wait_for_quota(ids, pause)
                limits.quotas.charge(caller.budgets, ids, more_calls=0)
            unsent = ids
            await admit(ids)

        with limits.stream_slot(self.method, caller.identity):
            try:
                async with aclosing(self.handler(request, context, charge)) as replies:
                    async for reply in replies:
                        yield reply
                        unsent = 0
            except Refusal:
                if unsent is None:
                    limits.charge(self.method, caller.identity, caller.budgets, 0)  # as a call
                limits.quotas.refund(caller.budgets, unsent or 0)
                raise

    async def call_read(self, request: Any, context: Context) -> Any:
        """Check and charge a call that takes no ids."""
        identity, _ = self.authorize(request, context)
        self.access_control.limits.charge_call(self.method, identity)
        if self.rule.lists_sequences:
            return await self.handler(request, context, identity.roles[READ])
        return await self.handler(request, context)

    async def call_admin(self, request: Any, context: Context) -> Any:
        """Check, charge and audit a call that changes something."""
        identity, sequence = self.authorize(request, context)
        self.access_control.limits.charge_call(self.method, identity)
        fields: dict[str, Any] = {} if sequence is None else {"sequence": sequence}
        fields |= {name: getattr(request, name) for name in self.rule.audited_fields}
        fields = {name: shorten(value) if isinstance(value, str) else value for name, value in fields.items()}
        peer = self.access_control.peer_of(context)
        with self.access_control.audit.record_admin_call(
            identity=identity.name, peer=peer, method=self.method, **fields
        ):
            return await self.handler(request, context)


@dataclass(eq=False)
class _StreamCaller:
    """The caller of one stream, who is checked again while the stream is open."""

    checked: _CheckedMethod
    request: Any  # names the sequence of all messages; None if each names its own
    context: Context
    identity: Identity = field(init=False)
    budgets: tuple[Budget, ...] = field(init=False)  # those of the stream's sequence
    _policy: AccessPolicy | None = field(default=None, init=False)

    def check(self) -> None:
        """Authorize the caller again if the policy has changed."""
        access_control = self.checked.access_control
        policy = access_control.authenticator.policy
        if self._policy is not policy:
            self.identity, sequence = self.checked.authorize(self.request, self.context)
            self.budgets = access_control.limits.quotas.budgets_of(self.identity, sequence)
            self._policy = policy

    async def wait_for_quota(
        self, ids: int, pause: Callable[[float], Awaitable[None]], seconds: float = inf, *, has_call: bool = False
    ) -> None:
        """Check the caller, and wait until its budgets admit ids, and a call if it has one.

        Return at once if that takes more than ``seconds``. ``pause`` waits, and raises the error of
        a stream that must end.
        """
        access_control = self.checked.access_control
        while True:
            access_control.authenticator.check_certificate(self.checked.method, self.context)
            self.check()
            wait = access_control.limits.quotas.seconds_to_wait(self.budgets, ids, has_call=has_call)
            if not 0 < wait <= seconds:
                return
            wait = min(wait, STREAM_POLL_SECONDS)
            seconds -= wait
            await pause(wait)


def shorten(text: str) -> str:
    """Cut a caller's text to the length of the longest valid name, for a status or a log line."""
    return text if len(text) <= MAX_NAME_BYTES else f"{text[:MAX_NAME_BYTES]}…"
