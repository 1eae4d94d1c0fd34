"""Access control of one process: the checks before a call's handler.

Each call is authenticated (``authenticate.py``), needs the role of its method's rule
(``authorize.py``), and is charged to quotas (``limits.py``). Rejected and administrative calls are
recorded (``audit.py``).
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import attrgetter
from typing import Any, NoReturn

from idalloc_server.auth.access import ADMIN, READ, AccessPolicy, Identity
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.authenticate import Authenticator
from idalloc_server.auth.authorize import RULES, Rule, readable_sequences
from idalloc_server.auth.call_types import (
    Admit,
    BatchHandler,
    Context,
    MessageStream,
    MetadataReader,
    PeerReader,
    Refund,
    RequestsHandler,
    StreamHandler,
    UnaryHandler,
    connection_peer,
    invocation_metadata,
)
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.limits import Limits
from idalloc_server.auth.turns import StreamShare
from idalloc_server.domain.allocation.config import admit_creation
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import PermissionDenied, Refusal, RequestIdBurned, RequestIdReused
from idalloc_server.domain.sequences.model import MAX_NAME_BYTES

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
            current, self.limits, requires_authentication, metadata_of, peer_of, certificates
        )
        self._max_ids = max_ids_per_call
        # If not, only administrative calls are wrapped, for the audit.
        self._checks_calls = policy is not None or certificates is not None

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
            handler: A ``StreamHandler``, a ``RequestsHandler``, a ``BatchHandler`` or a
                ``UnaryHandler``.
            streams: Whether the method sends a stream. Then the returned handler is a
                ``StreamHandler``, or it takes the ``MessageStream`` and the context. Any other
                returned handler is a ``UnaryHandler``.
        """
        rule = RULES[method]
        if rule.is_batch and streams:
            return self._check_requests(method, rule, handler)
        if rule.is_batch:
            return self._check_batch(method, rule, handler)
        if rule.role == ADMIN:
            return self._check_admin(method, rule, handler)
        if not self._checks_calls:
            return handler
        if rule.role == READ:
            return self._check_read(method, rule, handler)
        return self._check_stream(method, rule, handler) if streams else self._check_allocate(method, rule, handler)

    def _check_allocate(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        role, has_sequence, most = rule.role, bool(rule.sequence_field), self._max_ids
        authenticate, charge, quotas = self.authenticator.authenticate, self.limits.charge, self.limits.quotas
        charge_creation = self.limits.charge_creation

        # The hot path: each Python call counts here.
        async def call(request: Any, context: Context) -> Any:
            identity = authenticate(method, context)
            sequence = request.sequence if has_sequence else None
            if not identity.has_role(role, sequence):
                self._deny(method, context, identity, rule, sequence)
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

    def _check_batch(self, method: str, rule: Rule, handler: BatchHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            if not self._checks_calls:
                return await handler(request, context, lambda sequence, ids: None)
            identity, _ = self._authorize(method, rule, request, context)
            try:
                return await handler(request, context, partial(self._admit, method, rule, context, identity))
            except Refusal:
                self.limits.charge_call(method, identity)  # An invalid request is a call, too.
                raise

        return call

    def _check_requests(self, method: str, rule: Rule, handler: RequestsHandler) -> Callable[..., Awaitable[None]]:
        async def serve(messages: MessageStream, context: Context) -> None:
            if not self._checks_calls:
                await handler(messages, context, None)
                return
            caller = _StreamCaller(self, method, context, partial(self._authorize, method, rule, None, context))
            self.limits.charge_call(method, caller.identity)
            messages.check = caller.check

            async def admit(sequence: str | None, ids: int, seconds: float) -> Refund | None:
                await caller.wait_for_quota(ids, messages.pause, seconds, has_call=True)
                return self._admit(method, rule, context, caller.identity, sequence, ids)

            with self.limits.stream_slot(method, caller.identity):
                await handler(messages, context, admit)

        return serve

    def _check_stream(self, method: str, rule: Rule, handler: StreamHandler) -> StreamHandler:
        limits = self.limits

        async def stream(request: Any, context: Context, admit: Admit) -> AsyncGenerator[Any, None]:
            caller = _StreamCaller(self, method, context, partial(self._authorize, method, rule, request, context))
            unsent: int | None = None  # charged ids of a message that is not sent yet

            async def pause(seconds: float) -> None:
                await asyncio.sleep(seconds)
                await admit(0)

            async def charge(ids: int) -> None:
                nonlocal unsent
                await admit(0)
                if unsent is None:
                    limits.charge(method, caller.identity, caller.budgets, ids)
                else:
                    await caller.wait_for_quota(ids, pause)
                    limits.quotas.charge(caller.budgets, ids, more_calls=0)
                unsent = ids
                await admit(ids)

            with limits.stream_slot(method, caller.identity):
                try:
                    async with aclosing(handler(request, context, charge)) as replies:
                        async for reply in replies:
                            yield reply
                            unsent = 0
                except Refusal:
                    if unsent is None:
                        limits.charge(method, caller.identity, caller.budgets, 0)  # as a call
                    limits.quotas.refund(caller.budgets, unsent or 0)
                    raise

        return stream

    def _admit(
        self, method: str, rule: Rule, context: Context, identity: Identity, sequence: str | None, ids: int
    ) -> Refund | None:
        """See ``AdmitRequest``."""
        if not identity.has_role(rule.role, sequence):
            self._deny(method, context, identity, rule, sequence)
        budgets = self.limits.quotas.budgets_of(identity, sequence)
        if not budgets:
            return None
        ids = (ids or 1) if 0 <= ids <= self._max_ids else 0
        self.limits.charge(method, identity, budgets, ids)
        return partial(self.limits.quotas.refund, budgets, ids)

    def _check_read(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            identity, _ = self._authorize(method, rule, request, context)
            self.limits.charge_call(method, identity)
            before = readable_sequences.set(identity.roles[READ])
            try:
                return await handler(request, context)
            finally:
                readable_sequences.reset(before)

        return call

    def _check_admin(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            identity, sequence = self._authorize(method, rule, request, context)
            self.limits.charge_call(method, identity)
            fields: dict[str, Any] = {} if sequence is None else {"sequence": sequence}
            fields |= {name: getattr(request, name) for name in rule.audited_fields}
            fields = {name: shorten(value) if isinstance(value, str) else value for name, value in fields.items()}
            with self.audit.record_admin_call(
                identity=identity.name, peer=self.peer_of(context), method=method, **fields
            ):
                return await handler(request, context)

        return call

    def _authorize(self, method: str, rule: Rule, request: Any, context: Context) -> tuple[Identity, str | None]:
        """Return the caller's identity, and the sequence that its request names.

        Raises:
            Refusal: The caller is not authenticated, lacks the required role, or exceeds a limit.
        """
        identity = self.authenticator.authenticate(method, context)
        sequence = attrgetter(rule.sequence_field)(request) if rule.sequence_field else None
        role = rule.role
        if not (identity.roles[role].any_name if rule.all_sequences else identity.has_role(role, sequence)):
            self._deny(method, context, identity, rule, sequence)
        admit_creation.set(partial(self.limits.charge_creation, method, identity))
        return identity, sequence

    def _deny(self, method: str, context: Context, identity: Identity, rule: Rule, sequence: str | None) -> NoReturn:
        self.limits.charge_call(method, identity)
        sequence = None if sequence is None else shorten(sequence)
        refusal = PermissionDenied(identity.name, rule.role, sequence)
        target = {} if sequence is None else {"sequence": sequence}
        self.limits.record_denied(method, identity, refusal, self.peer_of(context), **target)
        raise refusal

    def share_of(self, context: Context) -> StreamShare:
        """Return the share of a stream: of its caller's identity, else of its connection."""
        known = self.authenticator
        return StreamShare(
            self.limits.shares, lambda: (known.required and known.name_of(context)) or self.peer_of(context)
        )

    def describe_caller(self, context: Context) -> dict[str, str | None]:
        """Return the caller's address and identity for the log; the latter is None if rejected."""
        return {"peer": self.peer_of(context), "identity": self.authenticator.name_of(context)}

    def authenticate_and_charge(self, method: str, context: Context) -> Identity:
        """Authenticate and charge a call that requires no role, and return its identity."""
        identity = self.authenticator.authenticate(method, context)
        self.limits.charge_call(method, identity)
        return identity

    def authorize_reader(self, method: str, context: Context) -> None:
        """Check that a caller may read everything, such as all metrics, and charge the call.

        Args:
            method: What is called, for the audit.
            context: The call's context, or an object with ``peer``, ``invocation_metadata`` and
                ``auth_context``.

        Raises:
            Refusal: The caller is not authenticated, lacks the role read on all sequences, or
                exceeds a limit.
        """
        identity, _ = self._authorize(method, _READER, None, context)
        self.limits.charge_call(method, identity)

    def refuse_unread(self, method: str, context: Context, refusal: Refusal) -> NoReturn:
        """Refuse a call without reading its request, as on a server that drains.

        Raises:
            Refusal: The given one; or Unauthenticated or QuotaExceeded, which take precedence.
        """
        identity = self.authenticate_and_charge(method, context)
        if RULES[method].role == ADMIN:
            self.limits.record_denied(method, identity, refusal, self.peer_of(context))
        raise refusal


@dataclass(eq=False)
class _StreamCaller:
    """The caller of one stream, who is checked again while the stream is open."""

    access_control: AccessControl
    method: str
    context: Context
    authorize: Callable[[], tuple[Identity, str | None]]  # returns the caller, and the stream's sequence

    def __post_init__(self) -> None:
        self._policy: AccessPolicy | None = None
        self.check()

    def check(self) -> None:
        """Authorize the caller again if the policy has changed."""
        policy = self.access_control.authenticator.policy
        if self._policy is not policy:
            self.identity, sequence = self.authorize()
            self.budgets = self.access_control.limits.quotas.budgets_of(self.identity, sequence)
            self._policy = policy

    async def wait_for_quota(
        self, ids: int, pause: Callable[[float], Awaitable[None]], seconds: float = inf, *, has_call: bool = False
    ) -> None:
        """Check the caller, and wait until its budgets admit ids, and a call if it has one.

        Return at once if that takes more than ``seconds``. ``pause`` waits, and raises the error of
        a stream that must end.
        """
        while True:
            self.access_control.authenticator.check_certificate(self.method, self.context)
            self.check()
            wait = self.access_control.limits.quotas.seconds_to_wait(self.budgets, ids, has_call=has_call)
            if not 0 < wait <= seconds:
                return
            wait = min(wait, STREAM_POLL_SECONDS)
            seconds -= wait
            await pause(wait)


def shorten(text: str) -> str:
    """Cut a caller's text to the length of the longest valid name, for a status or a log line."""
    return text if len(text) <= MAX_NAME_BYTES else f"{text[:MAX_NAME_BYTES]}…"
