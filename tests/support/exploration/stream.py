"""A call of AllocateStream to a node: what its client does are steps, and its server is real."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.turns import Shares, StreamShare
from idalloc_server.domain.allocation.lease import IdRange
from idalloc_server.domain.errors import QuotaExceeded, Refusal, ServerDraining
from idalloc_server.rpc import request_stream, status
from idalloc_server.rpc.items import DocIdSource, RangeSource
from tests.support.exploration.scenario import Step
from tests.support.exploration.world import World
from tests.support.promises.checker import Request


class Stream:
    """A stream as its server sees it: a ``MessageStream``.

    Args:
        world: The world.
        number: The number of the node.
        max_ids: The setting max_ids_per_call.
    """

    def __init__(self, world: World, number: int, max_ids: int = 3) -> None:
        self._world = world
        self._number = number
        self._max_ids = max_ids
        self._node = world.nodes[number - 1]
        self._sent: deque[pb.AllocateStreamRequest | Refusal | None] = deque()  # and not read
        self._read: deque[tuple[pb.AllocateStreamRequest, Request, bool]] = deque()  # and not answered, or refused
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._numbers = 0
        self._is_broken = False
        self.check: Callable[[], None] | None = None
        self.share = StreamShare(Shares(), lambda: "client")
        world.run(self._node, self._node.claim_start())  # a request id records the prefix
        self._task = world.call(self._node, self._serve())

    # What the client does.

    def send(self, *id_counts: int, request_id: str = "") -> Step:
        """The client sends requests for ids of "a" at once, the last of them with a request id."""

        def event() -> None:
            requests = [pb.AllocateRangeRequest(sequence="a", id_count=id_count) for id_count in id_counts]
            requests[-1].request_id = request_id
            for request in requests:
                self._numbers += 1
                self._arrive(pb.AllocateStreamRequest(number=self._numbers, allocate_range=request))

        counts = ", ".join(map(str, id_counts))
        return self._step(f"a stream asks for {counts}" + f", the last as {request_id}" * bool(request_id), event)

    def end(self) -> Step:
        """The client sends no more requests."""
        return self._step("the client ends its requests", lambda: self._arrive(None))

    def drain(self) -> Step:
        """The server may drain: it reads no more requests."""

        def event() -> None:
            self._sent.clear()
            self._arrive(ServerDraining())

        return self._step("the server drains", event, must=False)

    def receive(self) -> Step:
        """The client reads an answer, which ends the write."""
        return self._step("the client reads an answer", lambda: self._end_write(is_broken=False), writes=True)

    def fail_write(self) -> Step:
        """The write of an answer may fail."""
        return self._step("an answer is not written", lambda: self._end_write(is_broken=True), writes=True, must=False)

    def cancel(self) -> Step:
        """The client may cancel the call."""

        def event() -> None:
            self._is_broken = True
            self._task.cancel()

        return self._step("the client cancels the stream", event, must=False)

    def _step(self, words: str, event: Callable[[], None], *, writes: bool = False, must: bool = True) -> Step:
        def is_possible(_: World) -> bool:
            is_open = not (self._is_broken or self._task.done())
            return is_open and (not writes or (self._writing is not None and not self._writing.done()))

        return Step(words, self._number, event=lambda _: event(), when=is_possible, must=must)

    def _arrive(self, message: pb.AllocateStreamRequest | Refusal | None) -> None:
        self._sent.append(message)
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def _end_write(self, *, is_broken: bool) -> None:
        assert self._writing is not None
        self._is_broken = is_broken
        if is_broken:
            self._writing.cancel()
        else:
            self._writing.set_result(None)

    # What the server does.

    async def _serve(self) -> None:
        doc_ids = self._node.doc_ids
        assert doc_ids
        ranges = RangeSource(
            self._node.allocator,
            self._node.request_ids,
            doc_ids=doc_ids,
            clock=self._node.clock,
            max_ids=self._max_ids,
            node_id=self._number,
        )
        try:
            await request_stream.RequestStream(
                self, None, ranges, DocIdSource(doc_ids, self._max_ids), record_failure=_record_failure
            ).serve()
        except ServerDraining:
            pass
        finally:
            for _, request, _ in self._read:
                if request.request_id:  # it may have ids, which another request gets
                    self._node.issued_count += request.id_count
        if not self._is_broken:
            assert not self._read, f"{len(self._read)} requests have no answer"

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        """See ``MessageStream``."""
        while (message := await self._read_one()) is not None:
            yield message

    async def _read_one(self) -> Any:
        while not self._sent:
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading
        message = self._sent.popleft()
        if isinstance(message, Refusal):
            raise message
        if message is not None:
            wanted, now = message.allocate_range, self._world.now
            self._node.took_requests |= bool(wanted.request_id)
            request = self._world.promises.record_request(
                self._node, wanted.sequence, wanted.id_count, now, wanted.request_id
            )
            waiting = sum(each.id_count for _, each, is_refused in self._read if not is_refused)
            self._read.append((message, request, waiting + request.id_count > self._most_ids))
        return message

    async def pause(self, seconds: float) -> None:
        raise AssertionError("no quota applies")

    async def write(self, message: Any) -> None:
        """See ``MessageStream``."""
        assert self._writing is None, "two answers are written at once"
        wanted, request, is_refused = self._read.popleft()
        assert message.number == wanted.number, f"answer {message.number} is not the next one, {wanted.number}"
        issued = 0
        quota = QuotaExceeded("stream", "ids_without_answer", self._most_ids, request_stream.RETRY_SECONDS)
        assert is_refused == (message.error.message == str(quota)), (
            f"a request with more than {self._most_ids} ids is served, or one with fewer refused"
        )
        if message.HasField("allocate_range"):
            issued = 0 if request.request_id else request.id_count
            self._world.promises.record_reply(request, self._taken(message.allocate_range, request), self._world.now)
        else:
            assert message.HasField("error")
        self._writing = asyncio.get_running_loop().create_future()
        try:
            await self._writing
        except asyncio.CancelledError:
            self._node.issued_count -= issued
            raise
        finally:
            self._writing = None

    @property
    def _most_ids(self) -> int:
        """The most ids of requests without an answer."""
        return request_stream.MAX_IDS_FACTOR * self._max_ids

    def _taken(self, reply: pb.AllocateRangeResponse, request: Request) -> IdRange:
        """Return the ids of a reply. Its ttl counts from before the request was sent."""
        ids, waited = reply.range, self._world.now - request.at
        expires_at = self._node.clock.boot() + max(0.001, reply.ttl.seconds - waited)
        sequence = self._world.store.rows[request.sequence].sequence
        return IdRange(ids.first_id, ids.id_count, ids.step, reply.generation, expires_at, sequence, reply.period)


def _record_failure(error: Exception) -> status.Status:
    if not isinstance(error, Refusal):
        raise error
    return status.from_refusal(error)
