"""``Ids``: the iterator over a sequence's ids, for threads."""

import time
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import grpc

from idalloc._core.errors import DeadlineExceeded
from idalloc._core.locks import Lock
from idalloc._core.pipeline import RETRIED, Pending
from idalloc._core.pool import Pool, PoolRequest
from idalloc._core.rpc_errors import cause_of, from_rpc_error, translate_rpc_errors
from idalloc._core.types import Range
from idalloc._sync.base import BaseClient
from idalloc._transport.channel import Stubs, leak

# The client abandons a call that gRPC has not ended this many seconds after its deadline.
DEADLINE_GRACE = 1.0


class Ids(Iterator[int]):
    """An endless iterator over the ids of one sequence.

    It prefetches ranges, larger ones the faster ids are used: most ids cost no call. It returns
    each id once, in the sequence's order while one server answers. Before each id it checks the
    time, and discards ids that are older than the server allows (``ttl``).

    Threads may share one ``Ids``, with ``next()`` and with loops: each id goes to one thread. After
    a loop has ended, by ``break`` or by an error, another loop continues with the next id.

    In the child of a fork it continues with ids of the child's own, also if the fork bypassed
    Python (uWSGI). After the client is closed, it raises ``RuntimeError``.

    A signal handler may raise at any moment: ids may be lost, but no id is returned twice, and
    ``next()`` works afterwards. The handler must not call a method of the client or of its ``Ids``,
    including ``close``.

    Raises:
        SequenceExhausted: The sequence has no more ids.
        IdallocError: As from any call; ``next()`` tries again. If a quota is exceeded, it first
            waits within the client's timeout.
    """

    def __init__(self, client: BaseClient, sequence: str) -> None:
        self._client = client
        self._pool = Pool(sequence)
        self._lock = Lock()
        self._prefetch: _Prefetch | None = None
        client._connection.register(self)

    def __iter__(self) -> Iterator[int]:
        # Runs in C, and shares the ids with all other iterators.
        return chain.from_iterable(iter(self._next_part, None))

    def __next__(self) -> int:
        while True:
            for value in self._pool.current.ids:
                return value
            self._next_part()

    def clear(self) -> None:
        """Discard all prefetched ids. A thread that is in ``next()`` may still return one."""
        self._pool.clear()

    def _clear_after_fork(self) -> None:
        """Discard the prefetched ids of the parent process."""
        self._lock = Lock()
        leak(self._prefetch)
        self._prefetch = None
        self._pool.clear()

    def _next_part(self) -> Iterator[int]:
        """Return an iterator over the next ids, which threads may share."""
        stubs = self._client._connection.stubs()  # raises if the client is closed
        deadline = time.monotonic() + self._client.timeout
        with self._lock:
            if self._prefetch is not None and self._prefetch.stubs is not stubs:
                # The channel was abandoned: its thread may never deliver the answer.
                leak(self._prefetch)
                self._prefetch = None
            while not self._pool.advance():
                self._receive(deadline)
            if self._prefetch is None and self._pool.should_prefetch():
                self._prefetch = self._send(self._pool.next_request())
            return self._pool.current.ids

    def _send(self, request: PoolRequest, pending: Pending[Range] | None = None) -> "_Prefetch":
        connection = self._client._connection
        stubs = connection.stubs()
        asked = self._client._now()
        metadata = self._client._metadata()
        timeout = pending.time_left() if pending else self._client.timeout
        with translate_rpc_errors(self._client.target), connection.abandon_if_interrupted(stubs):
            future = stubs.rpc(request.call.request).future(request.call.request, timeout=timeout, metadata=metadata)
            connection.keep_until_done(future)
        return _Prefetch(request, asked, future, stubs, pending)

    def _receive(self, deadline: float) -> None:
        """Wait for the prefetched range, or for one that is requested now."""
        prefetch = self._prefetch
        was_prefetched = prefetch is not None and prefetch.pending is None
        if prefetch is None:
            prefetch = self._prefetch = self._send(self._pool.next_request())
        connection = self._client._connection
        try:
            with connection.abandon_if_interrupted(prefetch.stubs, prefetch.future):
                response = prefetch.future.result(self._client.timeout + DEADLINE_GRACE)
        except grpc.FutureTimeoutError:
            self._prefetch = None
            raise DeadlineExceeded(f"no answer from {self._client.target} within {self._client.timeout:g} s") from None
        except grpc.RpcError as rpc_error:
            self._prefetch = None
            error = from_rpc_error(rpc_error, self._client.target)
            error.__cause__ = cause_of(rpc_error)
            if error.code not in RETRIED:
                time.sleep(self._pool.retry_delay(error, deadline, was_prefetched=was_prefetched))
                return
            pending = prefetch.pending or Pending(prefetch.request.call, deadline - time.monotonic())
            time.sleep(pending.retry_delay(error))
            self._prefetch = self._send(prefetch.request, pending)
        except BaseException:  # of a signal handler; another thread could wait for this call without end
            self._prefetch = None
            raise
        else:
            self._prefetch = None
            if next(prefetch.request.process):  # unless a signal handler forked
                allocated = self._client._receive(prefetch.request.call, response, prefetch.asked)
                self._pool.add(prefetch.request, allocated)


class _Prefetch(NamedTuple):
    """A range that was requested and has not been received."""

    request: PoolRequest
    asked: int  # when it was requested, on the clock of the log of issued ids
    future: "grpc.Future[Any]"
    stubs: Stubs  # of the call's channel
    pending: Pending[Range] | None  # the request, if it is sent again
