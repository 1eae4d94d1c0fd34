"""The client for threads."""

import uuid
from collections.abc import Iterable, Iterator

from idalloc._core import calls
from idalloc._core.errors import IdallocError
from idalloc._core.refill import OUTAGE_LIMIT
from idalloc._core.types import Node, ParsedId, Range
from idalloc._sync.allocate_stream import AllocateStream
from idalloc._sync.base import BaseClient
from idalloc._sync.ids import Ids
from idalloc._sync.sequences import Sequences
from idalloc._sync.streams import read_stream


class Client(BaseClient):
    """Client of an idalloc server, for threads.

    Threads may share a client. It connects on its first call. Concurrent streams use up to four
    connections, so that several processes of a server may serve them. If the server or its store is
    unavailable, or the server hangs, the client calls again, or another server, within the call's
    timeout (docs/explanation/client-calls.md). That never returns an id twice; at worst it leaves a
    gap, which ``dropped_ids`` counts if the late answer arrives.

    Forks: a child process never returns an id that the parent took, also if the fork bypassed
    Python (uWSGI). The child opens new connections. gRPC allows that only if
    ``GRPC_ENABLE_FORK_SUPPORT=1`` is in the environment before Python starts, or if the parent's
    client was not connected yet. Otherwise each call in the child raises ``RuntimeError``.

    Signals: a signal handler may raise in any method. Ids may be lost, but no id is returned twice,
    and the next call works; an interrupted stream is over. The handler must not call a method of a
    client that it may interrupt, including ``close``, which may deadlock; it should set a flag or
    raise.

    Args:
        target: The server as ``host:port``, or several servers of one store with commas, or another
            name that gRPC resolves, such as ``unix:/run/idalloc.sock``. Calls use the servers in
            turn. A name with several addresses is several servers.
        timeout: Limit of a call in seconds, including retries. Streams have a parameter of their
            own.
        credentials: TLS credentials, such as ``grpc.ssl_channel_credentials()``; None for a
            plaintext connection.
        token: Bearer token that identifies the client. It is sent with each call, over TLS or to
            this machine only.
        server_name: The name in the server's certificate, if it is not the target's.
        insecure: Whether the token may be sent to another machine without TLS.
        log: A new file for the log of issued ids, for ``idalloc verify``. The client writes a
            record of each range and each run of document ids before it returns them. UUIDs are not
            logged. A name that ends in ``.jsonl`` selects JSON lines, any other name the binary
            format. A forked child writes its own file: this name and the process id.

    Attributes:
        sequences: Methods to create, read, update, advance and delete sequences.

    Raises:
        IdallocError: From all methods: the call failed; the subclass is the cause.
            ``ProtocolError``: the reply violated the contract, and none of its ids is returned.
        InvalidRequest, TypeError: From all methods: an argument does not fit into the request.
        ClientClosed: From all methods: the client is closed. It is also a RuntimeError.
        RuntimeError: From all methods: gRPC is unusable after a fork.
        OSError: The log cannot be created; ``FileExistsError`` if the file exists. From all methods
            that return ids: the log cannot be written, for example because the disk is full. Then
            the ids are not returned; they remain a gap.
    """

    def _add_parts(self) -> None:
        self.sequences = Sequences(self)

    def allocate_range(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        idempotent: bool = False,
        texts: bool = False,
    ) -> Range:
        """Allocate n ids in one contiguous range. They belong to the caller without a time limit.

        The numbers of a sequence with a reset repeat in each period; ``texts=True`` adds texts with
        the period.

        If a reply is lost, a retry, by gRPC or by the caller, allocates another range, and the
        first one is a gap. To avoid the gap, pass a request id: the server records the reply before
        it sends it, which costs one write to the store. A call with the same arguments and the same
        request id returns the same range, from any server, for one hour by default.

        Args:
            sequence: The sequence's name: 1 to 255 bytes of UTF-8 without control characters.
            n: The number of ids, from 1 to the server's max_ids_per_call (1,000,000 by default).
            request_id: A UUID of version 4 that the caller keeps, to repeat this call after an
                error or a crash.
            idempotent: Whether to generate a request id if none is given, so that the retries
                within this call's timeout return the same range.
            texts: Whether to fill ``Range.texts`` with the ids in the sequence's format, such as
                ``INV-2026-000042``; then n is at most 10,000.

        Returns:
            The range: a sequence of its ids. Its step is the sequence's, which may be negative.

        Raises:
            RequestIdReused: The request id was used before, for another request.
            RequestIdBurned: The sequence was changed since; the recorded ids may no longer be
                issued.
        """
        call = calls.allocate_range(sequence, n, request_id=request_id, idempotent=idempotent, texts=texts)
        return self._call(call)

    def allocate_ranges(self, requests: Iterable[tuple[str, int]]) -> list[Range | IdallocError]:
        """Allocate a range for each of up to 1,000 sequences and counts, in one call.

        The results do not depend on each other: an error of one is in the list, and is not raised.
        Requests for the same sequence get ranges without common ids. Shortly before the timeout the
        server answers each request that still waits for its store with ``StoreUnavailable``, so
        that the others are not lost. The client retries the call as a whole, as any other; it does
        not repeat single requests.

        Args:
            requests: The name of a sequence and the number of ids, as in ``allocate_range``, 1 to
                1,000 times. A sequence may occur more than once.

        Returns:
            The range or the error of each request, in the order of the requests.

        Raises:
            InvalidRequest: There are no requests, or more than 1,000.
        """
        return self._call(calls.allocate_ranges(requests))

    def parse_id(self, sequence: str, text: str) -> ParsedId:
        """Parse the text of an id by the sequence's format.

        It does not check whether the id was issued.

        Args:
            sequence: As in ``allocate_range``.
            text: The id's text, such as ``INV-2026-000042``.

        Returns:
            The number in the text, and its date parts and check characters.

        Raises:
            InvalidRequest: The text does not match the format, or its check characters are wrong.
        """
        return self._call(calls.parse_id(sequence, text))

    def ids(self, sequence: str, *, timeout: float = OUTAGE_LIMIT) -> Ids:
        """Return an endless iterator over the ids of a sequence.

        Keep it: each ``Ids`` prefetches its own ranges. Because ids are prefetched, those of a
        ``RISING`` sequence rise in the order of the server's answers, not in the order of their
        use.

        Args:
            sequence: The sequence's name, as in ``allocate_range``.
            timeout: How long ``next()`` waits for an id if none is at hand, in seconds: for a
                range, for a quota, and while no server answers.
        """
        return Ids(self, sequence, timeout)

    def stream_ranges(
        self, sequence: str, total: int, chunk: int = 0, *, texts: bool = False, timeout: float | None = None
    ) -> Iterator[Range]:
        """Allocate ids in contiguous ranges until the total is reached.

        If the stream breaks, for example because the server restarts, the client requests the
        missing ids again, for half a minute without progress. So there may be more ranges than
        total / chunk, and any of them may be short. The iterator is for one thread. Stopping early
        leaves a gap.

        Args:
            sequence: The sequence's name, as in ``allocate_range``.
            total: The number of ids, at least 1.
            chunk: The number of ids in a range; 0 for the server's default, 10,000.
            texts: As in ``allocate_range``, for each range.
            timeout: Limit of the whole stream in seconds, including the caller's time between
                ranges; None for no limit.

        Returns:
            An iterator of ranges.
        """
        return read_stream(self, calls.stream_ranges(sequence, total, chunk, texts=texts, timeout=timeout))

    def allocate_stream(self) -> AllocateStream:
        """Return a stream for many calls, which costs less than unary calls.

        Use it if many threads call at the same time; else ``allocate_range`` with more ids, or
        ``ids``, is faster still.
        """
        return AllocateStream(self)

    def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """Generate n document ids in MySQL's format, in ascending order.

        Args:
            n: The number of ids, from 1 to the server's max_ids_per_call (1,000,000 by default).
            offset: MySQL's auto_increment_offset for this call, 1 to 65535; 0 for the server's
                setting.
            increment: MySQL's auto_increment_increment for this call, 1 to 65535; 0 for the
                server's setting.

        Returns:
            The ids, each of 28 lower-case hexadecimal characters.
        """
        return self._call(calls.doc_ids(n, offset, increment))

    def stream_doc_ids(
        self,
        total: int,
        chunk: int = 0,
        *,
        offset: int = 0,
        increment: int = 0,
        timeout: float | None = None,
    ) -> Iterator[list[str]]:
        """Generate document ids in batches until the total is reached.

        It resumes as ``stream_ranges`` does. After a break the ids may come from another server,
        and be smaller than the ids before.

        Args:
            total: The number of ids, at least 1.
            chunk: The number of ids in a batch; 0 for the server's default, 10,000.
            offset: As in ``doc_ids``.
            increment: As in ``doc_ids``.
            timeout: As in ``stream_ranges``.

        Returns:
            An iterator of batches, each in ascending order.
        """
        stream = calls.stream_doc_ids(total, chunk, offset=offset, increment=increment, timeout=timeout)
        return read_stream(self, stream)

    def uuids(self, n: int = 1, version: int = 7) -> list[uuid.UUID]:
        """Generate n UUIDs (RFC 9562), up to 10,000 in a call.

        They are unique by chance only, and are not logged.

        Args:
            n: The number of UUIDs, at least 1.
            version: 7 for UUIDs that rise while one server process answers, also if its clock steps
                back; 4 for random ones.
        """
        return [each for call in calls.uuids(n, version) for each in self._call(call)]

    def node(self) -> Node:
        """Return the version, store and document id settings of the server process that answers."""
        return self._call(calls.node())

    def update_node(
        self,
        *,
        prefix: int | None = None,
        auto_increment_offset: int | None = None,
        auto_increment_increment: int | None = None,
        persist: bool = False,
    ) -> Node:
        """Change the document id settings of the server process that answers.

        The change is effective at once, for all callers.

        Args:
            prefix: The prefix, 0 to 65535; None, here and below, keeps the setting.
            auto_increment_offset: MySQL's variable of that name, 1 to 65535.
            auto_increment_increment: MySQL's variable of that name, 1 to 65535.
            persist: Whether the change survives a restart of the node.

        Raises:
            PrefixInUse: Another live node holds the prefix, and the server does not allow sharing
                it.
            InvalidRequest: No setting was given.
        """
        call = calls.update_node(prefix, auto_increment_offset, auto_increment_increment, persist)
        return self._call(call)
