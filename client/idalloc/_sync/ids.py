"""`ids()` of the client for threads."""

import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import grpc

from idalloc._core.errors import DeadlineExceeded, ProtocolError, from_rpc_error, translated
from idalloc._core.pool import Asked, Pool
from idalloc._core.replies import checked
from idalloc._sync.base import BaseClient, Stubs
from idalloc._transport.channel import leave_behind
from idalloc.v1 import id_allocator_pb2 as pb

# A call that gRPC has not ended so many seconds after its deadline is given up.
OVERDUE = 1.0


class Ids(Iterator[int]):
    """The ids of one sequence, one by one, without end.

    Ids come from ranges that are asked for ahead, the larger the quicker they are used, so that most ids cost no call.
    What is at hand is dropped when it is older than the server allows (``ttl``); time is looked at before each
    id. Every id is given once, in the sequence's order as long as one server answers.

    Several threads may share one ``Ids``, with ``next()`` as well as with loops: each id goes to one of them. A loop
    that was left, or ended by an error, can be followed by another one, which goes on with the next id.

    In the child of a fork it goes on with ids of the child's own, also where the fork bypassed Python (uWSGI). When the
    client is closed, ids at hand are dropped, and more of them are refused by ``RuntimeError``.

    The handler of a signal may raise an exception at any moment: ids may be lost then, but none is given twice, and the
    next id may be asked for again. The handler must not call any method of the client or of its ``Ids``, ``close``
    included: it sets a flag or raises.

    Raises:
        SequenceExhausted: After the sequence's last id.
        IdallocError: As from any call; the next id may be asked for again. Where a quota is used up, it is waited for
            within the client's timeout.
    """

    def __init__(self, client: BaseClient, sequence: str) -> None:
        self._client = client
        self._pool = Pool(sequence)
        self._lock = threading.Lock()
        self._coming: _Coming | None = None
        client._connection.add(self)

    def __iter__(self) -> Iterator[int]:
        # Runs in C, and takes from the same ids as everyone else.
        return chain.from_iterable(iter(self._more, None))

    def __next__(self) -> int:
        while True:
            for value in self._pool.piece.ids:
                return value
            self._more()

    def drop(self) -> None:
        """Drops what is at hand. Another thread may still get what it was about to take."""
        self._pool.drop()

    def forget(self) -> None:
        """Drops what the parent of this process has at hand."""
        self._lock = threading.Lock()
        leave_behind(self._coming)
        self._coming = None
        self._pool.drop()

    def _more(self) -> Iterator[int]:
        """Returns ids, which any number of threads may take from until it ends."""
        stubs = self._client._connection.get()  # refuses when the client was closed
        deadline = time.monotonic() + self._client.timeout
        with self._lock:
            if self._coming is not None and self._coming.stubs is not stubs:
                # Another call was interrupted on that channel, whose thread may deliver no answer any more.
                leave_behind(self._coming)
                self._coming = None
            while not self._pool.advance():
                self._receive(deadline)
            if self._coming is None and self._pool.wants_more():
                self._coming = self._ask()
            return self._pool.piece.ids

    def _ask(self) -> "_Coming":
        connection = self._client._connection
        stubs = connection.get()
        asked = self._pool.ask()
        log = self._client._log
        logged = 0 if log is None else log.now()
        metadata = self._client._access.metadata
        with translated(self._client.target), connection.inside_grpc(stubs):
            future = stubs.ids.AllocateRange.future(asked.request, timeout=self._client.timeout, metadata=metadata)
            connection.keep(future)
        return _Coming(asked, logged, future, stubs)

    def _receive(self, deadline: float) -> None:
        """Waits for the range that was asked for ahead, or for one that is asked for now."""
        coming = self._coming
        ahead = coming is not None
        if coming is None:
            coming = self._coming = self._ask()
        connection = self._client._connection
        try:
            with connection.inside_grpc(coming.stubs, coming.future):
                response = coming.future.result(self._client.timeout + OVERDUE)
        except grpc.FutureTimeoutError:
            self._coming = None
            raise DeadlineExceeded(f"no answer from {self._client.target} in time") from None
        except grpc.RpcError as error:
            self._coming = None
            refusal = from_rpc_error(error, self._client.target)
            smaller = self._pool.refused(refusal) and time.monotonic() < deadline
            if not smaller and (not ahead or isinstance(refusal, ProtocolError)):
                refusal.__cause__ = error
                time.sleep(self._pool.pause(refusal, deadline))
        except grpc.FutureCancelledError:
            self._coming = None
            connection.get()  # says that the client was closed
            raise
        except BaseException:  # of a signal's handler: another thread that waits for this call may wait for ever
            self._coming = None
            raise
        else:
            self._coming = None
            checked(coming.asked.request, response)
            if self._client._log is not None and next(coming.asked.process):  # else the handler of a signal forked
                self._client._log.range(coming.asked.request, response, coming.logged)
            self._pool.accept(coming.asked, response)


class _Coming(NamedTuple):
    """A range that was asked for ahead.

    Attributes:
        logged: When it was asked for, as the log tells it.
        stubs: What it was asked for on.
    """

    asked: Asked
    logged: int
    future: "grpc.Future[pb.AllocateRangeResponse]"
    stubs: Stubs
