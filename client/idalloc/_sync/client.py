"""The client for threads."""

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

import grpc

from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._core.requests import (
    StreamRequest,
    StreamResponse,
    doc_ids_request,
    range_request,
    stream_doc_ids_request,
    stream_ranges_request,
    to_doc_ids,
    to_range,
    to_uuids,
    update_node_request,
    uuid_requests,
)
from idalloc._core.resumption import Resumption
from idalloc._sync.base import BaseClient, Stubs
from idalloc._sync.ids import Ids
from idalloc._sync.sequences import Sequences
from idalloc._sync.streams import resume
from idalloc._transport.access import from_environment
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.node_pb2 import GetNodeRequest, Node
from idalloc.v1.sequences_pb2 import ParseIdRequest, ParseIdResponse

T = TypeVar("T")


class Client(BaseClient):
    """Takes ids from an idalloc server.

    One client serves any number of threads. It connects on its first call; streams that run at the same time have up
    to four connections, so that several processes of a server may serve them. A call that fails because the server or
    its store is away is tried again up to five times within its timeout; that never gives an id twice, at worst it
    leaves a gap.

    A fork is safe, also one that bypasses Python (uWSGI): the child never gives an id that the parent took, and
    connects anew. gRPC allows that only if
    ``GRPC_ENABLE_FORK_SUPPORT=1`` is in the environment before Python starts, or if the parent's client was not
    connected yet; otherwise every call in the child raises ``RuntimeError``.

    The handler of a signal may raise an exception amid any method: ids may be lost then, but none is given twice, and
    the next call works; a stream that was interrupted is over. The handler must not call any method of a client that it
    may interrupt, ``close`` included, which may wait for ever: it sets a flag or raises.

    Args:
        target: The server as ``host:port``, or any other name that gRPC resolves.
        timeout: How many seconds a call may take, retries included. Streams take their own.
        credentials: For TLS, as from ``grpc.ssl_channel_credentials``; without them the connection is not encrypted.
        token: Says to the server who this is. It goes with each call, and over TLS or within this machine only.
        server_name: The name in the server's certificate, where it is not the target's, as behind a forwarded port.
            Of a target that is a list of addresses, gRPC takes the first one for the name of all.
        insecure: Whether the token may go to another machine over a connection without TLS.
        log: A file to write down in what was issued, for ``idalloc verify``: a record for each range and each run of
            document ids, before its ids are given out. Not UUIDs. It must not exist; JSON lines where its name ends
            in ``.jsonl``, else binary. In the child of a fork it is another file: this name and the
            child's process id.

    Attributes:
        sequences: Creates, shows, changes, advances and deletes sequences.

    Raises:
        IdallocError: From all methods, when a call failed: one of its subclasses says why. ``ProtocolError``: the reply
            breaks the contract, so nothing of it is given out.
        ValueError, TypeError: From all methods, for an argument that no request can hold.
        RuntimeError: From all methods, when the client was closed, or gRPC is not usable after a fork.
        OSError: The log cannot be made: FileExistsError where the file exists. From all methods that give ids: they
            came, but could not be written down, on a full disk, say. Then they are given to nobody: a gap.
    """

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
        super().__init__(
            target,
            timeout=timeout,
            credentials=credentials,
            token=token,
            server_name=server_name,
            insecure=insecure,
            log=log,
        )
        self.sequences = Sequences(self)

    @classmethod
    def from_environment(cls, *, timeout: float = DEFAULT_TIMEOUT, log: str | os.PathLike[str] | None = None) -> Self:
        """Makes a client of the variables that the command ``idalloc`` goes by.

        They are IDALLOC_SERVER, IDALLOC_TLS, IDALLOC_CA, IDALLOC_CERT, IDALLOC_KEY, IDALLOC_SERVER_NAME, IDALLOC_TOKEN,
        IDALLOC_TOKEN_FILE and IDALLOC_TOKEN_INSECURE. Files are read once.

        Args:
            timeout: As of ``Client``.
            log: As of ``Client``.

        Raises:
            ValueError: One of them is wrong, or its file cannot be read.
        """
        target, arguments = from_environment()
        return cls(target, timeout=timeout, log=log, **arguments)

    def allocate_range(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        exactly_once: bool = False,
    ) -> range:
        """Takes n ids in one contiguous range. They are the caller's for ever.

        Where the sequence has a reset, these numbers come again in each period: ``allocate_texts`` gives texts that
        carry it.

        An answer that was lost on its way burns its range at worst: a retry, by gRPC or by the caller, takes another
        one. Where also that gap is unwanted, a request id has the server write the answer down first, which costs a
        write to its store: the same call with the same id gets the same range, from any server, for an hour unless it
        was set otherwise.

        Args:
            sequence: The sequence's name: 1 to 255 bytes of UTF-8 without control characters.
            n: How many ids, from 1 to the server's limit (1,000,000 unless it was set otherwise).
            request_id: A UUID of version 4 that the caller keeps, to repeat this call also after an error or a crash.
            exactly_once: Whether to make a request id for this one call, for the retries within its timeout.

        Returns:
            The ids, in the sequence's own step, which may be negative.

        Raises:
            RequestIdReused: The request id was used before, for another call.
            RequestIdBurned: The sequence was changed since; the ids may not be given any more.
        """
        request = range_request(sequence, n, request_id=request_id, exactly_once=exactly_once)
        return to_range(self._allocate(request))

    def allocate_texts(
        self,
        sequence: str,
        n: int = 1,
        *,
        request_id: str | uuid.UUID | None = None,
        exactly_once: bool = False,
    ) -> list[str]:
        """Takes n ids as texts in the sequence's format, such as ``INV-2026-000042``.

        Args:
            sequence: As in ``allocate_range``.
            n: How many ids, 1 to 10,000.
            request_id: As in ``allocate_range``.
            exactly_once: As in ``allocate_range``.
        """
        request = range_request(sequence, n, request_id=request_id, exactly_once=exactly_once, view=pb.RANGE_VIEW_TEXTS)
        return list(self._allocate(request).texts)

    def parse_id(self, sequence: str, text: str) -> ParseIdResponse:
        """Takes the text of an id apart, by the sequence's format; whether it was ever issued is not looked at.

        Args:
            sequence: As in ``allocate_range``.
            text: The text.

        Raises:
            InvalidRequest: The text is none of this format, or its check characters are wrong.
        """
        request = ParseIdRequest(sequence=sequence, text=text)
        return self._call(lambda stubs: stubs.sequences.ParseId, request)

    def ids(self, sequence: str) -> Ids:
        """Returns the ids of a sequence one by one, without end. See ``Ids``; keep it rather than ask again.

        Ids are asked for ahead: those of a ``RISING`` sequence are in the order of the calls, not of their use.

        Args:
            sequence: The sequence's name, as in ``allocate_range``.
        """
        return Ids(self, sequence)

    def stream_ranges(
        self, sequence: str, total: int, chunk: int = 0, *, timeout: float | None = None
    ) -> Iterator[range]:
        """Takes ids in contiguous ranges until the total is reached.

        Where the stream breaks, because the server stops, say, what is missing is asked for again, for half a minute
        without progress. So there can be more ranges than total / chunk, and the last of them need not be the only
        short one. The iterator is for one thread; dropping it early leaves a gap.

        Args:
            sequence: The sequence's name, as in ``allocate_range``.
            total: How many ids in all, at least 1.
            chunk: How many ids a range has; 0 for the server's default, 10,000.
            timeout: How many seconds all of it may take, also the time between the ranges; None for any.
        """
        request = stream_ranges_request(sequence, chunk)
        return self._stream(lambda stubs: stubs.ids.StreamRanges, request, to_range, total, timeout)

    def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """Makes n document ids in MySQL's format, rising.

        Args:
            n: How many ids, from 1 to the server's limit (1,000,000 unless it was set otherwise).
            offset: MySQL's auto_increment_offset for this call, 1 to 65535; 0 for the server's own.
            increment: MySQL's auto_increment_increment for this call, 1 to 65535; 0 for the server's own.

        Returns:
            The ids, each of 28 lower-case hexadecimal characters.
        """
        request = doc_ids_request(n, offset, increment)
        return to_doc_ids(self._generate(request))

    def stream_doc_ids(
        self,
        total: int,
        chunk: int = 0,
        *,
        offset: int = 0,
        increment: int = 0,
        timeout: float | None = None,
    ) -> Iterator[list[str]]:
        """Makes document ids in batches until the total is reached; goes on where it broke as ``stream_ranges``.

        After a break the ids may come from another server, and be smaller than those before it.

        Args:
            total: How many ids in all, at least 1.
            chunk: How many ids a batch has; 0 for the server's default, 10,000.
            offset: As in ``doc_ids``.
            increment: As in ``doc_ids``.
            timeout: As in ``stream_ranges``.
        """
        request = stream_doc_ids_request(chunk, offset, increment)
        return self._stream(lambda stubs: stubs.ids.StreamDocIds, request, to_doc_ids, total, timeout)

    def uuids(self, n: int = 1, version: int = 7) -> list[uuid.UUID]:
        """Makes n UUIDs, 10,000 in a call. They are not in the log: nothing but chance makes them unique.

        Args:
            n: How many, at least 1.
            version: 7, rising as long as one process answers, also when its clock steps back; or 4, random.
        """
        made: list[uuid.UUID] = []
        for request in uuid_requests(n, version):
            made += to_uuids(self._call(lambda stubs: stubs.ids.GenerateUuid, request))
        return made

    def node(self) -> Node:
        """Tells about the server process that answers: its version, store, and what its document ids are made of."""
        return self._call(lambda stubs: stubs.nodes.GetNode, GetNodeRequest()).node

    def update_node(
        self,
        *,
        prefix: int | None = None,
        auto_increment_offset: int | None = None,
        auto_increment_increment: int | None = None,
        persist: bool = False,
    ) -> Node:
        """Changes what the document ids of the server process that answers are made of, at once and for all callers.

        Args:
            prefix: The prefix, 0 to 65535.
            auto_increment_offset: MySQL's variable of that name, 1 to 65535.
            auto_increment_increment: MySQL's variable of that name, 1 to 65535.
            persist: Whether the node keeps the change over restarts.

        Raises:
            PrefixInUse: Another live node holds the prefix, and the server refuses to share it.
        """
        request = update_node_request(prefix, auto_increment_offset, auto_increment_increment, persist)
        return self._call(lambda stubs: stubs.nodes.UpdateNode, request).node

    def _stream(
        self,
        method: "Callable[[Stubs], grpc.UnaryStreamMultiCallable[StreamRequest, StreamResponse]]",
        request: Callable[[int], StreamRequest],
        convert: Callable[[StreamResponse], T],
        total: int,
        timeout: float | None,
    ) -> Iterator[T]:
        resumption = Resumption(total, timeout)  # here and not in the generator: what is wrong is told at once
        return resume(self, method, request, convert, resumption)
