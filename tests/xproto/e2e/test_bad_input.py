"""Clients that misbehave on the X Protocol's port do not harm a server, nor the callers of gRPC."""

import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import idalloc.aio
from idalloc.xprotocol.v1 import crud_pb2, expression_pb2, notice_pb2
from idalloc_xproto import frames
from tests.support.certificates import Certificates
from tests.support.faults.resources import read_resources
from tests.support.processes import Server, running
from tests.support.server_calls import lines_beside_audit
from tests.xproto.support.client import connected, insert

pytestmark = pytest.mark.timeout(180)

# What a server of these tests may take beyond its memory at rest, in megabytes.
MOST_MB = 100


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, xproto_listen="127.0.0.1:0", log_level="warning") as server:
        yield server
        log = server.log.read_text()
    assert "connection_failed" not in log


@pytest.fixture
async def grpc_client(server: Server) -> AsyncIterator[idalloc.aio.Client]:
    async with idalloc.aio.Client(server.address) as client:
        await client.allocate_range("orders", 1)
        yield client


def memory(server: Server) -> float:
    """Return the resident memory of a server, in megabytes."""
    return read_resources(server.process.pid).memory


def nested(depth: int) -> bytes:
    """Return the frame of a find whose criteria are nested."""
    content = b""
    for _ in range(depth):
        # A parameter of an operator of an expression, each a field with its length.
        content = _field(6, _field(2, content))
    payload = _field(2, crud_pb2.Collection(name="c", schema="s").SerializeToString()) + _field(5, content)
    return frames.frame(17, payload)


def _field(number: int, content: bytes) -> bytes:
    return frames.unsigned_field(number << 3 | 2) + frames.unsigned_field(len(content)) + content


@pytest.mark.parametrize("logs_in", [False, True])
async def test_broken_frames_end_only_their_connection(
    server: Server, grpc_client: idalloc.aio.Client, logs_in: bool
) -> None:
    """Frames cut, empty, too long, unknown or nested 10,000 deep get MySQL's error or an end."""
    too_long = (2**31).to_bytes(4, "little") + b"\x12"
    broken = [bytes(4), b"\x01", too_long, nested(10_000), frames.frame(12, b"\xff" * 50), frames.frame(18)]
    for content in broken:
        async with connected(server.xproto, logs_in=logs_in) as client:
            client.writer.write(content)
            client.writer.write_eof()
            answer = await client.rest()
            assert answer == b"" or answer[4] == frames.ERROR
    async with connected(server.xproto) as client:
        client.writer.write(frames.frame(99, b"x"))
        assert (await client.reply()).code == 1047
        assert (await client.sql("SELECT 1")).code == 0
    await grpc_client.allocate_range("orders", 1)


async def test_deep_criteria_are_answered_within_the_limit(server: Server) -> None:
    """A criterion within protobuf's limit is answered; a deeper one ends only its connection."""
    async with connected(server.xproto) as client:
        await client.create_collection()
        deep = expression_pb2.Expr(type=expression_pb2.EXPR_TYPE_LITERAL)
        deep.literal.type = notice_pb2.SCALAR_TYPE_V_BOOL
        deep.literal.v_bool = True
        for _ in range(40):
            outer = expression_pb2.Expr(type=expression_pb2.EXPR_TYPE_OPERATOR)
            outer.operator.name = "not"
            outer.operator.param.append(deep)
            deep = outer
        find = crud_pb2.Find(collection=crud_pb2.Collection(name="c", schema="s"), criteria=deep)
        assert (await client.ask(find)).code == 0


async def test_a_client_that_reads_nothing_takes_no_memory(server: Server, grpc_client: idalloc.aio.Client) -> None:
    """Unread replies of 500 MB wait in the store, not in memory, while others are answered."""
    async with connected(server.xproto) as client:
        await client.create_collection()
        assert (await client.add(f'{{"text": "{"x" * 1_000_000}"}}')).code == 0
        before = memory(server)
        find = frames.frame(17, crud_pb2.Find(collection=crud_pb2.Collection(name="c", schema="s")))
        client.writer.write(find * 500)
        for _ in range(50):
            await grpc_client.allocate_range("orders", 1)
        async with connected(server.xproto) as other:
            assert len((await other.add("{}")).ids) == 1
        assert memory(server) - before < MOST_MB


async def test_a_message_is_bounded(server: Server) -> None:
    """A message of up to 64 MiB is served; a longer header ends the connection."""
    async with connected(server.xproto) as client:
        await client.create_collection()
        assert (await client.add(f'{{"text": "{"x" * 60_000_000}"}}')).code == 0
        client.writer.write((64 * 2**20 + 1).to_bytes(4, "little"))
        assert await client.rest() == b""


@pytest.mark.test_long
async def test_pipelined_messages_are_answered_in_order(server: Server) -> None:
    """A client may send many messages before it reads; the replies come in their order."""
    async with connected(server.xproto) as client:
        await client.create_collection()
        for number in range(200):
            client.send(insert(f'{{"_id": "{number:03}"}}', "{}"))
        ids = [doc_id for _ in range(200) for doc_id in (await client.reply()).ids]
        assert ids == sorted(ids)
        assert len(ids) == 200


@pytest.mark.test_long
async def test_a_client_that_leaves_writes_no_traceback(tmp_path: Path) -> None:
    """200 clients that reset or close before their replies, also with TLS, are no server fault."""
    certificates = Certificates(tmp_path)
    shown, tls = certificates.client("127.0.0.1"), ssl.create_default_context(cafile=certificates.ca)
    find = crud_pb2.Find(collection=crud_pb2.Collection(name="c", schema="s"))
    before, after = frames.frame(1) * 40, frames.frame(17, find) + frames.frame(18, insert("{}"))
    settings = {"xproto_listen": "127.0.0.1:0", "tls_cert": shown.cert, "tls_key": shown.key}
    with running(tmp_path, log_level="warning", **settings) as server:
        async with connected(server.xproto) as client:
            await client.create_collection()
            assert (await client.add(f'{{"text": "{"x" * 500_000}"}}')).code == 0
        for number in range(200):
            has_tls, logs_in = number % 4 == 0, number % 3 > 0
            async with connected(server.xproto, logs_in=logs_in and not has_tls) as client:
                if has_tls:
                    await client.start_tls(tls)
                    assert not logs_in or (await client.log_in()).code == 0
                client.writer.write((after if logs_in else before) * (number % 4 + 1))
                if number % 2:
                    raw = client.writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if not number % 5:
                    await client.read()
        async with connected(server.xproto) as client:
            assert (await client.sql("SELECT 1")).rows == [b"\x02"]
        assert lines_beside_audit(server) == []
