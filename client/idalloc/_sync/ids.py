"""``Ids``: the iterator over a sequence's ids, for threads."""

import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue

from idalloc._base import BaseIds
from idalloc._transport.channel import leak


class Ids(BaseIds, Iterator[int]):
    """An endless iterator over the ids of one sequence.

    It prefetches ranges, larger ones the faster ids are used: most ids cost no call. It returns
    each id once, in the sequence's order while one server answers. Before each id it checks the
    time, and discards ids that are older than the server allows (``ttl``).

    Threads may share one ``Ids``, with ``next()`` and with loops: each id goes to one thread. After
    a loop has ended, by ``break`` or by an error, another loop continues with the next id. All
    threads wait for one range, each for its own time.

    In the child of a fork it continues with ids of the child's own, also if the fork bypassed
    Python (uWSGI). After the client is closed, it raises ``ClientClosed``.

    A signal handler may raise at any moment: ids may be lost, but no id is returned twice, and
    ``next()`` works afterwards. The handler must not call a method of the client or of its ``Ids``,
    including ``close``.

    Raises:
        SequenceExhausted: The sequence has no more ids.
        IdallocError: As from any call; ``next()`` tries again. While a quota is exceeded or no
            server answers, it first waits for the time that ``Client.ids`` was given.
    """

    def __iter__(self) -> Iterator[int]:
        # Runs in C, and shares the ids with all other iterators.
        return chain.from_iterable(iter(self._next_part, None))

    def __next__(self) -> int:
        while True:
            for value in self._pool.current.ids:
                return value
            self._next_part()

    def _next_part(self) -> Iterator[int]:
        """Return an iterator over the next ids, which threads may share."""
        client = self._client
        refills = self._refills
        client._connection.stubs()  # raises if the client is closed
        deadline = time.monotonic() + self._timeout
        woken = SimpleQueue[None]()  # see `AllocateStream._exchange`
        wake = partial(woken.put, None)
        refill = None
        while True:
            client._find_servers()  # without the lock, as a name server may be slow
            with self._lock:
                current = refills.current
                if current is not None and any(not each.server.is_open(each.stubs) for each in current.attempts.open):
                    # The channel was abandoned: its thread may never deliver the answer.
                    leak(refills.clear())
                seconds = refills.poll(deadline, wake, refill)
                if seconds is None:
                    return self._pool.current.ids
                refill = refills.current
            with suppress(Empty):
                woken.get(timeout=seconds)
            client._connection.stubs()
