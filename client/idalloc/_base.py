"""The base of both clients: their arguments, their connections and their log."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from idalloc._core.attempts import Attempt, Client, Servers
from idalloc._core.calls import Call
from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._core.errors import (
    DeadlineExceeded,
    IdallocError,
    InvalidConfig,
    ServerDraining,
    ServerUnreachable,
    Unauthenticated,
)
from idalloc._core.locks import Lock
from idalloc._core.pipeline import Pending
from idalloc._core.pool import Pool
from idalloc._core.refill import OUTAGE_LIMIT, Refills
from idalloc._core.reply_checks import check_reply
from idalloc._issued_log.log import IssuedLog
from idalloc._transport.channel import MAX_CONNECTIONS, PROBE_LIFETIME, Connection, Stubs, leak, open_stubs
from idalloc._transport.config import (
    ChannelConfig,
    ChannelConfigError,
    ChannelSettings,
    addresses,
    from_environment,
    name_of,
    split,
)

T = TypeVar("T")

# How often a name is resolved again after a server became suspect, in seconds.
_RESOLVE_SECONDS = 2.0
# How often the client looks for changed files of tokens and certificates, in seconds.
_FILES_SECONDS = 1.0
# All other statuses of a probe are an answer.
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


@contextmanager
def _invalid_arguments() -> Iterator[None]:
    """Raise errors of the channel's settings as the clients' exception."""
    try:
        yield
    except ChannelConfigError as error:
        raise InvalidConfig(f"{error.setting}: {error.problem}", metadata={"field": error.setting}) from None


class BaseClient(Client[Connection]):
    """The connections of a client and its log. ``_sync`` and ``aio`` add the calls."""

    _is_asyncio: ClassVar[bool]

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        server_name: str | None = None,
        insecure: bool = False,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            math.isfinite(timeout)
        except TypeError:
            raise TypeError(f"timeout must be a number of seconds, not {type(timeout).__name__}") from None
        if not isinstance(credentials, grpc.ChannelCredentials | None):
            found = type(credentials).__name__  # type: ignore[unreachable]
            raise TypeError(f"credentials must be of grpc, such as grpc.ssl_channel_credentials(…), not {found}")
        self.target = target
        self.timeout = timeout
        with _invalid_arguments():
            self._config = ChannelConfig(
                target, token=token, credentials=credentials, server_name=server_name, insecure=insecure
            )
        self._log = None if log is None else IssuedLog(log)
        self._settings: ChannelSettings | None = None  # whose files are read again
        self._stamps: list[Any] = []
        self._check_files_at = 0.0
        self._retired: list[Stubs] = []  # channels with earlier certificates
        targets = split(target)
        self._name = name_of(targets[0]) if len(targets) == 1 else None
        self._resolve_at = 0.0
        # Also the connections to servers that the name does not resolve to any more.
        self._by_target: dict[tuple[str, int], Connection] = {}
        self._use_servers(targets)
        self._connection = self._connections[0]  # has the holders of ids, and is never replaced
        self._add_parts()

    def _use_servers(self, targets: list[str]) -> None:
        """Use the servers at some targets, and keep the connections to those that are known."""
        keys = [(targets[i % len(targets)], i // len(targets)) for i in range(max(MAX_CONNECTIONS, len(targets)))]
        for key in keys:
            if key not in self._by_target:
                self._by_target[key] = Connection(self._opener(key[0]), is_asyncio=self._is_asyncio)
        self._connections = [self._by_target[key] for key in keys]
        self._servers = Servers(self._connections[: max(2, len(targets))], len(targets))

    def _opener(self, target: str) -> Callable[[], Stubs]:
        own: list[tuple[str, str | int]] = []
        if self._name and target != self.target:  # an address of the name
            own = [("grpc.default_authority", f"{self._name[0]}:{self._name[1]}")]
        return lambda: open_stubs(target, self._config, own, is_asyncio=self._is_asyncio)

    def _must_resolve(self) -> bool:
        """Return whether to resolve the name of the servers before a call."""
        if self._name is None or time.monotonic() < self._resolve_at:
            return False
        is_due = not self._resolve_at or any(each.is_suspect for each in self._servers.all)
        self._resolve_at = time.monotonic() + _RESOLVE_SECONDS
        return is_due

    def _use_addresses(self, found: Iterable[tuple[Any, ...]]) -> None:
        """Use the servers that the name resolves to."""
        assert self._name  # noqa: S101 - `_must_resolve` returned true
        before = self._servers
        self._use_servers(addresses(self._name, found) or [self.target])
        self._servers.dropped_ids = before.dropped_ids
        self._servers.latency = before.latency

    def _failed(self, server: Connection, error: IdallocError) -> None:
        """Suspect a server without an answer, or one that drains, until it answers a probe."""
        if isinstance(error, ServerUnreachable | ServerDraining | DeadlineExceeded):
            server.is_suspect = True
            self._probe_suspects()

    def _probe_suspects(self) -> None:
        for each in self._connections:
            if each.is_suspect and not each.is_probed():
                self._probe(each, lambda: None)

    def _probe(self, server: Connection, changed: Callable[[], None]) -> Attempt[Connection]:
        def end(probe: Attempt[Connection], future: Any) -> None:
            probe.future = future
            try:
                self._outcome(probe)
                server.is_suspect = False
            except IdallocError as error:
                server.is_suspect = error.code in _NO_ANSWER
            probe.has_ended = True
            changed()

        pending = Pending(Call(Empty(), lambda _: None), PROBE_LIFETIME)
        server.probe = probe = self._send(server, pending, end)
        return probe

    def _retry_delay(self, pending: Pending[Any], asked: list[Connection], error: IdallocError) -> float:
        if isinstance(error, Unauthenticated) and self._read_changed_files(at_once=True):
            asked.clear()
            return 0.0
        delay = pending.retry_delay(error, has_other=self._servers.has_other(asked))
        if delay:
            asked.clear()
        return delay

    @property
    def dropped_ids(self) -> int:
        """How many ids late answers brought after another server had answered; they are a gap."""
        return self._servers.dropped_ids

    @classmethod
    def from_environment(
        cls,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        log: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Return a client configured by the environment variables of the command ``idalloc``.

        They are IDALLOC_SERVER, IDALLOC_TLS, IDALLOC_CA, IDALLOC_CERT, IDALLOC_KEY,
        IDALLOC_SERVER_NAME, IDALLOC_TOKEN, IDALLOC_TOKEN_FILE and IDALLOC_TOKEN_INSECURE. The
        client reads the files again when they change: calls that run keep their connection.

        Args:
            timeout: As in ``Client``.
            log: As in ``Client``.
            environ: The variables; by default those of the process.

        Raises:
            InvalidConfig: A variable is invalid, or its file cannot be read; the message names the
                variable.
        """
        with _invalid_arguments():
            target, settings, arguments = from_environment(environ)
        client = cls(target, timeout=timeout, log=log, **arguments)
        client._settings = settings
        client._stamps = settings.stamps()
        return client

    def _read_changed_files(self, *, at_once: bool = False) -> bool:
        """Read the files of the settings again if they changed; return whether they did.

        An invalid file is ignored: it may not be complete yet.
        """
        if self._settings is None or (time.monotonic() < self._check_files_at and not at_once):
            return False
        self._check_files_at = time.monotonic() + _FILES_SECONDS
        stamps = self._settings.stamps()
        if stamps == self._stamps:
            return False
        try:
            self._config = ChannelConfig(self.target, **self._settings.read())
        except ChannelConfigError:
            return False
        if stamps[1:] != self._stamps[1:]:
            self._close_channels(self._retired)  # their calls have had the time since the last change
            self._retired = [stubs for each in [*self._by_target.values()] if (stubs := each.drop_channel())]
        self._stamps = stamps
        return True

    def _close_channels(self, opened: list[Stubs]) -> None:
        """Begin to close channels."""
        raise NotImplementedError

    def _add_parts(self) -> None:
        """Create the parts that differ between the clients."""
        raise NotImplementedError

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        """Return the metadata of a call that begins now, with the context of the active span.

        By W3C's trace context the server's spans belong to the caller's trace. OpenTelemetry is not
        imported: without the program's own import no span is active.
        """
        self._read_changed_files()
        metadata = self._config.metadata
        if "opentelemetry.trace" not in sys.modules:
            return metadata
        from opentelemetry.trace import get_current_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if not get_current_span().get_span_context().is_valid:
            return metadata
        context: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(context)
        return (*(metadata or ()), *context.items())

    def _now(self) -> int:
        """Return the time on the log's clock; call it before a request is sent."""
        return 0 if self._log is None else self._log.now()

    def _record(self, request: Message, response: Message, asked: int) -> None:
        """Write the ids of a checked reply to the log."""
        if self._log is not None:
            self._log.reply(request, response, asked)

    def _receive(self, call: Call[T], reply: Any, asked: int) -> T:
        """Check the reply to a call, record its ids, and return what the caller gets."""
        check_reply(call.request, reply)
        converted = call.convert(reply)  # it may raise, and then there is no record
        self._record(call.request, reply, asked)
        return converted


class BaseIds:
    """The prefetched ids of one sequence. ``_sync`` and ``aio`` add the iterator."""

    def __init__(self, client: Any, sequence: str, timeout: float = OUTAGE_LIMIT) -> None:
        self._client = client
        self._timeout = timeout
        self._pool = Pool(sequence)
        self._refills = Refills(client, self._pool)
        self._lock = Lock()  # of the refills, if threads share them
        client._connection.register(self)

    def clear(self) -> None:
        """Discard all prefetched ids. A thread that is in ``next()`` may still return one."""
        self._pool.clear()

    def _discard(self) -> None:
        self._pool.close()

    def _clear_after_fork(self) -> None:
        """Discard the prefetched ids of the parent process."""
        self._lock = Lock()
        leak(self._refills.clear())
        self._pool.clear()
