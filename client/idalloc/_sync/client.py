"""The client for threads."""

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Self, TypeVar

import grpc

from idalloc._core.conversions import to_doc_ids, to_range, to_uuids
from idalloc._core.defaults import DEFAULT_TARGET, DEFAULT_TIMEOUT
from idalloc._core.requests import (
    StreamRequest,
    StreamResponse,
    doc_ids_request,
    range_request,
    stream_doc_ids_request,
    stream_ranges_request,
    update_node_request,
    uuid_requests,
)
from idalloc._core.resumption import Resumption
from idalloc._sync.base import BaseClient, Stubs
from idalloc._sync.ids import Ids
from idalloc._sync.sequences import Sequences
from idalloc._sync.streams import read_stream
from idalloc._transport.config import ChannelConfig, from_environment
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.node_pb2 import GetNodeRequest, Node
from idalloc.v1.sequences_pb2 import ParseIdRequest, ParseIdResponse

T = TypeVar("T")


class Client(BaseClient):
    """Client of an idalloc server, for threads.

    Threads may share a client. It connects on its first call. Concurrent streams use up to four connections, so that
    several processes of a server may serve them. If the server or its store is unavailable, a unary call has up
    to five attempts within its timeout. A retry never returns an id twice; at worst it leaves a gap.

    Forks: a child process never returns an id that the parent took, also if the fork bypassed Python (uWSGI). The child
    opens new connections. gRPC allows that only if ``GRPC_ENABLE_FORK_SUPPORT=1`` is in the environment before Python
    starts, or if the parent's client was not connected yet. Otherwise each call in the child raises ``RuntimeError``.

    Signals: a signal handler may raise in any method. Ids may be lost, but none is returned twice, and the next call
    works; an interrupted stream is over. The handler must not call a method of a client that it may interrupt,
    including ``close``, which may deadlock; it should set a flag or raise.

    Args:
        target: The server as ``host:port``, or another name that gRPC resolves.
        timeout: Limit of a call in seconds, including retries. Streams have a parameter of their own.
        credentials: TLS credentials, such as ``grpc.ssl_channel_credentials()``; None for a plaintext connection.
        token: Bearer token that identifies the client. It is sent with each call, over TLS or to this machine only.
        server_name: The name in the server's certificate, if it is not the target's. If the target is a list of
            addresses, the default is the first address.
        insecure: Whether the token may be sent to another machine without TLS.
        log: A new file for the log of issued ids, for ``idalloc verify``. The client writes a record of each range and
            each run of document ids before it returns them. UUIDs are not logged. A name that ends in ``.jsonl``
            selects JSON lines, any other name the binary format. The child of a fork writes a file of its own: this
            name and the process id.

    Attributes:
        sequences: Methods to create, read, update, advance and delete sequences.

    Raises:
        IdallocError: From all methods: the call failed; the subclass is the cause. ``ProtocolError``: the reply
            violated the contract, and none of its ids is returned.
        ValueError, TypeError: From all methods: an argument does not fit into the request.
        RuntimeError: From all methods: the client is closed, or gRPC is unusable after a fork.
        OSError: The log cannot be created; ``FileExistsError`` if the file exists. From all methods that return ids:
            the log cannot be written, for example because the disk is full. Then the ids are not returned; they remain
            a gap.
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
        config = ChannelConfig(target, token=token, credentials=credentials, server_name=server_name, insecure=insecure)
        super().__init__(target, timeout, config, log)
        self.sequences = Sequences(self)

    @classmethod
    def from_environment(cls, *, timeout: float = DEFAULT_TIMEOUT, log: str | os.PathLike[str] | None = None) -> Self:
        """Return a client that is configured by the environment variables of the command ``idalloc``.

        They are IDALLOC_SERVER, IDALLOC_TLS, IDALLOC_CA, IDALLOC_CERT, IDALLOC_KEY, IDALLOC_SERVER_NAME, IDALLOC_TOKEN,
        IDALLOC_TOKEN_FILE and IDALLOC_TOKEN_INSECURE. Files are read once.

        Args:
            timeout: As in ``Client``.
            log: As in ``Client``.

        Raises:
            ValueError: A variable is invalid, or its file cannot be read; the message names the variable.
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
        """Allocate n ids in one contiguous range. They belong to the caller for ever.

        The numbers of a sequence with a reset repeat in each period; ``allocate_texts`` returns texts with the period.

        If a reply is lost, a retry, by gRPC or by the caller, allocates another range, and the first one is a gap. To
        avoid the gap, pass a request id: the server records the reply before it sends it, which costs one write to the
        store. A call with the same arguments and the same request id returns the same range, from any server, for one
        hour by default.

        Args:
            sequence: The sequence's name: 1 to 255 bytes of UTF-8 without control characters.
            n: The number of ids, from 1 to the server's max_ids_per_call (1,000,000 by default).
            request_id: A UUID of version 4 that the caller keeps, to repeat this call after an error or a crash.
            exactly_once: Whether to generate a request id for the retries within this call's timeout.

        Returns:
            The ids. The range's step is the sequence's, which may be negative.

        Raises:
            RequestIdReused: The request id was used before, for another request.
            RequestIdBurned: The sequence was changed since; the recorded ids may no longer be issued.
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
        """Allocate n ids as texts in the sequence's format, such as ``INV-2026-000042``.

        Args:
            sequence: As in ``allocate_range``.
            n: The number of ids, 1 to 10,000.
            request_id: As in ``allocate_range``.
            exactly_once: As in ``allocate_range``.

        Returns:
            The texts, in the order of the ids.
        """
        request = range_request(sequence, n, request_id=request_id, exactly_once=exactly_once, view=pb.RANGE_VIEW_TEXTS)
        return list(self._allocate(request).texts)

    def parse_id(self, sequence: str, text: str) -> ParseIdResponse:
        """Parse the text of an id by the sequence's format. It does not check whether the id was issued.

        Args:
            sequence: As in ``allocate_range``.
            text: The text.

        Returns:
            The number in the text, and its date parts and check characters.

        Raises:
            InvalidRequest: The text does not match the format, or its check characters are wrong.
        """
        request = ParseIdRequest(sequence=sequence, text=text)
        return self._call(lambda stubs: stubs.sequences.ParseId, request)

    def ids(self, sequence: str) -> Ids:
        """Return an endless iterator over the ids of a sequence. Keep it: each ``Ids`` prefetches its own ranges.

        Because ids are prefetched, those of a ``RISING`` sequence rise in the order of the server's answers, not in the
        order of their use.

        Args:
            sequence: The sequence's name, as in ``allocate_range``.
        """
        return Ids(self, sequence)

    def stream_ranges(
        self, sequence: str, total: int, chunk: int = 0, *, timeout: float | None = None
    ) -> Iterator[range]:
        """Allocate ids in contiguous ranges until the total is reached.

        If the stream breaks, for example because the server restarts, the client requests the missing ids again, for
        half a minute without progress. So there may be more ranges than total / chunk, and any of them may be short.
        The iterator is for one thread. Stopping early leaves a gap.

        Args:
            sequence: The sequence's name, as in ``allocate_range``.
            total: The number of ids, at least 1.
            chunk: The number of ids in a range; 0 for the server's default, 10,000.
            timeout: Limit of the whole stream in seconds, including the caller's time between ranges; None for no
                limit.

        Returns:
            An iterator of ranges.
        """
        request = stream_ranges_request(sequence, chunk)
        return self._stream(lambda stubs: stubs.ids.StreamRanges, request, to_range, total, timeout)

    def doc_ids(self, n: int = 1, *, offset: int = 0, increment: int = 0) -> list[str]:
        """Generate n document ids in MySQL's format, in ascending order.

        Args:
            n: The number of ids, from 1 to the server's max_ids_per_call (1,000,000 by default).
            offset: MySQL's auto_increment_offset for this call, 1 to 65535; 0 for the server's setting.
            increment: MySQL's auto_increment_increment for this call, 1 to 65535; 0 for the server's setting.

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
        """Generate document ids in batches until the total is reached. It resumes as ``stream_ranges`` does.

        After a break the ids may come from another server, and be smaller than the ids before.

        Args:
            total: The number of ids, at least 1.
            chunk: The number of ids in a batch; 0 for the server's default, 10,000.
            offset: As in ``doc_ids``.
            increment: As in ``doc_ids``.
            timeout: As in ``stream_ranges``.

        Returns:
            An iterator of batches, each in ascending order.
        """
        request = stream_doc_ids_request(chunk, offset, increment)
        return self._stream(lambda stubs: stubs.ids.StreamDocIds, request, to_doc_ids, total, timeout)

    def uuids(self, n: int = 1, version: int = 7) -> list[uuid.UUID]:
        """Generate n UUIDs (RFC 9562), up to 10,000 in a call. They are unique by chance only, and are not logged.

        Args:
            n: The number of UUIDs, at least 1.
            version: 7 for UUIDs that rise while one server process answers, also if its clock steps back; 4 for random
                ones.
        """
        uuids: list[uuid.UUID] = []
        for request in uuid_requests(n, version):
            uuids += to_uuids(self._call(lambda stubs: stubs.ids.GenerateUuid, request))
        return uuids

    def node(self) -> Node:
        """Return the version, the store and the document id settings of the server process that answers."""
        return self._call(lambda stubs: stubs.nodes.GetNode, GetNodeRequest()).node

    def update_node(
        self,
        *,
        prefix: int | None = None,
        auto_increment_offset: int | None = None,
        auto_increment_increment: int | None = None,
        persist: bool = False,
    ) -> Node:
        """Change the document id settings of the server process that answers, at once and for all callers.

        Args:
            prefix: The prefix, 0 to 65535; None, here and below, leaves the setting as it is.
            auto_increment_offset: MySQL's variable of that name, 1 to 65535.
            auto_increment_increment: MySQL's variable of that name, 1 to 65535.
            persist: Whether the change survives a restart of the node.

        Raises:
            PrefixInUse: Another live node holds the prefix, and the server does not allow sharing it.
            ValueError: No setting was given.
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
        resumption = Resumption(total, timeout)  # not in the generator: invalid arguments raise at once
        return read_stream(self, method, request, convert, resumption)
