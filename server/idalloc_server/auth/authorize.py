"""Authorization: which role each method requires, on which sequence, and the wrappers that check it.

Each wrapper authenticates the caller, checks its role, charges its quotas, and then calls the handler.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

from idalloc_server.auth.access import ADMIN, ALLOCATE, READ, Identity, Role
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.authenticate import Authenticator
from idalloc_server.auth.limits import Limits
from idalloc_server.domain.errors import PermissionDenied, Refusal, RequestIdBurned, RequestIdReused, ServerDraining
from idalloc_server.domain.sequences.model import MAX_NAME_BYTES
from idalloc_server.domain.sequences.patterns import Patterns
from idalloc_server.grpc_types import Context, StreamHandler, UnaryHandler

# The default of chunk_id_count. It must not be less than DEFAULT_CHUNK in rpc/id_allocator.py, or a stream is charged
# too little.
DEFAULT_CHUNK = 10_000
# How often a stream that waits for its quota checks whether it must end.
STREAM_POLL_SECONDS = 0.2


class Rule(NamedTuple):
    """What a method requires of its caller.

    Attributes:
        role: The required role.
        sequence_field: The path of the request's field that names the sequence; empty if there is none.
        count_field: The request's field with the number of ids per message; empty if the method issues none.
        default_count: What 0 in that field means.
        all_sequences: Whether the role is required on every sequence.
        audited_fields: Further fields of the request in the audit log.
    """

    role: Role
    sequence_field: str = ""
    count_field: str = ""
    default_count: int = 1
    all_sequences: bool = False
    audited_fields: tuple[str, ...] = ()


# The server does not start if a method of its services has no rule.
RULES = {
    "/idalloc.v1.IdAllocatorService/AllocateRange": Rule(ALLOCATE, "sequence", "id_count"),
    "/idalloc.v1.IdAllocatorService/StreamRanges": Rule(ALLOCATE, "sequence", "chunk_id_count", DEFAULT_CHUNK),
    "/idalloc.v1.IdAllocatorService/GenerateDocId": Rule(ALLOCATE, "", "id_count"),
    "/idalloc.v1.IdAllocatorService/StreamDocIds": Rule(ALLOCATE, "", "chunk_id_count", DEFAULT_CHUNK),
    "/idalloc.v1.IdAllocatorService/GenerateUuid": Rule(ALLOCATE, "", "id_count"),
    "/idalloc.v1.SequenceService/CreateSequence": Rule(ADMIN, "sequence.name"),
    "/idalloc.v1.SequenceService/GetSequence": Rule(READ, "name"),
    "/idalloc.v1.SequenceService/ListSequences": Rule(READ),
    "/idalloc.v1.SequenceService/UpdateSequence": Rule(ADMIN, "sequence.name"),
    "/idalloc.v1.SequenceService/DeleteSequence": Rule(ADMIN, "name"),
    "/idalloc.v1.SequenceService/AdvanceSequence": Rule(ADMIN, "name", audited_fields=("past", "period")),
    "/idalloc.v1.SequenceService/ParseId": Rule(READ, "sequence"),
    "/idalloc.v1.NodeService/GetNode": Rule(READ),
    "/idalloc.v1.NodeService/UpdateNode": Rule(ADMIN, all_sequences=True, audited_fields=("persist",)),
}

_readable: ContextVar[Patterns | None] = ContextVar("readable", default=None)


def readable_sequences() -> Patterns | None:
    """Return the sequences on which the current caller has the role read; None for all."""
    return _readable.get()


class Authorizer:
    """Authorizes calls by the role that their method requires.

    Args:
        authenticator: Authenticates callers.
        limits: Charges calls to quotas.
        audit: Records administrative calls.
        max_ids_per_call: The largest number of ids per message. A call for more is charged none, since its handler
            rejects it.
        enabled: Whether calls are checked. If not, only administrative calls are wrapped, for the audit.
    """

    def __init__(
        self, authenticator: Authenticator, limits: Limits, audit: Audit, max_ids_per_call: int, *, enabled: bool
    ) -> None:
        self._authenticator = authenticator
        self._limits = limits
        self._audit = audit
        self._max_ids = max_ids_per_call
        self._enabled = enabled
        self._ending_streams = False

    def end_streams(self) -> None:
        """End streams that wait for their quota."""
        self._ending_streams = True

    def wrap(self, method: str, handler: Any, *, streams: bool) -> Any:
        """Return a handler that checks calls of a method, given by its full name; the same one if none are checked."""
        rule = RULES[method]
        if rule.role == ADMIN:
            return self._wrap_admin(method, rule, handler)
        if not self._enabled:
            return handler
        if rule.role == READ:
            return self._wrap_read(method, rule, handler)
        return self._wrap_stream(method, rule, handler) if streams else self._wrap_allocate(method, rule, handler)

    def authorize(self, method: str, rule: Rule, request: Any, context: Context) -> tuple[Identity, str | None]:
        """Return the caller's identity, and the sequence that its request names.

        Raises:
            Refusal: The caller is not authenticated, lacks the required role, or exceeds a limit.
        """
        identity = self._authenticator.authenticate(method, context)
        sequence = attrgetter(rule.sequence_field)(request) if rule.sequence_field else None
        role = rule.role
        if not (identity.roles[role].any_name if rule.all_sequences else identity.has_role(role, sequence)):
            self._deny(method, context, identity, rule, sequence)
        return identity, sequence

    def _deny(self, method: str, context: Context, identity: Identity, rule: Rule, sequence: str | None) -> NoReturn:
        self._limits.charge_call(method, identity)
        sequence = None if sequence is None else _shorten(sequence)
        refusal = PermissionDenied(identity.name, rule.role, sequence)
        self._limits.record_denied(method, context, identity, refusal, sequence)
        raise refusal

    def _wrap_allocate(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        role, has_sequence, most = rule.role, bool(rule.sequence_field), self._max_ids
        default = min(rule.default_count, most)
        authenticate, charge, quotas = self._authenticator.authenticate, self._limits.charge, self._limits.quotas

        # The hot path: each Python call counts here.
        async def call(request: Any, context: Context) -> Any:
            identity = authenticate(method, context)
            sequence = request.sequence if has_sequence else None
            if not identity.has_role(role, sequence):
                self._deny(method, context, identity, rule, sequence)
            budgets = quotas.budgets_of(identity, sequence)
            if not budgets:
                return await handler(request, context)
            ids = request.id_count or default
            if not 0 < ids <= most:
                ids = 0
            charge(method, identity, budgets, ids)
            try:
                return await handler(request, context)
            except (RequestIdReused, RequestIdBurned):
                raise  # The call may have burned as many ids.
            except Refusal:
                quotas.refund(budgets, ids)
                raise

        return call

    def _wrap_stream(self, method: str, rule: Rule, handler: StreamHandler) -> StreamHandler:
        authenticator, limits, quotas = self._authenticator, self._limits, self._limits.quotas

        async def stream(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            policy = authenticator.policy
            identity, sequence = self.authorize(method, rule, request, context)
            with limits.open_stream(method, identity):
                budgets = quotas.budgets_of(identity, sequence)
                chunk = self._chunk(rule, request)
                left = max(0, request.total_id_count)
                ids = charged = min(chunk, left)
                if budgets:
                    limits.charge(method, identity, budgets, ids)
                try:
                    async with aclosing(handler(request, context)) as replies:
                        async for reply in replies:
                            yield reply
                            left -= ids
                            ids, charged = min(chunk, left), 0
                            while left > 0:
                                authenticator.check_certificate(method, context)
                                if policy is not authenticator.policy:
                                    policy = authenticator.policy
                                    identity, sequence = self.authorize(method, rule, request, context)
                                    budgets = quotas.budgets_of(identity, sequence)
                                wait = quotas.try_charge(budgets, ids) if budgets else 0.0
                                if not wait:
                                    charged = ids
                                    break
                                if self._ending_streams:
                                    raise ServerDraining
                                await asyncio.sleep(min(wait, STREAM_POLL_SECONDS))
                except Refusal:
                    quotas.refund(budgets, charged)
                    raise

        return stream

    def _wrap_read(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            identity, _ = self.authorize(method, rule, request, context)
            self._limits.charge_call(method, identity)
            before = _readable.set(identity.roles[READ])
            try:
                return await handler(request, context)
            finally:
                _readable.reset(before)

        return call

    def _wrap_admin(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            identity, sequence = self.authorize(method, rule, request, context)
            self._limits.charge_call(method, identity)
            fields: dict[str, Any] = {} if sequence is None else {"sequence": sequence}
            fields |= {name: getattr(request, name) for name in rule.audited_fields}
            fields = {name: _shorten(value) if isinstance(value, str) else value for name, value in fields.items()}
            with self._audit.record_admin_call(identity=identity.name, peer=context.peer(), method=method, **fields):
                return await handler(request, context)

        return call

    def _chunk(self, rule: Rule, request: Any) -> int:
        ids = getattr(request, rule.count_field) or min(rule.default_count, self._max_ids)
        return ids if 0 < ids <= self._max_ids else 0


def _shorten(text: str) -> str:
    """Return a caller's text at a length that fits into a status or a log line. No valid name is longer."""
    return text if len(text) <= MAX_NAME_BYTES else f"{text[:MAX_NAME_BYTES]}…"
