"""Random calls on real sockets get a status of the contract, and the next call is served."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2
from idalloc_server.listen.transport import LARGEST_METADATA_BYTES
from tests.fuzz.inputs import NAMES, TEXTS, TRIED, mutated, requests, tries
from tests.rpc.conftest import Served, serving
from tests.support.identities import ACCESS, TOKENS, bearer
from tests.support.logged import lines_of
from tests.support.rpc_errors import ENDED_DURING_WRITE

# Hypothesis warns when it prints a large failing input; an error would hide the failure.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

METHODS: dict[str, MethodDescriptor] = {
    f"/{service.full_name}/{method.name}": method
    for file in (id_allocator_pb2, node_pb2, sequences_pb2, health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
FAILURES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}
# Errors of grpcio's client for native's answer to more than 16 kB of metadata, which native sends
# by itself: an HTTP status, or a reset if the client has more to send.
TOO_LARGE = {
    grpc.StatusCode.UNKNOWN: "Received http2 header with status: 431",
    grpc.StatusCode.INTERNAL: "(RST_STREAM (Received RST_STREAM with error code 1))",
    grpc.StatusCode.CANCELLED: "Locally cancelled by application!",
}
# Metadata of this size is always accepted; the path and gRPC's own headers need the rest.
ALWAYS_ACCEPTED = LARGEST_METADATA_BYTES - 2_000
# Streams that stay open until their client cancels; as unary calls they wait for the deadline.
ENDLESS = ("/Watch", "/ServerReflectionInfo")
# Errors of grpcio's client if the answer arrives before the whole request was sent.
CLIENT_ERRORS = ('Failed "ExecuteBatch"', ENDED_DURING_WRITE)
# A stream is cancelled after this many replies.
MOST_REPLIES = 3
DEADLINE = 30
CREDENTIALS: list[tuple[tuple[str, str], ...]] = [(), *(bearer(name) for name in TOKENS)]
SERVERS = pytest.mark.parametrize(
    ("transport", "guarded"),
    [
        ("grpcio", False),
        ("grpcio", True),
        pytest.param("native", False, marks=pytest.mark.test_long),
        ("native", True),
    ],
)


@dataclass(eq=False)
class Live:
    """A running server with an event loop of its own."""

    transport: str
    runner: asyncio.Runner
    served: Served
    errors: list[str]

    def send(
        self, method: str, contents: list[bytes], metadata: Any = (), kind: str = "stream_stream"
    ) -> grpc.StatusCode:
        """Make a call, check its status, and that an ordinary call is served."""
        code, details = self.runner.run(self._call(method, contents, metadata, kind))
        too_large = self.transport == "native" and size_of(metadata) > ALWAYS_ACCEPTED
        if not (too_large and code in TOO_LARGE and TOO_LARGE[code] in str(details)):
            assert code is grpc.StatusCode.OK or code in FAILURES, f"{code}: {details}"
        self.assert_serves()
        return code

    def ask(self, contents: list[bytes], metadata: Any) -> tuple[grpc.StatusCode, list[Any]]:
        """Send the requests of one stream, and return its status and answers."""
        answers: list[Any] = []
        code, details = self.runner.run(self._stream(contents, metadata, answers))
        if not str(details).startswith(CLIENT_ERRORS):
            assert code is grpc.StatusCode.OK or code in FAILURES, f"{code}: {details}"
        self.assert_serves()
        return code, answers

    async def _stream(
        self, contents: list[bytes], metadata: Any, answers: list[Any]
    ) -> tuple[grpc.StatusCode, str | None]:
        call: Any = self.served.channel.stream_stream(STREAM)(timeout=DEADLINE, metadata=metadata)

        async def send() -> None:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream has ended
                for content in contents:
                    await call.write(content)
                await call.done_writing()

        sending = asyncio.create_task(send())
        with suppress(grpc.aio.AioRpcError):
            while (answer := await call.read()) is not grpc.aio.EOF:
                answers.append(id_allocator_pb2.AllocateStreamResponse.FromString(answer))
        await sending
        return await call.code(), await call.details()

    def assert_serves(self) -> None:
        """Assert that an ordinary call is served, and that no errors were logged."""
        self.runner.run(self._allocate())
        assert not self.errors

    async def _allocate(self) -> None:
        request = id_allocator_pb2.AllocateRangeRequest(sequence="untouched")
        await self.served.ids.AllocateRange(request, timeout=DEADLINE, metadata=bearer("allocate"))

    async def _call(
        self, method: str, contents: list[bytes], metadata: Any, kind: str
    ) -> tuple[grpc.StatusCode, str | None]:
        async def sent() -> AsyncIterator[bytes]:
            for content in contents:
                yield content

        request: Any = sent() if kind.startswith("stream") else contents[0]
        call: Any = getattr(self.served.channel, kind)(method)(request, timeout=DEADLINE, metadata=metadata)
        try:
            if kind.endswith("unary"):
                await call
            else:
                replies = 0
                async for _ in call:
                    replies += 1
                    if replies >= MOST_REPLIES or method.endswith("/Watch"):
                        call.cancel()
                        return grpc.StatusCode.OK, None
        except asyncio.CancelledError:
            # grpcio's client cancels a call itself if its connection ends while it sends.
            return await call.code(), await call.details()
        except grpc.aio.AioRpcError as error:
            if kind.startswith("stream") and str(error.details()).startswith(CLIENT_ERRORS):
                return grpc.StatusCode.OK, None
            return error.code(), error.details()
        return await call.code(), await call.details()


def size_of(metadata: Any) -> int:
    """Return the size of metadata on the wire, with binary values in base64."""
    return sum(len(name) + (len(value) * 4 // 3 if name.endswith("-bin") else len(value)) for name, value in metadata)


class _Errors(logging.Handler):
    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors += lines_of([record])


@contextmanager
def live(transport: str, *, guarded: bool) -> Iterator[Live]:
    """Run a server, and assert that it logs no errors."""
    errors: list[str] = []
    handler = _Errors(errors)
    logging.getLogger().addHandler(handler)
    server = serving(transport, ACCESS if guarded else None)
    try:
        with capture_logs() as logs, asyncio.Runner() as runner:
            served = runner.run(server.__aenter__())
            try:
                yield Live(transport, runner, served, errors)
            finally:
                runner.run(server.__aexit__(None, None, None))
            assert not [line for line in logs if line["log_level"] in ("error", "critical")]
    finally:
        logging.getLogger().removeHandler(handler)
    assert not errors


@SERVERS
@pytest.mark.parametrize("method", METHODS)
def test_any_request_is_answered(transport: str, guarded: bool, method: str, tried: str) -> None:
    """Each RPC answers any request with a status of the contract, and the next call is served."""
    with live(transport, guarded=guarded) as server:

        @tries(10, shares=len(METHODS))
        @given(requests(METHODS[method].input_type), st.sampled_from(CREDENTIALS if guarded else CREDENTIALS[:1]))
        def check(content: bytes, metadata: Any) -> None:
            TRIED[tried] += 1
            server.send(method, [content], metadata)

        check()


@SERVERS
def test_calls_in_any_order_on_the_same_sequences_are_answered(transport: str, guarded: bool, tried: str) -> None:
    """Any calls on the same sequences, in any order, are answered with a status of the contract."""
    ours = {name: method for name, method in METHODS.items() if name.startswith("/idalloc.")}
    calls = st.sampled_from(list(ours)).flatmap(lambda name: st.tuples(st.just(name), requests(ours[name].input_type)))

    @tries(3, shares=20)
    @given(st.lists(calls, min_size=5, max_size=20))
    def check(calls: list[tuple[str, bytes]]) -> None:
        with live(transport, guarded=guarded) as server:
            for name in NAMES:
                created = sequences_pb2.CreateSequenceRequest(sequence=sequences_pb2.Sequence(name=name))
                server.send(
                    "/idalloc.v1.SequenceService/CreateSequence", [created.SerializeToString()], bearer("admin")
                )
            for method, content in calls:
                TRIED[tried] += 1
                for who in ("allocate", "read", "admin") if guarded else ("allocate",):
                    server.send(method, [content], bearer(who))

    check()


STREAM = "/idalloc.v1.IdAllocatorService/AllocateStream"


@SERVERS
def test_a_stream_answers_each_of_many_requests(transport: str, guarded: bool, tried: str) -> None:
    """A stream answers any requests once each, in order, until one cannot be decoded."""
    sent = st.lists(requests(METHODS[STREAM].input_type), min_size=2, max_size=30)

    @tries(10, shares=10)
    @given(sent, st.sampled_from(CREDENTIALS if guarded else CREDENTIALS[:1]))
    def check(contents: list[bytes], metadata: Any) -> None:
        TRIED[tried] += len(contents)
        code, answers = server.ask(contents, metadata)
        assert [each.number for each in answers] == numbers_of(contents)[: len(answers)]
        assert all(each.WhichOneof("response") for each in answers)
        assert code is not grpc.StatusCode.OK or len(answers) == len(contents)

    with live(transport, guarded=guarded) as server:
        check()


def numbers_of(contents: list[bytes]) -> list[int]:
    """Return the numbers of the requests before the first one that cannot be decoded."""
    numbers = []
    for content in contents:
        try:
            numbers.append(id_allocator_pb2.AllocateStreamRequest.FromString(content).number)
        except DecodeError:
            break
    return numbers


KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]
KEYS = st.sampled_from(["authorization", "x", "x-bin", "authorization-bin", "user-agent", "traceparent", "te", "host"])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20) | st.sampled_from(
    [
        "",
        "Bearer",
        "Bearer ",
        "bearer x",
        "Basic eDp5",
        "Bearer " + "x" * 3_000,
        "," * 50,
        *(f"Bearer {t}" for t in TOKENS),
    ]
)


@SERVERS
def test_any_metadata_method_and_kind_of_call_is_answered(transport: str, guarded: bool, tried: str) -> None:
    """Any metadata, path and kind of call is answered with a status of the contract."""
    paths = st.sampled_from([*METHODS, *METHODS, "/", "/a/b", "/idalloc.v1.IdAllocatorService/None", "/x" * 500])
    pairs = st.tuples(KEYS, VALUES).map(lambda pair: (pair[0], pair[1].encode() if "-bin" in pair[0] else pair[1]))
    # From always accepted to always refused sizes, as numbers, which Hypothesis prints.
    sizes = st.tuples(KEYS, st.sampled_from([5_000, 9_000, 15_000, 17_000, 40_000]))
    large = st.none() | st.none() | sizes
    valid = id_allocator_pb2.AllocateRangeRequest(sequence="a").SerializeToString()
    contents = st.lists(st.just(valid) | mutated(st.just(valid)) | TEXTS.map(str.encode), min_size=1, max_size=3)
    with live(transport, guarded=guarded) as server:

        @tries(30)
        @given(paths, st.lists(pairs, max_size=4), large, st.sampled_from(KINDS), contents)
        def check(method: str, usual: Any, large: Any, kind: str, contents: list[bytes]) -> None:
            TRIED[tried] += 1
            metadata = list(usual)
            if large:
                name, size = large
                metadata.append((name, b"x" * (size * 3 // 4) if "-bin" in name else "x" * size))
            if method.endswith(ENDLESS):
                kind = kind.replace("_unary", "_stream")
            server.send(method, contents, metadata, kind)

        check()


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_noise_on_a_connection_does_not_affect_others(transport: str, tried: str) -> None:
    """Random bytes and frames on a connection do not affect other calls."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    start = preface + bytes.fromhex("000000040000000000")
    frame = st.builds(
        lambda kind, flags, stream, body: (
            len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body
        ),
        st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=40),
    )  # fmt: skip
    noise = (
        st.binary(max_size=100)
        | mutated(st.just(start))
        | st.lists(frame, max_size=6).map(lambda frames: start + b"".join(frames))
    )
    with live(transport, guarded=False) as server:

        @tries(15)
        @given(noise)
        def check(content: bytes) -> None:
            TRIED[tried] += 1
            host, _, port = server.served.address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=DEADLINE) as connection:
                connection.sendall(content)
            server.assert_serves()

        check()
