"""A server that implements the contract in memory and fails on command, for tests of the clients.

with serving() as server:
    Client(server.target)
    server.fail_next("AllocateRange", "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE)
    server.last["orders"] = 10          # the sequence's last id
    server.ttl = 0.2                    # seconds for which a pool may keep ids
    server.break_after = 2              # the next stream breaks after this many messages
    server.resets = True                # that stream of requests is reset
    server.wrong_number = 1             # is added to the numbers of answers of AllocateStream
    server.hold.clear()                 # calls wait until hold.set()
    server.requests["AllocateRange"]    # the requests, in order
    server.sequences["orders"]          # the sequence in SequenceService
    server.effective_delay = 0.2        # seconds until a change is effective
    server.period = "2026"              # the period of all ranges, as of a sequence with a reset
    server.also = {"generation": 3}     # further fields of replies with ranges
    server.authorizations["GetNode"]    # the metadata `authorization` of each call, None if absent
    server.traceparents["GetNode"]      # the same of the metadata `traceparent`
    server.failing["orders"] = status   # the error of each request of a batch for a sequence
    server.answers["orders"] = [status]  # the next errors of a stream's requests for a sequence
    server.tokens = {"secret"}          # calls without one of these tokens are rejected
"""

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc.v1 import node_pb2
from idalloc.v1.id_allocator_pb2_grpc import IdAllocatorServiceServicer, add_IdAllocatorServiceServicer_to_server
from idalloc.v1.node_pb2_grpc import NodeServiceServicer, add_NodeServiceServicer_to_server
from idalloc.v1.sequences_pb2_grpc import add_SequenceServiceServicer_to_server
from tests.support.fake_sequences import FakeSequences


def status_of(
    reason: str, code: grpc.StatusCode, retry_after: float | None = None, **metadata: object
) -> status_pb2.Status:
    """Return an error with its details, as the service sends it."""
    status = status_pb2.Status(code=code.value[0], message=reason)
    values = {name: str(value) for name, value in metadata.items()}
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="idalloc", metadata=values))
    if retry_after is not None:
        delay = Duration()
        delay.FromNanoseconds(int(retry_after * 1e9))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def trailers(
    reason: str, code: grpc.StatusCode, retry_after: float | None = None, **metadata: object
) -> tuple[tuple[str, bytes], ...]:
    """Return the trailers of an error, as the service sends them."""
    status = status_of(reason, code, retry_after, **metadata)
    return (("grpc-status-details-bin", status.SerializeToString()),)


class _Refused(Exception):
    """The error of one request of a stream."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status


class _OneRequest:
    """The context of one request of a stream, whose error does not end the stream."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.time_remaining = context.time_remaining
        self._details = b""

    def set_trailing_metadata(self, trailers: tuple[tuple[str, bytes], ...]) -> None:
        self._details = dict(trailers).get("grpc-status-details-bin", b"")

    def abort(self, code: grpc.StatusCode, message: str) -> NoReturn:
        status = status_pb2.Status.FromString(self._details)
        status.code, status.message = code.value[0], message
        raise _Refused(status)


