"""The base of the client for threads: its connections, its log and its unary calls."""

import os
from collections.abc import Callable
from typing import NamedTuple, Self

import grpc

from idalloc._core.reply_checks import check_reply
from idalloc._core.requests import AnyRequest, AnyResponse
from idalloc._core.rpc_errors import translate_rpc_errors
from idalloc._issued_log.log import IssuedLog
from idalloc._transport.channel import MAX_CONNECTIONS, Connection, channel_options
from idalloc._transport.config import ChannelConfig
from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceStub
from idalloc.v1.node_pb2_grpc import NodeServiceStub
from idalloc.v1.sequences_pb2_grpc import SequenceServiceStub


class Stubs(NamedTuple):
    """An open channel and its stubs."""

    channel: grpc.Channel
    ids: IdAllocatorServiceStub
    nodes: NodeServiceStub
    sequences: SequenceServiceStub


class BaseClient:
    """The connections of a client, its log and its unary calls. ``Client`` adds the public methods."""

    def __init__(self, target: str, timeout: float, config: ChannelConfig, log: str | os.PathLike[str] | None) -> None:
        self.target = target
        self.timeout = timeout
        self._config = config
        self._log = None if log is None else IssuedLog(log)
        self._connections = [Connection(self._open_channel, is_asyncio=False) for _ in range(MAX_CONNECTIONS)]
        self._connection = self._connections[0]

    def close(self) -> None:
        """Close all connections and the log. Prefetched ids are discarded; running calls and streams fail."""
        for stubs in [connection.close() for connection in self._connections]:
            if stubs is not None:
                stubs.channel.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _open_channel(self) -> Stubs:
        config = self._config
        if config.credentials is None:
            channel = grpc.insecure_channel(self.target, channel_options(config))
        else:
            channel = grpc.secure_channel(self.target, config.credentials, channel_options(config))
        return Stubs(channel, IdAllocatorServiceStub(channel), NodeServiceStub(channel), SequenceServiceStub(channel))

    def _call(
        self,
        method: "Callable[[Stubs], grpc.UnaryUnaryMultiCallable[AnyRequest, AnyResponse]]",
        request: AnyRequest,
    ) -> AnyResponse:
        with translate_rpc_errors(self.target):
            stubs = self._connection.stubs()
            with self._connection.abandon_if_interrupted(stubs):
                reply = method(stubs)(request, timeout=self.timeout, metadata=self._config.metadata)
        return check_reply(request, reply)

    def _allocate(self, request: pb.AllocateRangeRequest) -> pb.AllocateRangeResponse:
        if self._log is None:
            return self._call(lambda stubs: stubs.ids.AllocateRange, request)
        asked = self._log.now()
        response = self._call(lambda stubs: stubs.ids.AllocateRange, request)
        self._log.range(request, response, asked)
        return response

    def _generate(self, request: pb.GenerateDocIdRequest) -> pb.GenerateDocIdResponse:
        if self._log is None:
            return self._call(lambda stubs: stubs.ids.GenerateDocId, request)
        asked = self._log.now()
        response = self._call(lambda stubs: stubs.ids.GenerateDocId, request)
        self._log.doc_ids(response, asked)
        return response
