"""The door: the one place where it is decided whether a call is let in. Who calls, may they, have they any left?"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import grpc

from idalloc_server.auth.access import ADMIN, ALLOCATE, ANONYMOUS, READ, AccessPolicy, Identity, Role
from idalloc_server.auth.audit import Audit
from idalloc_server.auth.client_certificates import ClientCertificates
from idalloc_server.auth.quotas import Budget, Quotas
from idalloc_server.auth.rejected_callers import TRIES_PER_SECOND, RejectedCallers, host_of
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import (
    PermissionDenied,
    QuotaExceeded,
    Refusal,
    RequestIdBurned,
    RequestIdReused,
    ServerDraining,
    Unauthenticated,
)
from idalloc_server.domain.sequences.model import MAX_NAME_BYTES
from idalloc_server.domain.sequences.patterns import Patterns

Context = grpc.aio.ServicerContext[Any, Any]
UnaryHandler = Callable[[Any, Context], Awaitable[Any]]
StreamHandler = Callable[[Any, Context], AsyncGenerator[Any, None]]
MetadataReader = Callable[[Context], Iterable[tuple[str, Any]]]

# What a stream carries in a message where nothing else is said; the servicers' own default is never more.
DEFAULT_CHUNK = 10_000
# How often a stream that waits for its quota looks whether it is to end.
LOOK_SECONDS = 0.2


class Rule(NamedTuple):
    """What a method asks of its callers.

    Attributes:
        role: The role that they must have.
        sequence: Where a request names its sequence; empty where it names none.
        ids: Where it says how many ids it wants at once; empty where it takes none.
        default: How many those are where it says nothing.
        everywhere: Whether the role must be for every sequence.
        told: What else of the request the audit tells.
    """

    role: Role
    sequence: str = ""
    ids: str = ""
    default: int = 1
    everywhere: bool = False
    told: tuple[str, ...] = ()


# Every method of ours has its rule: a server with one that has none does not start.
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
    "/idalloc.v1.SequenceService/AdvanceSequence": Rule(ADMIN, "name", told=("past", "period")),
    "/idalloc.v1.SequenceService/ParseId": Rule(READ, "sequence"),
    "/idalloc.v1.NodeService/GetNode": Rule(READ),
    "/idalloc.v1.NodeService/UpdateNode": Rule(ADMIN, everywhere=True, told=("persist",)),
}

_readable: ContextVar[Patterns | None] = ContextVar("readable", default=None)


def readable() -> Patterns | None:
    """Returns the names that the present call may be shown; None for all."""
    return _readable.get()


def invocation_metadata(context: Context) -> Iterable[tuple[str, Any]]:
    """Returns the metadata of a call."""
    return context.invocation_metadata() or ()


class Door:
    """Lets calls in, or refuses them.

    Once it asks who calls it always does, also where later nobody is named who may: then nobody is let in.

    Args:
        clock: Tells how much time has passed.
        max_ids_per_call: The most ids of one call. Where it asks for more, none are counted: it is refused.
        access: Who may do what; None where nobody is asked, and no quota kept.
        asks: Whether it asks who calls even where nobody is named.
        metadata_of: Reads the metadata of a call.
        certificates: Checks client certificates; None where clients show none.
    """

    def __init__(
        self,
        clock: Clock,
        max_ids_per_call: int,
        access: AccessPolicy | None = None,
        *,
        asks: bool = False,
        metadata_of: MetadataReader = invocation_metadata,
        certificates: ClientCertificates | None = None,
    ) -> None:
        self.audit = Audit()
        self._max_ids = max_ids_per_call
        self._is_open = access is None and certificates is None
        self.certificates = certificates
        self._access = AccessPolicy() if access is None else access
        self.asks = asks or bool(self._access.identities)
        self._metadata_of = metadata_of
        # Who showed what, of those that were let in: hashing a token costs a call more than all else here.
        self._known: dict[str, Identity] = {}
        self._quotas = Quotas(clock, self._access)
        self._strangers = RejectedCallers(clock)
        self._denied = RejectedCallers(clock)
        self._ending_streams = False

    def use(self, access: AccessPolicy) -> None:
        """Goes on with others who may do something. Ends the running streams of those who no longer may."""
        self._access = access
        self._known = {}
        self.asks = self.asks or bool(access.identities) or access.is_empty
        self._quotas.use(access)

    def ask(self) -> None:
        """Asks who calls from now on, also those whose streams run, since another process of this server does."""
        self.asks = True
        self._access = AccessPolicy(self._access.identities, self._access.quotas)

    def end_streams(self) -> None:
        """Ends streams that wait for their quota."""
        self._ending_streams = True

    async def log_totals(self) -> None:
        """Records each second what was counted, for ever. Its owner cancels it."""
        while True:
            await asyncio.sleep(1)
            self.audit.log_totals()

    def guard(self, method: str, handler: Any, *, streams: bool) -> Any:
        """Puts the door before a method.

        Args:
            method: Its full name.
            handler: What serves it.
            streams: Whether its replies are a stream.

        Returns:
            What serves it from now on; the handler itself where nothing is asked, counted or recorded.
        """
        rule = RULES[method]
        if rule.role == ADMIN:
            return self._audited(method, rule, handler)
        if self._is_open:
            return handler
        if rule.role == READ:
            return self._shown(method, rule, handler)
        return self._paced(method, rule, handler) if streams else self._charged(method, rule, handler)

    def identify(self, method: str, context: Context) -> Identity:
        """Returns who calls.

        Raises:
            Refusal: Unauthenticated; QuotaExceeded where the same host was refused too often.
        """
        names = self._names(method, context)
        if not self.asks:
            return ANONYMOUS
        shown = None
        for key, value in self._metadata_of(context):
            if key == "authorization":
                if shown is not None:
                    self._refuse_stranger(method, context, "the call shows more than one token")
                shown = value
        if shown is not None:
            # Python's hashes of texts are keyed: how long it takes to find one tells nothing of others.
            return self._known.get(shown) or self._recognize(method, context, shown)
        if names:
            identity = self._access.by_certificate(names)
            if identity is None:
                self._refuse_stranger(method, context, "nobody, or more than one, has a certificate of these names")
            return identity
        refusal = Unauthenticated("this server asks who calls: show a token, or a client certificate")
        self._note_stranger(method, context, refusal)
        raise refusal

    def _names(self, method: str, context: Context) -> tuple[str, ...]:
        """Returns the names in the client's certificate, which is refused where it has ended."""
        if self.certificates is None:
            return ()
        try:
            return self.certificates.check(context)
        except Unauthenticated as refusal:
            self._refuse_stranger(method, context, str(refusal))

    def _recognize(self, method: str, context: Context, shown: str) -> Identity:
        if shown[:7].lower() != "bearer ":
            self._refuse_stranger(method, context, "the metadata authorization must be: Bearer TOKEN")
        identity = self._access.by_token(shown[7:])
        if identity is None:
            self._refuse_stranger(method, context, "nobody has this token")
        self._known[shown] = identity
        return identity

    def turn_away(self, method: str, context: Context, refusal: Refusal) -> NoReturn:
        """Refuses a call whose request is not looked at, as of a server that drains.

        Raises:
            Refusal: The one given; where nobody knows who calls, or a quota is used up, that.
        """
        identity = self.identify(method, context)
        self._take(method, identity, self._quotas.of(identity, None), 0)
        if RULES[method].role == ADMIN:
            self._note_denied(method, context, identity, refusal, None)
        raise refusal

    def admit(self, method: str, context: Context) -> None:
        """Lets in whoever is known, for a call that needs no role, and counts it.

        Raises:
            Refusal: Unauthenticated; QuotaExceeded.
        """
        identity = self.identify(method, context)
        self._take(method, identity, self._quotas.of(identity, None), 0)

    def _let_in(self, method: str, rule: Rule, request: Any, context: Context) -> tuple[Identity, str | None]:
        """Returns who calls and for which sequence, if they may."""
        identity = self.identify(method, context)
        sequence = _sequence(rule, request)
        may = identity.roles[rule.role].any_name if rule.everywhere else identity.may(rule.role, sequence)
        if not may:
            self._deny(method, context, identity, rule, sequence)
        return identity, sequence

    def _deny(self, method: str, context: Context, identity: Identity, rule: Rule, sequence: str | None) -> NoReturn:
        self._take(method, identity, self._quotas.of(identity, None), 0)
        sequence = None if sequence is None else _cut(sequence)
        refusal = PermissionDenied(identity.name, rule.role, sequence)
        self._note_denied(method, context, identity, refusal, sequence)
        raise refusal

    def _note_denied(
        self, method: str, context: Context, identity: Identity, refusal: Refusal, sequence: str | None
    ) -> None:
        if self._denied.seconds_to_wait(identity.name):
            self.audit.count(refusal, identity=identity.name, method=method, subject=f"identity:{identity.name}")
        else:
            self.audit.refused(refusal, identity=identity.name, peer=context.peer(), method=method, sequence=sequence)

    def _take(self, method: str, identity: Identity, budgets: tuple[Budget, ...], ids: int) -> None:
        try:
            self._quotas.take(budgets, ids)
        except QuotaExceeded as refusal:
            self._count_refused(method, identity, refusal)
            raise

    def _count_refused(self, method: str, identity: Identity, refusal: QuotaExceeded) -> None:
        self.audit.count(refusal, identity=identity.name, method=method, subject=refusal.subject)

    def _charged(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        role, of_sequence, most = rule.role, bool(rule.sequence), self._max_ids
        default = min(rule.default, most)

        # The hot path: a call of a function is what counts here.
        async def call(request: Any, context: Context) -> Any:
            identity = self.identify(method, context)
            sequence = request.sequence if of_sequence else None
            if not identity.may(role, sequence):
                self._deny(method, context, identity, rule, sequence)
            budgets = self._quotas.of(identity, sequence)
            if not budgets:
                return await handler(request, context)
            ids = request.id_count or default
            if not 0 < ids <= most:
                ids = 0
            self._take(method, identity, budgets, ids)
            try:
                return await handler(request, context)
            except (RequestIdReused, RequestIdBurned):
                raise  # It may have burned as many.
            except Refusal:
                self._quotas.give_back(budgets, ids)
                raise

        return call

    def _paced(self, method: str, rule: Rule, handler: StreamHandler) -> StreamHandler:
        async def stream(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            access = self._access
            identity, sequence = self._let_in(method, rule, request, context)
            with self._stream_of(method, identity):
                budgets = self._quotas.of(identity, sequence)
                chunk = self._count(rule, request)
                left = max(0, request.total_id_count)
                ids = taken = min(chunk, left)
                if budgets:
                    self._take(method, identity, budgets, ids)
                try:
                    async with aclosing(handler(request, context)) as replies:
                        async for reply in replies:
                            yield reply
                            left -= ids
                            ids, taken = min(chunk, left), 0
                            while left > 0:
                                self._names(method, context)
                                if access is not self._access:
                                    access = self._access
                                    identity, sequence = self._let_in(method, rule, request, context)
                                    budgets = self._quotas.of(identity, sequence)
                                wait = self._quotas.take_more(budgets, ids) if budgets else 0.0
                                if not wait:
                                    taken = ids
                                    break
                                if self._ending_streams:
                                    raise ServerDraining
                                await asyncio.sleep(min(wait, LOOK_SECONDS))
                except Refusal:
                    self._quotas.give_back(budgets, taken)
                    raise

        return stream

    @contextmanager
    def _stream_of(self, method: str, identity: Identity) -> Iterator[None]:
        try:
            ended = self._quotas.begin_stream(identity)
        except QuotaExceeded as refusal:
            self._count_refused(method, identity, refusal)
            raise
        try:
            yield
        finally:
            ended()

    def _shown(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            identity, _ = self._let_in(method, rule, request, context)
            self._take(method, identity, self._quotas.of(identity, None), 0)
            before = _readable.set(identity.roles[READ])
            try:
                return await handler(request, context)
            finally:
                _readable.reset(before)

        return call

    def _audited(self, method: str, rule: Rule, handler: UnaryHandler) -> UnaryHandler:
        async def call(request: Any, context: Context) -> Any:
            identity, sequence = self._let_in(method, rule, request, context)
            self._take(method, identity, self._quotas.of(identity, None), 0)
            what: dict[str, Any] = {} if sequence is None else {"sequence": sequence}
            what |= {name: getattr(request, name) for name in rule.told}
            what = {name: _cut(value) if isinstance(value, str) else value for name, value in what.items()}
            with self.audit.deed(identity=identity.name, peer=context.peer(), method=method, **what):
                return await handler(request, context)

        return call

    def _count(self, rule: Rule, request: Any) -> int:
        wanted = getattr(request, rule.ids) or min(rule.default, self._max_ids)
        return wanted if 0 < wanted <= self._max_ids else 0

    def _refuse_stranger(self, method: str, context: Context, why: str) -> NoReturn:
        refusal = Unauthenticated(why)
        if seconds := self._note_stranger(method, context, refusal):
            host = host_of(context.peer())
            raise QuotaExceeded(f"host:{host}", "failures_per_second", TRIES_PER_SECOND, seconds)
        raise refusal

    def _note_stranger(self, method: str, context: Context, refusal: Unauthenticated) -> float:
        """Records that nobody knows who calls; returns when the host may try again, 0 where it may at once."""
        peer = context.peer()
        host = host_of(peer)
        seconds = self._strangers.seconds_to_wait(host)
        if seconds:
            self.audit.count(refusal, identity=None, method=method, subject=f"host:{host}")
        else:
            self.audit.refused(refusal, identity=None, peer=peer, method=method, sequence=None)
        return seconds


def _sequence(rule: Rule, request: Any) -> str | None:
    name: str | None = attrgetter(rule.sequence)(request) if rule.sequence else None
    return name


def _cut(text: str) -> str:
    """Returns what an answer, or a log, can bear of what a caller sent. No name that means anything is longer."""
    return text if len(text) <= MAX_NAME_BYTES else f"{text[:MAX_NAME_BYTES]}…"