class FakeServer(FakeSequences, IdAllocatorServiceServicer, NodeServiceServicer):
    def __init__(self) -> None:
        super().__init__()
        self.target = ""
        self.step = 1
        self.ttl = 60.0
        self.limit = 1_000_000
        self.period = ""
        self.also: dict[str, Any] = {}
        self.node = node_pb2.Node(prefix=7, version="1.2.3", store="memory://[1]")
        self.recorded: dict[str, pb.IdRange] = {}
        self.last: dict[str, int] = {}
        self.break_after: int | None = None
        self.resets = False
        self.wrong_number = 0
        self.hold = threading.Event()
        self.hold.set()
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.authorizations: dict[str, list[str | None]] = defaultdict(list)
        self.traceparents: dict[str, list[str | None]] = defaultdict(list)
        self.answers: dict[str, list[status_pb2.Status]] = defaultdict(list)
        self.failing: dict[str, status_pb2.Status] = {}
        self.tokens: set[str] = set()
        self.deadlines: dict[str, list[float | None]] = defaultdict(list)
        self.health = health.HealthServicer()
        self._next: dict[str, int] = defaultdict(lambda: 1)
        self._failures: dict[str, list[tuple[str, grpc.StatusCode, dict[str, Any]]]] = defaultdict(list)
        self._lock = threading.Lock()

    def fail_next(self, method: str, reason: str, code: grpc.StatusCode, *, times: int = 1, **details: Any) -> None:
        self._failures[method] += [(reason, code, details)] * times

    def AllocateRange(self, request: pb.AllocateRangeRequest, context: grpc.ServicerContext) -> Any:
        self._receive("AllocateRange", request, context)
        ids = self.recorded.get(request.request_id) or self._take(request.sequence, request.id_count or 1, context)
        if request.request_id:
            self.recorded[request.request_id] = ids
        return pb.AllocateRangeResponse(
            range=ids,
            ttl=self._ttl(),
            period=self.period,
            texts=self._texts(request.view, ids),
            node_id=self._node_id(),
            **self.also,
        )

    def BatchAllocateRanges(self, request: pb.BatchAllocateRangesRequest, context: grpc.ServicerContext) -> Any:
        self._receive("BatchAllocateRanges", request, context)
        reply = pb.BatchAllocateRangesResponse()
        for each in request.requests:
            result = reply.results.add()
            if each.sequence in self.failing:
                result.error.CopyFrom(self.failing[each.sequence])
            else:
                ids = self._take(each.sequence, each.id_count or 1, context)
                result.response.MergeFrom(pb.AllocateRangeResponse(range=ids, ttl=self._ttl(), node_id=self._node_id()))
        return reply

    def StreamRanges(self, request: pb.StreamRangesRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        self._receive("StreamRanges", request, context)
        for count in self._chunks(request.total_id_count, request.chunk_id_count, context):
            ids = self._take(request.sequence, count, context)
            texts = self._texts(request.view, ids)
            yield pb.StreamRangesResponse(
                range=ids,
                ttl=self._ttl(),
                period=self.period,
                texts=texts,
                node_id=self._node_id(),
                **self.also,
            )

    def AllocateStream(self, requests: Iterator[pb.AllocateStreamRequest], context: grpc.ServicerContext) -> Any:
        self._record("AllocateStream", None, context)
        for sent, request in enumerate(requests):
            if sent == self.break_after:
                self.break_after = None
                if self.resets:
                    context.cancel()
                    return
                self._abort(context, "SERVER_DRAINING", grpc.StatusCode.UNAVAILABLE, retry_after=0.01)
            self.requests["AllocateStream of one"].append(request)
            answer = pb.AllocateStreamResponse(number=request.number + self.wrong_number)
            one: Any = _OneRequest(context)
            try:
                if request.HasField("generate_doc_id"):
                    answer.generate_doc_id.CopyFrom(self.GenerateDocId(request.generate_doc_id, one))
                elif errors := self.answers[request.allocate_range.sequence]:
                    answer.error.CopyFrom(errors.pop(0))
                else:
                    answer.allocate_range.CopyFrom(self.AllocateRange(request.allocate_range, one))
            except _Refused as error:
                answer.error.CopyFrom(error.status)
            yield answer

    def GenerateDocId(self, request: pb.GenerateDocIdRequest, context: grpc.ServicerContext) -> Any:
        self._receive("GenerateDocId", request, context)
        return pb.GenerateDocIdResponse(**self._doc_ids(request, request.id_count or 1, context))

    def StreamDocIds(self, request: pb.StreamDocIdsRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        self._receive("StreamDocIds", request, context)
        for count in self._chunks(request.total_id_count, request.chunk_id_count, context):
            yield pb.StreamDocIdsResponse(**self._doc_ids(request, count, context))

    def GetNode(self, request: node_pb2.GetNodeRequest, context: grpc.ServicerContext) -> Any:
        self._receive("GetNode", request, context)
        return node_pb2.GetNodeResponse(node=self.node)

    def UpdateNode(self, request: node_pb2.UpdateNodeRequest, context: grpc.ServicerContext) -> Any:
        self._receive("UpdateNode", request, context)
        request.update_mask.MergeMessage(request.node, self.node)
        return node_pb2.UpdateNodeResponse(node=self.node)

    def GenerateUuid(self, request: pb.GenerateUuidRequest, context: grpc.ServicerContext) -> Any:
        self._receive("GenerateUuid", request, context)
        ids = self._take("\0uuids", request.id_count or 1, context)
        head = f"00000000-0000-{request.version}000-8000-"
        uuids = [f"{head}{n:012x}" for n in range(ids.first_id, ids.last_id + 1)]
        if request.view == pb.UUID_VIEW_BYTES:
            return pb.GenerateUuidResponse(uuid_bytes=[bytes.fromhex(text.replace("-", "")) for text in uuids])
        return pb.GenerateUuidResponse(uuids=uuids)

    def _receive(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.hold.wait(10)
        self._record(method, request, context)

    def _record(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        self.requests[method].append(request)
        self.deadlines[method].append(context.time_remaining())
        if self._failures[method]:
            reason, code, details = self._failures[method].pop(0)
            self._abort(context, reason, code, **details)

    def _abort(self, context: grpc.ServicerContext, reason: str, code: grpc.StatusCode, **details: Any) -> NoReturn:
        context.set_trailing_metadata(trailers(reason, code, **details) if reason else ())
        field = f"{details['field']}: " if "field" in details else ""
        context.abort(code, f"{field}{reason} it is")
        raise AssertionError

    def _take(self, sequence: str, count: int, context: grpc.ServicerContext) -> pb.IdRange:
        if count > self.limit:
            self._abort(context, "INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT, field="id_count")
        with self._lock:
            number = self._next[sequence]
            if known := self.sequences.get(sequence):
                number = max(number, known.start, known.last_value + 1)
            left = self.last.get(sequence, 2**62) - number + 1
            if count > left:
                code = grpc.StatusCode.OUT_OF_RANGE
                self._abort(context, "SEQUENCE_EXHAUSTED", code, remaining=left, largest_range=left)
            self._next[sequence] = number + count
            if known:
                known.last_value = number + count - 1
        first, last = number * self.step, (number + count - 1) * self.step
        return pb.IdRange(first_id=first, last_id=last, step=self.step, id_count=count)

    def _doc_ids(
        self, request: pb.GenerateDocIdRequest | pb.StreamDocIdsRequest, count: int, context: grpc.ServicerContext
    ) -> dict[str, Any]:
        ids = self._take("\0doc ids", count, context)
        texts = [f"0007{1_700_000_000:08x}{n:016x}" for n in range(ids.first_id, ids.last_id + 1)]
        if request.view == pb.DOC_ID_VIEW_COMPACT:
            return {"runs": [pb.DocIdRun(first_doc_id=texts[0], step=1, id_count=count)]}
        return {"doc_ids": texts}

    def _chunks(self, total: int, chunk: int, context: grpc.ServicerContext) -> Iterator[int]:
        sent = 0
        while total > 0:
            if sent == self.break_after:
                self.break_after = None
                code = grpc.StatusCode.UNAVAILABLE
                self._abort(context, "SERVER_DRAINING", code, retry_after=0.01)
            yield min(chunk or 10_000, total)
            total -= chunk or 10_000
            sent += 1

    def _texts(self, view: int, ids: pb.IdRange) -> list[str]:
        if view != pb.RANGE_VIEW_TEXTS:
            return []
        return [f"T-{ids.first_id + n * ids.step:04d}" for n in range(ids.id_count)]

    def _node_id(self) -> int:
        """Return the node id in replies."""
        return self.node.prefix << 32 | self.node.start_timestamp

    def _ttl(self) -> Duration:
        return Duration(seconds=int(self.ttl), nanos=int(self.ttl % 1 * 1e9))


class _Authenticator(grpc.ServerInterceptor):
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        metadata = dict(handler_call_details.invocation_metadata)
        authorization = metadata.get("authorization")
        self._fake.authorizations[name].append(authorization)
        self._fake.traceparents[name].append(metadata.get("traceparent"))
        if not self._fake.tokens or authorization in {f"Bearer {token}" for token in self._fake.tokens}:
            return continuation(handler_call_details)
        reject = lambda _, context: self._fake._abort(context, "UNAUTHENTICATED", grpc.StatusCode.UNAUTHENTICATED)  # noqa: E731
        if name == "AllocateStream":
            return grpc.stream_stream_rpc_method_handler(reject)
        if name.startswith("Stream"):
            return grpc.unary_stream_rpc_method_handler(reject)
        return grpc.unary_unary_rpc_method_handler(reject)


@contextmanager
def serving(target: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> Iterator[FakeServer]:
    """Run a server in threads of this process, over TLS if there are credentials."""
    fake = FakeServer()
    server = grpc.server(ThreadPoolExecutor(max_workers=16), interceptors=[_Authenticator(fake)])
    add_IdAllocatorServiceServicer_to_server(fake, server)
    add_NodeServiceServicer_to_server(fake, server)
    add_SequenceServiceServicer_to_server(fake, server)
    health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
    fake.health.set("", health_pb2.HealthCheckResponse.SERVING)
    if credentials is None:
        fake.target = f"127.0.0.1:{server.add_insecure_port(target)}"
    else:
        fake.target = f"127.0.0.1:{server.add_secure_port(target, credentials)}"
    server.start()
    try:
        yield fake
    finally:
        fake.hold.set()
        server.stop(None).wait()
