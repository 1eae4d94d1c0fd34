"""The attempts of a call: at which server, when to probe it, and when to ask another one.

The states and their names are those of docs/explanation/client-calls.md.
"""

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from idalloc._core.errors import DeadlineExceeded, IdallocError
from idalloc._core.pipeline import Pending

S = TypeVar("S", bound="Server")
T = TypeVar("T")

MIN_PATIENCE = 0.5  # seconds
PATIENCE_FACTOR = 4.0  # times the smoothed latency
LATENCY_WEIGHT = 0.2
PROBE_SECONDS = 0.25
# The client abandons an attempt that gRPC has not ended this many seconds after its deadline.
DEADLINE_GRACE = 1.0


class Server(Protocol):
    """A server of a target, by its connection."""

    is_suspect: bool


class Servers(Generic[S]):
    """The servers of a target, the calls' latency, and the ids of late answers.

    Args:
        all_: The connections, of which the first ``distinct`` have different addresses. The others
            serve second attempts if there is one address.
    """

    def __init__(self, all_: Collection[S], distinct: int) -> None:
        self.all = tuple(all_)
        self.distinct = distinct
        self.latency = 0.0  # smoothed, in seconds
        self.dropped_ids = 0
        self._turns = count()

    @property
    def patience(self) -> float:
        """How long a call waits for an answer before it probes its server, in seconds."""
        return max(MIN_PATIENCE, PATIENCE_FACTOR * self.latency)

    def pick(self, asked: Collection[S] = ()) -> S:
        """Return the next server in turn, if possible one that is usable and was not asked."""
        start = next(self._turns) % self.distinct
        if not asked and not self.all[start].is_suspect:
            return self.all[start]
        order = (*self.all[start : self.distinct], *self.all[:start], *self.all[self.distinct :])
        return min(order, key=lambda each: (each in asked, each.is_suspect))

    def has_other(self, asked: Collection[S]) -> bool:
        """Return whether a usable server was not asked."""
        return any(not each.is_suspect and each not in asked for each in self.all[: self.distinct])

    def answered(self, seconds: float) -> None:
        """Record the latency of a call."""
        self.latency += LATENCY_WEIGHT * (seconds - self.latency)


@dataclass(eq=False, slots=True)
class Attempt(Generic[S]):
    """An RPC that was sent."""

    server: S
    stubs: Any  # of its channel
    asked: int  # when it was sent, on the clock of the log
    sent_at: float
    future: Any = None
    has_ended: bool = False  # asking gRPC takes a lock that may stay locked


class Client(Protocol[S]):
    """What the attempts of a call need of a client. Nothing here blocks."""

    _servers: Servers[S]

    def _send(self, server: S, pending: Pending[Any], end: Callable[[Attempt[S], Any], None]) -> Attempt[S]:
        """Send an RPC; ``end`` is called at its end, with the future."""

    def _probe(self, server: S, changed: Callable[[], None]) -> Attempt[S]:
        """Probe a server, which is suspect unless it answers."""

    def _failed(self, server: S, error: IdallocError) -> None:
        """Suspect and probe a server that is unreachable or drains."""

    def _retry_delay(self, pending: Pending[Any], asked: list[S], error: IdallocError) -> float:
        """Return the seconds until a call is sent again; or raise the error, if no retry helps.

        If a round of servers has ended, ``asked`` is cleared.
        """

    def _outcome(self, attempt: Attempt[S]) -> Any:
        """Return the reply to an RPC that has ended, or raise its error."""


class Attempts(Generic[S, T]):
    """The attempts of one repeatable call; one thread or task at a time may use it."""

    def __init__(self, client: Client[S], pending: Pending[T], changed: Callable[[], None]) -> None:
        self.pending = pending
        self.open: list[Attempt[S]] = []
        self.resend_at = 0.0  # when the backoff ends
        self.reply: Any = None
        self._has_reply = False
        self.asked = 0  # when the attempt with the reply was sent, on the clock of the log
        self._client = client
        self._changed = changed
        self._asked: list[S] = []  # in this round
        self._probe: Attempt[S] | None = None  # of this round
        self._is_alive = False  # whether the probe was answered

    def step(self) -> float:
        """Do what is due. Return the seconds until more may be due; 0 if the call has its reply.

        Raises:
            IdallocError: The call failed.
        """
        now = time.monotonic()
        for attempt in list(self.open):
            if not self._has_reply and (attempt.has_ended or now > self._expires(attempt)):
                self.open.remove(attempt)
                self._take(attempt, now)
        if self._has_reply:
            return 0.0
        if not self.open:
            if now < self.resend_at:
                return self.resend_at - now
            self.send()
        attempt = self.open[0]
        if attempt.has_ended:
            return self.step()
        if len(self._asked) == 1 and not self._is_alive:
            return self._probe_if_silent(attempt, now) or self.step()
        return self._expires(attempt) - now

    def _expires(self, attempt: Attempt[S]) -> float:
        return attempt.sent_at + self.pending.timeout + DEADLINE_GRACE

    def _probe_if_silent(self, attempt: Attempt[S], now: float) -> float:
        """Probe the server of a silent attempt; ask another one if it does not answer either.

        Return the seconds until more is due; 0 if the state has changed.
        """
        servers = self._client._servers
        if self._probe is None:
            if now < attempt.sent_at + servers.patience:
                return attempt.sent_at + servers.patience - now
            self._probe = self._client._probe(attempt.server, self._changed)
        probe = self._probe
        if probe.has_ended and not attempt.server.is_suspect:
            self._is_alive = True
            servers.latency = max(servers.latency, now - attempt.sent_at)
        elif now < probe.sent_at + PROBE_SECONDS and not probe.has_ended:
            return probe.sent_at + PROBE_SECONDS - now
        else:
            attempt.server.is_suspect = True
            self.send()
        return 0.0

    def send(self) -> None:
        server = self._client._servers.pick(self._asked)
        self.open.append(self._client._send(server, self.pending, self._end))
        self._asked.append(server)  # last: an interrupted attempt was none

    def _take(self, attempt: Attempt[S], now: float) -> None:
        try:
            if not attempt.has_ended:
                raise DeadlineExceeded(f"no answer within {self.pending.timeout:g} s")
            self.reply = self._client._outcome(attempt)
        except IdallocError as error:
            self._client._failed(attempt.server, error)
            if self.open:
                return
            self.resend_at = now + self._client._retry_delay(self.pending, self._asked, error)
            self._probe = None
            self._is_alive = False
        else:
            self._has_reply = True
            self.asked = attempt.asked
            self._client._servers.answered(now - attempt.sent_at)
            for late in self.open:
                if late.has_ended:
                    self._drop(late.future)
            self.open.clear()

    def _end(self, attempt: Attempt[S], future: Any) -> None:
        """Record the end of an RPC; gRPC's thread calls this."""
        if self._has_reply:
            self._drop(future)
            return
        attempt.future = future
        attempt.has_ended = True
        self._changed()

    def _drop(self, late: Any) -> None:
        """Count the ids of a late answer, unless it brings the same ids as the answer in time."""
        if not getattr(self.pending.call.request, "request_id", ""):
            with suppress(Exception):
                self._client._servers.dropped_ids += late.result().range.id_count
