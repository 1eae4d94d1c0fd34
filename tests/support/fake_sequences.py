"""SequenceService of the fake server. It stores settings without checking them."""

import time
from typing import Any, NoReturn

import grpc

from idalloc.v1 import id_allocator_pb2
from idalloc.v1 import sequences_pb2 as pb
from idalloc.v1.sequences_pb2_grpc import SequenceServiceServicer

PAGE_SIZE = 2


class FakeSequences(SequenceServiceServicer):
    def __init__(self) -> None:
        self.sequences: dict[str, pb.Sequence] = {}
        self.effective_delay = 0.0
        self.replies_to_lose = 0
        self.empty_pages = 0  # the number of empty pages before the first one with a sequence
        self._replies: dict[str, Any] = {}

    def CreateSequence(self, request: pb.CreateSequenceRequest, context: grpc.ServicerContext) -> Any:
        self._receive("CreateSequence", request, context)
        name = request.sequence.name
        if request.request_id in self._replies:
            return self._reply(request, self._replies[request.request_id], context)
        if name in self.sequences:
            self._abort(context, "SEQUENCE_EXISTS", grpc.StatusCode.ALREADY_EXISTS, sequence=name)
        created = pb.Sequence(start=1, step=1, min_value=1, max_value=2**63 - 2, generation=1, etag='"1"')
        created.ordering = id_allocator_pb2.ORDERING_RISING_PER_NODE
        created.remaining = 2**63 - 2
        created.kind, created.reset, created.time_zone = pb.SEQUENCE_KIND_COUNTER, pb.RESET_NEVER, "UTC"
        created.MergeFrom(request.sequence)
        created.create_time.FromSeconds(1_790_000_000)
        self.sequences[name] = created
        return self._reply(request, pb.CreateSequenceResponse(sequence=created), context)

    def GetSequence(self, request: pb.GetSequenceRequest, context: grpc.ServicerContext) -> Any:
        self._receive("GetSequence", request, context)
        return pb.GetSequenceResponse(sequence=self._found(request.name, "", context))

    def ListSequences(self, request: pb.ListSequencesRequest, context: grpc.ServicerContext) -> Any:
        self._receive("ListSequences", request, context)
        names = sorted(name for name in self.sequences if name.startswith(request.name_prefix))
        names = [n for n in names if request.show_deleted or not self.sequences[n].HasField("delete_time")]
        first = int(request.page_token or 0)
        if self.empty_pages:
            self.empty_pages -= 1
            return pb.ListSequencesResponse(next_page_token=f"{first:0{self.empty_pages + 1}}")
        token = str(first + PAGE_SIZE) if first + PAGE_SIZE < len(names) else ""
        page = [self.sequences[name] for name in names[first : first + PAGE_SIZE]]
        return pb.ListSequencesResponse(sequences=page, next_page_token=token)

    def UpdateSequence(self, request: pb.UpdateSequenceRequest, context: grpc.ServicerContext) -> Any:
        self._receive("UpdateSequence", request, context)
        found = self._found(request.sequence.name, request.sequence.etag, context)
        for path in request.update_mask.paths:
            found.ClearField(path)  # type: ignore[arg-type]
        request.update_mask.MergeMessage(request.sequence, found)
        return self._reply_changed(request, pb.UpdateSequenceResponse(sequence=found), context)

    def DeleteSequence(self, request: pb.DeleteSequenceRequest, context: grpc.ServicerContext) -> Any:
        self._receive("DeleteSequence", request, context)
        found = self._found(request.name, request.etag, context)
        found.delete_time.FromSeconds(1_790_000_001)
        return self._reply_changed(request, pb.DeleteSequenceResponse(sequence=found), context)

    def AdvanceSequence(self, request: pb.AdvanceSequenceRequest, context: grpc.ServicerContext) -> Any:
        self._receive("AdvanceSequence", request, context)
        found = self._found(request.name, request.etag, context)
        found.last_value = request.past
        return self._reply_changed(request, pb.AdvanceSequenceResponse(sequence=found), context)

    def ParseId(self, request: pb.ParseIdRequest, context: grpc.ServicerContext) -> Any:
        self._receive("ParseId", request, context)
        if not request.text.startswith("T-"):
            self._abort(context, "INVALID_REQUEST", grpc.StatusCode.INVALID_ARGUMENT, field="text")
        return pb.ParseIdResponse(value=int(request.text[2:]), year=2026, check="7")

    def _found(self, name: str, etag: str, context: grpc.ServicerContext) -> pb.Sequence:
        if name not in self.sequences:
            self._abort(context, "SEQUENCE_NOT_FOUND", grpc.StatusCode.NOT_FOUND, sequence=name)
        found = self.sequences[name]
        if etag and etag != found.etag:
            self._abort(context, "SEQUENCE_CHANGED", grpc.StatusCode.ABORTED, sequence=name, etag=found.etag)
        return found

    def _reply_changed(self, request: Any, response: Any, context: grpc.ServicerContext) -> Any:
        response.effective_delay.FromNanoseconds(int(self.effective_delay * 1e9))
        response.effective_time.FromNanoseconds(int((time.time() + self.effective_delay) * 1e9))
        return self._reply(request, response, context)

    def _reply(self, request: Any, response: Any, context: grpc.ServicerContext) -> Any:
        """Record the reply for a retry, and lose it if the test requests that."""
        self._replies[request.request_id] = response
        if self.replies_to_lose:
            self.replies_to_lose -= 1
            self._abort(context, "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE)
        return response

    def _receive(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        raise NotImplementedError

    def _abort(self, context: grpc.ServicerContext, reason: str, code: grpc.StatusCode, **details: Any) -> NoReturn:
        raise NotImplementedError
